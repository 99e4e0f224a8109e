"""Several changes in one round trip.

``with db.pipeline() as p:`` offers the writing methods of a SessionDB. Each call queues its change
and returns an answer to come; the changes go out together, in order, and usually share one
commit. They are not atomic: each succeeds or fails by itself. Leaving the block waits for all and
raises the first error. A call whose arguments cannot be sent raises at once and queues nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from hermes_actor.api.operations import ONE_CHANGE, Change, reason_for_all, record
from hermes_actor.errors import Closed

if TYPE_CHECKING:
    from hermes_actor.api.provider import SessionDBProvider
    from hermes_actor.client.interfaces import Answer

__all__ = ["Pipeline", "QueuedAnswer"]

_SENT_AT_ONCE = 64
"""Changes that are held back at most: a batch of the writer."""


class QueuedAnswer:
    """The answer to one queued change."""

    def __init__(self, pipeline: Pipeline, change: Change) -> None:
        self._pipeline = pipeline
        self._change = change
        self._answer: Answer | None = None
        self._error: Exception | None = None

    def done(self) -> bool:
        return self._error is not None or (self._answer is not None and self._answer.done())

    def result(self) -> Any:
        """Wait for the change: what its method returns, or its error raised.

        Sends what is still queued.
        """
        if self._answer is None and self._error is None:
            self._pipeline.flush()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        return self._change.outcome(self._answer.result())


class Pipeline:
    """Made by :meth:`SessionDB.pipeline`. Not safe to share between threads."""

    def __init__(self, db: SessionDBProvider) -> None:
        self._db = db
        self._queued: list[QueuedAnswer] = []
        self._answers: list[QueuedAnswer] = []

    def __getattr__(self, name: str) -> Callable[..., QueuedAnswer]:
        if name not in ONE_CHANGE:
            raise AttributeError(f"{name} cannot be part of a pipeline")
        return partial(self._add, name)

    def _add(self, name: str, /, *args: Any, **kwargs: Any) -> QueuedAnswer:
        answer = QueuedAnswer(self, record(self._db, name, *args, **kwargs))
        self._queued.append(answer)
        self._answers.append(answer)
        if len(self._queued) >= _SENT_AT_ONCE:
            self.flush()
        return answer

    def flush(self) -> None:
        """Send what is queued, without waiting for it."""
        queued = self._queued
        if not queued:
            return
        try:
            self._queued = []
            port = self._db._port
            if port is None:
                raise Closed("this SessionDB is closed")
            operations = [one._change.operation for one in queued]
            answers = port.send(operations, self._db._timeout)
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
        with contextlib.suppress(Exception):  # the answers tell
            self.flush()
        first: Exception | None = None
        for answer in self._answers:
            try:
                answer.result()
            except Exception as error:
                first = first or error
        if first is not None and kind is None:
            raise first
