"""The blocking client: the port of a SessionDB to the actor of its file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.core import Reply, decode_result
from hermes_actor.client.leases import Leases
from hermes_actor.client.line import Line
from hermes_actor.errors import OutcomeUnknown
from hermes_protocol.operations import result_type

if TYPE_CHECKING:
    from hermes_actor.client.port import Answer, ChangeSource, Lease
    from hermes_actor.paths import Place
    from hermes_protocol.operations import Operation

__all__ = ["Channel"]

R = TypeVar("R")


class Channel:
    """The way to one actor. Get it with :func:`hermes_actor.client.channels.share`."""

    def __init__(self, place: Place, released: Callable[[Channel], None]) -> None:
        self.place = place
        self._released = released
        self._line = Line(place)
        self._leases = Leases(self._line)

    def connect(self, patience: float) -> None:
        """Be sure that the actor serves."""
        with self._line.held:
            self._line.connected(time.monotonic() + patience)

    def submit(self, operation: Operation[R], patience: float) -> R:
        (answer,) = self.send([operation], patience)
        return cast("R", answer.result())

    def send(self, operations: Sequence[Operation[Any]], patience: float) -> list[Answer]:
        self._leases.refuse_inside()
        deadline = time.monotonic() + patience
        line, core = self._line, self._line.core
        # All before the first is numbered: one that cannot be encoded stops none half-way.
        encoded = [core.encode(operation) for operation in operations]
        answers: list[Answer] = []
        waiting: list[bytes] = []
        with line.held:
            line.connected(deadline)
            for operation, whole in zip(operations, encoded, strict=True):
                steps = [whole] if whole is not None else core.stages(operation)
                replies = []
                for step in steps:
                    while not core.has_room:
                        line.send(b"".join(waiting))
                        waiting.clear()
                        if time.monotonic() > deadline:
                            raise OutcomeUnknown("the actor takes nothing; some changes were sent")
                        line.read_or_wait(deadline)
                        line.connected(deadline)
                    reply, data = core.request(step, deadline - time.monotonic())
                    waiting.append(data)
                    replies.append(reply)
                answers.append(_Answer(line, replies, deadline, result_type(type(operation))))
            line.send(b"".join(waiting))
        return answers

    def catch_up(self, through: int, patience: float, *, damaged: int | None = None) -> None:
        self._ask(
            lambda ask: wire.CatchUp(
                ask=ask,
                through=through,
                patience=patience,
                verify=damaged is not None,  # for an actor that does not know the other yet
                damaged=damaged,
            ),
            time.monotonic() + patience,
        )

    def lease(self, patience: float) -> Lease:
        return self._leases.open(patience)

    def statistics(self) -> dict[str, Any]:
        """The status document of the actor."""
        deadline = time.monotonic() + limits.PATIENCE_SECONDS
        status = self._ask(lambda ask: wire.StatusRequest(ask=ask), deadline)
        document: dict[str, Any] = msgspec.json.decode(status)
        return document

    def subscribe(self, after: int | None, patience: float) -> ChangeSource:
        from hermes_actor.client.changes import ActorChanges  # few programs follow

        return ActorChanges(self.place, after, patience)

    def release(self) -> None:
        self._released(self)

    def close(self) -> None:
        self._line.close()

    def after_fork(self) -> None:
        """In a child: another client, without the leases of its parent."""
        self._line.after_fork()
        self._leases = Leases(self._line)

    def _ask(self, make: Callable[[int], msgspec.Struct], deadline: float) -> bytes:
        """An ask is tried again on a new connection; it changes nothing."""
        self._leases.refuse_inside()
        line = self._line
        while True:
            with line.held:
                line.connected(deadline)
                reply, data = line.core.ask(make)
                line.send(data)
            try:
                return line.wait(reply, deadline)
            except ConnectionResetError:
                continue


class _Answer:
    """The answer to one operation, when it comes; of a staged one, the first error of its parts."""

    __slots__ = ("_deadline", "_kind", "_line", "_replies")

    def __init__(self, line: Line, replies: list[Reply], deadline: float, kind: Any) -> None:
        self._line = line
        self._replies = replies
        self._deadline = deadline
        self._kind = kind

    def done(self) -> bool:
        return all(reply.done for reply in self._replies)

    def result(self) -> Any:
        result = b""
        for reply in self._replies:
            result = self._line.wait(reply, self._deadline)
        return decode_result(result, self._kind)
