"""The way to the actor for the tasks of an event loop: the same conversation, awaited."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.aio.line import AsyncLine
from hermes_actor.client.core import Reply, decode_result
from hermes_actor.errors import HermesActorError, OutcomeUnknown
from hermes_protocol.operations import result_type

if TYPE_CHECKING:
    from hermes_actor.paths import Place
    from hermes_protocol.operations import Operation

__all__ = ["AsyncAnswer", "AsyncChannel"]

R = TypeVar("R")


class AsyncChannel:
    """The way to one actor. Get it with :func:`hermes_actor.client.aio.channels.share`.

    Belongs to the event loop in which it is used.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._line = AsyncLine(place)

    async def submit(self, operation: Operation[R], patience: float) -> R:
        """Have *operation* applied; its result once it is committed and synced.

        When it is cancelled before anything was sent, nothing happens. Later, the change is made
        and its result discarded.
        """
        (answer,) = await self.send([operation], patience)
        try:
            return cast("R", await answer.wait())
        finally:
            answer.withdraw()

    async def send(
        self, operations: Sequence[Operation[Any]], patience: float
    ) -> list[AsyncAnswer]:
        """Send several operations, in order, without waiting for their answers.

        Waits for room in the window of the actor. What one of several concurrent callers sends
        may come between the operations of another.
        """
        line, deadline = self._line, time.monotonic() + patience
        # All before the first is numbered: one that cannot be encoded stops none half-way.
        encoded = [line.core.encode(operation) for operation in operations]
        answers: list[AsyncAnswer] = []
        replies: list[Reply] = []
        try:
            await line.connected(deadline)
            for operation, whole in zip(operations, encoded, strict=True):
                replies = []
                answers.append(AsyncAnswer(line, replies, deadline, result_type(type(operation))))
                for step in [whole] if whole is not None else line.core.stages(operation):
                    await line.room(deadline)
                    replies.append(line.request(step, deadline))
                    if len(replies) > 1:
                        line.flush()
            line.flush()
        except BaseException as error:
            withdrawn = [answer.withdraw() for answer in answers]
            if all(withdrawn) or not isinstance(error, HermesActorError):
                raise
            raise OutcomeUnknown(f"some changes were sent, and then: {error}") from error
        return answers

    async def catch_up(self, through: int, patience: float) -> None:
        """Return when both full-text indexes cover all messages up to *through*."""
        await self._ask(
            lambda ask: wire.CatchUp(ask=ask, through=through, patience=patience),
            time.monotonic() + patience,
        )

    async def statistics(self) -> dict[str, Any]:
        """The status document of the actor."""
        deadline = time.monotonic() + limits.PATIENCE_SECONDS
        status = await self._ask(lambda ask: wire.StatusRequest(ask=ask), deadline)
        document: dict[str, Any] = msgspec.json.decode(status)
        return document

    async def aclose(self) -> None:
        """Say good-bye. Calls that still wait end with an error. Calling it again is harmless."""
        self._line.close()

    def after_fork(self) -> None:
        self._line.after_fork()

    async def _ask(self, make: Callable[[int], msgspec.Struct], deadline: float) -> bytes:
        """An ask is tried again on a new connection; it changes nothing."""
        line = self._line
        while True:
            await line.connected(deadline)
            reply, data = line.core.ask(make)
            line.queue(reply, data)
            line.flush()
            try:
                return await line.wait(reply, deadline)
            except ConnectionResetError:
                continue
            finally:
                line.core.give_up(reply)


class AsyncAnswer:
    """The answer to one operation, when it comes; of a staged one, the first error of its parts."""

    __slots__ = ("_deadline", "_kind", "_line", "_replies")

    def __init__(self, line: AsyncLine, replies: list[Reply], deadline: float, kind: Any) -> None:
        self._line = line
        self._replies = replies
        self._deadline = deadline
        self._kind = kind

    def done(self) -> bool:
        return all(reply.done for reply in self._replies)

    async def wait(self) -> Any:
        """The result, or the error raised. Cancelling the wait does not cancel the change."""
        result = b""
        for reply in self._replies:
            result = await self._line.wait(reply, self._deadline)
        return decode_result(result, self._kind)

    def withdraw(self) -> bool:
        """Take back what has not left yet. True if that is all of it."""
        withdrawn = [self._line.withdraw(reply) for reply in self._replies]
        return all(withdrawn)
