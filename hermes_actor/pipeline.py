"""Several changes in one round trip, blocking and awaitable.

``with db.pipeline() as p:`` has every method of a SessionDB that makes a single change, with the
same arguments. Each call queues its change and returns an answer to come; the changes go out
together, in order, and usually share one commit. They are not atomic: each succeeds or fails by
itself. Leaving the block waits for all and raises the first error. A call whose arguments cannot be
sent raises at once and queues nothing.

``async with db.pipeline() as p:`` of an AsyncSessionDB is the same without blocking the event loop.
Its calls are no coroutines: they return answers that can be awaited. The changes stay in the queue
until an answer or :meth:`AsyncPipeline.flush` is awaited, or the block ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from hermes_actor.api.change import Change, build, reason_for_all
from hermes_actor.api.provider import SessionDBProvider

if TYPE_CHECKING:
    from hermes_actor.async_session_db import AsyncSessionDB
    from hermes_actor.client.interfaces import Answer, AsyncAnswer, AsyncPort

__all__ = ["AsyncPipeline", "AsyncQueuedAnswer", "Pipeline", "QueuedAnswer"]

P = ParamSpec("P")
R = TypeVar("R")

_SENT_AT_ONCE = 64
"""Changes that are held back at most: a batch of the writer."""


class _Single(Generic[P, R]):
    """The types of a method that makes a single change, in each class that has it."""

    def __init__(self, method: Callable[Concatenate[SessionDBProvider, P], R]) -> None:
        self.method = method

    @overload
    def __get__(self, owner: Pipeline, kind: object) -> Callable[P, QueuedAnswer[R]]: ...
    @overload
    def __get__(self, owner: AsyncPipeline, kind: object) -> Callable[P, AsyncQueuedAnswer[R]]: ...
    @overload
    def __get__(
        self, owner: AsyncSessionDB, kind: object
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, owner: object, kind: object) -> Callable[P, object]:
        raise NotImplementedError("a subclass of SingleChanges has functions of its own")


class SingleChanges:
    """Base of the classes that send the single changes of a SessionDB in their own way.

    A subclass has a method for each, which *made_by* makes of the method of the SessionDB.
    """

    def __init_subclass__(cls, made_by: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        for name, single in vars(SingleChanges).items():
            if isinstance(single, _Single):
                setattr(cls, name, made_by(single.method))

    create_session = _Single(SessionDBProvider.create_session)
    ensure_session = _Single(SessionDBProvider.ensure_session)
    continue_session = _Single(SessionDBProvider.continue_session)
    end_session = _Single(SessionDBProvider.end_session)
    reopen_session = _Single(SessionDBProvider.reopen_session)
    update_system_prompt = _Single(SessionDBProvider.update_system_prompt)
    update_token_counts = _Single(SessionDBProvider.update_token_counts)
    set_session_title = _Single(SessionDBProvider.set_session_title)
    move_session_title = _Single(SessionDBProvider.move_session_title)
    queue_title = _Single(SessionDBProvider.queue_title)
    append_message = _Single(SessionDBProvider.append_message)
    replace_messages = _Single(SessionDBProvider.replace_messages)
    clear_messages = _Single(SessionDBProvider.clear_messages)
    set_meta = _Single(SessionDBProvider.set_meta)
    vacuum = _Single(SessionDBProvider.vacuum)
    finalize_orphaned_compression_sessions = _Single(
        SessionDBProvider.finalize_orphaned_compression_sessions
    )
    archive_session = _Single(SessionDBProvider.archive_session)
    import_session = _Single(SessionDBProvider.import_session)
    request_handoff = _Single(SessionDBProvider.request_handoff)
    claim_handoff = _Single(SessionDBProvider.claim_handoff)
    complete_handoff = _Single(SessionDBProvider.complete_handoff)
    fail_handoff = _Single(SessionDBProvider.fail_handoff)
    apply_telegram_topic_migration = _Single(SessionDBProvider.apply_telegram_topic_migration)
    enable_telegram_topic_mode = _Single(SessionDBProvider.enable_telegram_topic_mode)
    disable_telegram_topic_mode = _Single(SessionDBProvider.disable_telegram_topic_mode)
    bind_telegram_topic = _Single(SessionDBProvider.bind_telegram_topic)


class _ChangesOnly:
    if not TYPE_CHECKING:  # a checker must find these calls, and would take them for valid

        def __getattr__(self, name: str) -> None:
            raise AttributeError(f"{name} cannot be part of a pipeline")


class QueuedAnswer(Generic[R]):
    """The answer to one queued change."""

    def __init__(self, pipeline: Pipeline, change: Change[R]) -> None:
        self._pipeline = pipeline
        self._change = change
        self._answer: Answer | None = None
        self._error: Exception | None = None

    def done(self) -> bool:
        """Return True if :meth:`result` would not wait."""
        return self._error is not None or (self._answer is not None and self._answer.done())

    def result(self) -> R:
        """Send what is still queued, wait for the change, and return what its method returns.

        Raises what the method raises.
        """
        if self._answer is None and self._error is None:
            self._pipeline.flush()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._change.outcome(self._answer.result())


def _queued(method: Callable[..., R]) -> Callable[..., QueuedAnswer[R] | AsyncQueuedAnswer[R]]:
    """Make the method of a pipeline that queues the change that *method* makes."""

    @wraps(method)
    def queue(
        self: Pipeline | AsyncPipeline, /, *args: Any, **kwargs: Any
    ) -> QueuedAnswer[R] | AsyncQueuedAnswer[R]:
        return self._add(build(method, self._db, *args, **kwargs))

    return queue


class Pipeline(_ChangesOnly, SingleChanges, made_by=_queued):
    """A queue of changes, made by :meth:`SessionDB.pipeline`. Not safe to share between threads."""

    def __init__(self, db: SessionDBProvider) -> None:
        self._db = db
        self._queued: list[QueuedAnswer[Any]] = []
        self._answers: list[QueuedAnswer[Any]] = []

    def _add(self, change: Change[R]) -> QueuedAnswer[R]:
        answer = QueuedAnswer(self, change)
        self._queued.append(answer)
        self._answers.append(answer)
        if len(self._queued) >= _SENT_AT_ONCE:
            self.flush()
        return answer

    def flush(self) -> None:
        """Send what is queued, without waiting for the answers.

        Raises what sending raises; the answers of the changes that were not sent raise it too.
        """
        queued = self._queued
        if not queued:
            return
        try:
            self._queued = []
            operations = [one._change.operation for one in queued]
            answers = self._db._opened_port().send(operations, self._db._timeout)
            for one, answer in zip(queued, answers, strict=True):
                one._answer = answer
        except BaseException as error:
            self._queued = []
            reason = reason_for_all(error)
            for one in queued:
                if one._answer is None:
                    one._error = reason
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Wait for everything; raise the first error unless another one is on its way."""
        with contextlib.suppress(Exception):  # the answers raise it
            self.flush()
        first: Exception | None = None
        for answer in self._answers:
            try:
                answer.result()
            except Exception as error:
                first = first or error
        if first is not None and kind is None:
            raise first


