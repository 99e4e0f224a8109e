"""What a host gives its writer to do.

A job is taken by the writer at most once: whoever waits for it may give it up only until then. Its
end is told by ``finish``, which each host gives in its own way.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Raw

from hermes_actor import limits
from hermes_actor.errors import DeadlineExceeded, Unsupported
from hermes_protocol.framing import OperationError, decode_operation

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.engine.receipts import Ticket
    from hermes_protocol.operations import Operation, SqlStatement

__all__ = [
    "Call",
    "CatchUp",
    "Command",
    "Finish",
    "Forget",
    "Hold",
    "Job",
    "Lease",
    "Maintain",
    "Outcome",
    "Request",
    "Rescue",
    "Stop",
    "decoded",
    "lease_over",
]


def decoded(operation: Operation[Any] | Raw) -> Operation[Any]:
    """An operation that is perhaps still as it came. Raises :class:`Unsupported`.

    Decoded, an operation can be many times as large as its bytes. So what waits is kept as bytes,
    and one at a time is decoded, when its turn comes (G8).
    """
    if not isinstance(operation, Raw):
        return operation
    try:
        return decode_operation(operation)
    except OperationError as error:
        raise Unsupported(f"this actor cannot read the operation: {error}") from None


class Request(NamedTuple):
    """An operation, the time after which nobody wants it any more, and whose it is.

    The time is of ``Seams.monotonic``. Without a ticket the caller never sends it twice.
    """

    operation: Operation[Any] | Raw
    deadline: float = float("inf")
    ticket: Ticket | None = None

    def decoded(self) -> Request:
        """The request with its operation decoded. Raises :class:`Unsupported`."""
        if not isinstance(self.operation, Raw):
            return self
        return Request(decoded(self.operation), self.deadline, self.ticket)


class Outcome(NamedTuple):
    """What became of a request: a result with its place in the order of changes, or an error."""

    result: Any = None
    error: BaseException | None = None
    commit_no: int | None = None
    replayed: bool = False


Finish = Callable[[Outcome], None]
"""How a host learns the end of a job. Called once, in the thread of the writer."""


class Job:
    """Something for the writer, with a deadline for being taken."""

    __slots__ = ("_guard", "deadline", "finish")

    def __init__(self, finish: Finish, deadline: float = float("inf")) -> None:
        self.finish = finish
        self.deadline = deadline
        self._guard = threading.Lock()

    def take(self) -> bool:
        """Claim the job: true for exactly one of the writer and the one who gives it up."""
        return self._guard.acquire(blocking=False)

    def give_up(self, error: BaseException) -> None:
        """Finish the job with *error*, unless the writer has taken it."""
        if self.take():
            self.finish(Outcome(error=error))


class Call(Job):
    """One request."""

    __slots__ = ("request",)

    def __init__(self, finish: Finish, request: Request) -> None:
        super().__init__(finish, request.deadline)
        self.request = request


class CatchUp(Job):
    """Bring the full-text indexes up to a message.

    *damaged*: rebuild them first, unless the schema has another number by now. *verify*: rebuild
    them if one cannot be used.
    """

    __slots__ = ("damaged", "large", "through", "verify")

    def __init__(
        self,
        finish: Finish,
        deadline: float,
        through: int,
        *,
        damaged: int | None = None,
        verify: bool = False,
    ) -> None:
        super().__init__(finish, deadline)
        self.through = through
        self.damaged = damaged
        self.verify = verify
        self.large: set[int] | None = None
        """Large texts that were there when all others had been indexed, and still are to be."""


class Maintain(Job):
    """A piece of maintenance, by its name; see ``engine.maintenance``.

    *is_wanted* tells whether its caller is still there: what the caller has given up is not begun.
    """

    __slots__ = ("expected", "is_wanted", "path", "task")

    def __init__(
        self,
        finish: Finish,
        deadline: float,
        task: str,
        path: str = "",
        expected: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(finish, deadline)
        self.task = task
        self.path = path
        self.expected = expected
        self.is_wanted = is_wanted


class Hold(Maintain):
    """Keep all other jobs waiting while one caller copies the content that it then replaces.

    Its finish gives the state. Maintenance that the caller puts here is done meanwhile. A hold that
    is finished with an error has ended.
    """

    __slots__ = ("_finish", "ended", "holder", "work")

    def __init__(
        self, finish: Finish, deadline: float, holder: str, is_wanted: Callable[[], bool]
    ) -> None:
        super().__init__(self._settle, deadline, "state", is_wanted=is_wanted)
        self._finish = finish
        self.holder = holder
        self.work: queue.SimpleQueue[Maintain | None] = queue.SimpleQueue()
        self.ended = False

    def _settle(self, outcome: Outcome) -> None:
        self._finish(outcome)
        if outcome.error is not None:
            self.end()

    def put(self, job: Maintain) -> None:
        """Bring a piece of work. After the end it is refused, by the side that sees it."""
        self.work.put(job)
        if self.ended:
            self.end()

    def end(self) -> None:
        """Mark the end and refuse what came too late."""
        self.ended = True
        with contextlib.suppress(queue.Empty):
            while True:
                job = self.work.get_nowait()
                if job is not None:
                    job.give_up(_hold_over())

    def abandon(self) -> None:
        """The holder is gone: others go on at once."""
        self.work.put(None)


class Rescue(Job):
    """Copy the database to a path outside of a home that is gone."""

    __slots__ = ("target",)

    def __init__(self, finish: Finish, target: Path) -> None:
        super().__init__(finish)
        self.target = target


class Forget(Job):
    """A client has said good-bye: its receipts may go."""

    __slots__ = ("client",)

    def __init__(self, finish: Finish, client: bytes) -> None:
        super().__init__(finish)
        self.client = client


class Stop(Job):
    """Finish what was given before, close, and end."""

    __slots__ = ()


class Command(NamedTuple):
    """One step of a lease: a statement, a commit (with its request), or a rollback."""

    statement: SqlStatement | Raw | None
    commit: Request | None
    finish: Finish


class Lease(Job):
    """An interactive transaction: finished when it is granted, then a dialogue of commands.

    A lease that is finished with an error has ended, whoever finishes it: its commands are refused.
    """

    __slots__ = ("_finish", "_granted", "_leads", "commands", "ended", "is_abandoned")

    def __init__(
        self,
        finish: Finish,
        deadline: float,
        leads: Callable[[bool], None] = lambda _leads: None,
    ) -> None:
        """*leads* is called with true before the lease is granted, with false when it has ended."""
        super().__init__(self._settle, deadline)
        self.commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self.ended = False
        self.is_abandoned = False
        self._finish = finish
        self._leads = leads
        self._granted = False

    def _settle(self, outcome: Outcome) -> None:
        if outcome.error is None:
            self._granted = True
            self._leads(True)
        self._finish(outcome)
        if outcome.error is not None:
            self.end()

    def put(self, command: Command) -> None:
        """Bring a command. After the end it is refused, by whoever of the two sides sees it."""
        self.commands.put(command)
        if self.ended:
            self._refuse_commands()

    def end(self) -> None:
        """Mark the end and refuse what came too late."""
        self.ended = True
        if self._granted:
            self._leads(False)
        self._refuse_commands()

    def _refuse_commands(self) -> None:
        while True:
            try:
                command = self.commands.get_nowait()
            except queue.Empty:
                return
            if command is not None:
                command.finish(Outcome(error=lease_over()))

    def abandon(self) -> None:
        """The holder is gone: interrupt what runs, and roll back at once."""
        self.is_abandoned = True
        self.commands.put(None)


def _hold_over() -> DeadlineExceeded:
    return DeadlineExceeded(
        f"changes go on again: they are held for at most {limits.HOLD_TOTAL_SECONDS:g} s, and for"
        f" {limits.HOLD_SILENT_SECONDS:g} s without a sign of the holder; nothing was replaced"
    )


def lease_over() -> DeadlineExceeded:
    """The error of whoever uses a lease after its end. Nothing of the lease was kept."""
    return DeadlineExceeded(
        f"the transaction was rolled back: it may take {limits.LEASE_TOTAL_SECONDS:g} s in all"
        f" and pause for {limits.LEASE_IDLE_SECONDS:g} s, and it ends"
        f" {limits.STATEMENT_BESIDE_OTHERS_SECONDS:g} s after others begin to wait"
    )
