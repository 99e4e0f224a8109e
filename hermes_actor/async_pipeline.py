"""Several changes in one round trip, without blocking the event loop.

``async with db.pipeline() as p:`` offers the writing methods of a SessionDB, not as coroutines:
each call queues its change and returns an answer that can be awaited. Everything else is as in
:mod:`hermes_actor.pipeline`, except that the changes stay in the queue until somebody awaits: an
answer, :meth:`AsyncPipeline.flush`, or the end of the block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio

from hermes_actor.api.operations import ONE_CHANGE, Change, reason_for_all, record

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import AsyncAnswer, AsyncPort
    from hermes_actor.session_db import SessionDB

__all__ = ["AsyncPipeline", "AsyncQueuedAnswer"]


class AsyncQueuedAnswer:
    """The answer to one queued change. Await it for what its method returns."""

    def __init__(self, pipeline: AsyncPipeline, change: Change) -> None:
        self._pipeline = pipeline
        self._change = change
        self._answer: AsyncAnswer | None = None
        self._error: Exception | None = None
        self._value: Any = None
        self._settled = False

    def done(self) -> bool:
        return self._settled or (self._answer is not None and self._answer.done())

    def result(self) -> Any:
        """What was awaited, here or at the end of the block: the value, or the error raised."""
        if not self._settled:
            raise RuntimeError("the answer has not been awaited")
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        if not self._settled:
            await self._pipeline.flush()
        if not self._settled:
            assert self._answer is not None
            try:
                self._value = self._change.outcome(await self._answer.wait())
            except Exception as error:
                self._error = error
            self._settled = True
        return self.result()

    def _fail(self, error: Exception) -> None:
        self._error, self._settled = error, True


class AsyncPipeline:
    """Made by :meth:`AsyncSessionDB.pipeline`; to be used in an ``async with`` block."""

    def __init__(self, opened: Callable[[], Awaitable[tuple[SessionDB, AsyncPort]]]) -> None:
        self._opened = opened
        self._queued: list[AsyncQueuedAnswer] = []
        self._answers: list[AsyncQueuedAnswer] = []

    async def __aenter__(self) -> Self:
        self._db, self._port = await self._opened()
        self._sending = anyio.Lock()
        return self

    def __getattr__(self, name: str) -> Callable[..., AsyncQueuedAnswer]:
        if name not in ONE_CHANGE:
            raise AttributeError(f"{name} cannot be part of a pipeline")
        return partial(self._add, name)

    def _add(self, name: str, /, *args: Any, **kwargs: Any) -> AsyncQueuedAnswer:
        answer = AsyncQueuedAnswer(self, record(self._db, name, *args, **kwargs))
        self._queued.append(answer)
        self._answers.append(answer)
        return answer

    async def flush(self) -> None:
        """Send what is queued, without waiting for the answers."""
        # One at a time: the changes of two flushes must not mix.
        async with self._sending:
            queued, self._queued = self._queued, []
            if not queued:
                return
            try:
                operations = [one._change.operation for one in queued]
                answers = await self._port.send(operations, self._db._timeout)
            except BaseException as error:
                reason = reason_for_all(error)
                for one in queued:
                    one._fail(reason)
                raise
            for one, answer in zip(queued, answers, strict=True):
                one._answer = answer

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Wait for everything; raise the first error unless another one is on its way."""
        with contextlib.suppress(Exception):  # the answers tell
            await self.flush()
        first: Exception | None = None
        for answer in self._answers:
            try:
                await answer
            except Exception as error:
                first = first or error
        if first is not None and kind is None:
            raise first