class AsyncQueuedAnswer(Generic[R]):
    """The answer to one queued change. Awaiting it returns what the method returns."""

    _value: R

    def __init__(self, pipeline: AsyncPipeline, change: Change[R]) -> None:
        self._pipeline = pipeline
        self._change = change
        self._answer: AsyncAnswer | None = None
        self._error: Exception | None = None
        self._settled = False

    def done(self) -> bool:
        """Return True if awaiting it would not wait."""
        return self._settled or (self._answer is not None and self._answer.done())

    def result(self) -> R:
        """Return what was awaited, here or at the end of the block, or raise its error.

        Raises:
            RuntimeError: it was not awaited yet.
        """
        if not self._settled:
            raise RuntimeError("the answer has not been awaited")
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Any, Any, R]:
        return self._wait().__await__()

    async def _wait(self) -> R:
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


class AsyncPipeline(_ChangesOnly, SingleChanges, made_by=_queued):
    """A queue of changes, made by :meth:`AsyncSessionDB.pipeline`, for an ``async with`` block."""

    def __init__(
        self, opened: Callable[[], Awaitable[tuple[SessionDBProvider, AsyncPort]]]
    ) -> None:
        self._opened = opened
        self._queued: list[AsyncQueuedAnswer[Any]] = []
        self._answers: list[AsyncQueuedAnswer[Any]] = []

    def _add(self, change: Change[R]) -> AsyncQueuedAnswer[R]:
        answer = AsyncQueuedAnswer(self, change)
        self._queued.append(answer)
        self._answers.append(answer)
        return answer

    async def __aenter__(self) -> Self:
        import anyio  # which users of the blocking twin do not pay for

        self._db, self._port = await self._opened()
        self._sending = anyio.Lock()
        return self

    async def flush(self) -> None:
        """Send what is queued, without waiting for the answers.

        Raises what sending raises; the answers of the changes that were not sent raise it too.
        """
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
        with contextlib.suppress(Exception):  # the answers raise it
            await self.flush()
        first: Exception | None = None
        for answer in self._answers:
            try:
                await answer
            except Exception as error:
                first = first or error
        if first is not None and kind is None:
            raise first
