"""Several changes in one round trip.

``with db.pipeline() as p:`` offers the writing methods of a SessionDB. Each call queues its change
and returns an answer to come; the changes go out together, in order, and usually share one
commit. They are not atomic: each succeeds or fails by itself. Leaving the block waits for all and
raises the first error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hermes_actor.errors import Closed

if TYPE_CHECKING:
    from hermes_actor.client.port import Answer
    from hermes_actor.session_db import SessionDB
    from hermes_protocol.operations import Operation

__all__ = ["Pipeline", "QueuedAnswer"]

R = TypeVar("R")

_METHODS = frozenset({
    "create_session", "ensure_session", "continue_session", "end_session", "reopen_session",
    "update_system_prompt", "update_token_counts", "set_session_title", "append_message",
    "replace_messages", "clear_messages", "set_meta", "request_handoff", "claim_handoff",
    "complete_handoff", "fail_handoff", "enable_telegram_topic_mode",
    "disable_telegram_topic_mode", "bind_telegram_topic",
})  # fmt: skip

_SENT_AT_ONCE = 64
"""Changes that are held back at most: a batch of the writer."""


class QueuedAnswer:
    """The answer to one queued change."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._answer: Answer | None = None

    def done(self) -> bool:
        return self._answer is not None and self._answer.done()

    def result(self) -> Any:
        """Wait for the change: its result, or its error raised. Sends what is still queued."""
        if self._answer is None:
            self._pipeline.flush()
        assert self._answer is not None
        return self._answer.result()


class Pipeline:
    """Made by :meth:`SessionDB.pipeline`. Not safe to share between threads."""

    def __init__(self, db: SessionDB) -> None:
        self._db = db
        self._queued: list[tuple[Operation[Any], QueuedAnswer]] = []
        self._answers: list[QueuedAnswer] = []

    def __getattr__(self, name: str) -> Callable[..., QueuedAnswer]:
        if name not in _METHODS:
            raise AttributeError(f"{name} cannot be part of a pipeline")
        method = getattr(type(self._db), name)

        def queue(*args: Any, **kwargs: Any) -> QueuedAnswer:
            # The method runs as ever, with us in the place of the store that it submits to.
            method(_Recorder(self._db, self), *args, **kwargs)
            return self._answers[-1]

        return queue

    def add(self, operation: Operation[Any]) -> QueuedAnswer:
        answer = QueuedAnswer(self)
        self._queued.append((operation, answer))
        self._answers.append(answer)
        if len(self._queued) >= _SENT_AT_ONCE:
            self.flush()
        return answer

    def flush(self) -> None:
        """Send what is queued, without waiting for it."""
        queued, self._queued = self._queued, []
        port = self._db._port
        if port is None:
            raise Closed("this SessionDB is closed")
        answers = port.send([operation for operation, _ in queued], self._db._patience)
        for (_, queued_answer), answer in zip(queued, answers, strict=True):
            queued_answer._answer = answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        """Wait for everything; raise the first error unless another one is on its way."""
        self.flush()
        first: BaseException | None = None
        for answer in self._answers:
            try:
                answer.result()
            except Exception as error:
                first = first or error
        if first is not None and kind is None:
            raise first


class _Recorder:
    """Stands in for a SessionDB while one of its methods builds an operation."""

    def __init__(self, db: SessionDB, pipeline: Pipeline) -> None:
        self._db = db
        self._pipeline = pipeline

    def __getattr__(self, name: str) -> Any:
        kind = type(self._db)
        found = next(vars(base)[name] for base in kind.__mro__ if name in vars(base))
        return found.__get__(self, kind)

    def _submit(self, operation: Operation[Any]) -> Any:
        return _Unused(self._pipeline.add(operation))


class _Unused:
    """What a method gets for a result that is not there yet; whatever it takes from it."""

    def __init__(self, answer: QueuedAnswer) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return self
