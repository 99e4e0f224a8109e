"""Jobs: what a host gives its writer to do.

The writer takes a job at most once; its sender may give it up only until then. The end of a job is
reported by ``on_done``, which each host provides in its own way.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Raw

from hermes_actor import limits
from hermes_actor.errors import DeadlineExceeded, LeaseLost, Unsupported
from hermes_protocol.framing import OperationError, decode_operation

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.engine.receipts import Ticket
    from hermes_protocol.operations import Operation, SqlRun, SqlStatement

__all__ = [
    "Call",
    "CopyTo",
    "ForgetClient",
    "Hold",
    "IndexBarrier",
    "Job",
    "Lease",
    "LeaseHolder",
    "LeaseStep",
    "LeaseSteps",
    "LeaseTerms",
    "Maintain",
    "OnDone",
    "Outcome",
    "Request",
    "Stop",
    "decoded",
    "lease_lost",
]


def decoded(operation: Operation[Any] | Raw) -> Operation[Any]:
    """Return *operation*, decoded if it is still as it came. Raises :class:`Unsupported`.

    Decoded, an operation can be many times as large as its bytes. So what waits is kept as bytes,
    and one at a time is decoded, when its turn comes (G8).
    """
    if not isinstance(operation, Raw):
        return operation
    try:
        return decode_operation(operation)
    except OperationError as error:
        raise Unsupported(f"this actor cannot read the operation: {error}") from None


def _never() -> bool:
    return False


class Request(NamedTuple):
    """An operation, the time after which its sender has given up, and whose it is.

    The time is of ``Environment.monotonic``. Without a ticket the caller never sends it twice.
    *is_interrupted* returns True once its sender wants its statement to end. Safe in any thread.
    """

    operation: Operation[Any] | Raw
    deadline: float = float("inf")
    ticket: Ticket | None = None
    is_interrupted: Callable[[], bool] = _never

    def decoded(self) -> Request:
        """Return the request with its operation decoded. Raises :class:`Unsupported`."""
        if not isinstance(self.operation, Raw):
            return self
        return self._replace(operation=decoded(self.operation))


class Outcome(NamedTuple):
    """The end of a request: a result with its place in the order of changes, or an error."""

    result: Any = None
    error: BaseException | None = None
    commit_no: int | None = None
    replayed: bool = False
    """True if a receipt gave the answer: the request had been applied before."""


OnDone = Callable[[Outcome], None]
"""Reports the end of a job to its host. Called once, in the thread of the writer."""


class Job:
    """Work for the writer, with a deadline for being taken."""

    __slots__ = ("_guard", "deadline", "on_done")

    def __init__(self, on_done: OnDone, deadline: float = float("inf")) -> None:
        self.on_done = on_done
        self.deadline = deadline
        # A lock is the cheapest test-and-set that two threads can share.
        self._guard = threading.Lock()

    def take(self) -> bool:
        """Claim the job; True for exactly one of the writer and the sender that gives it up."""
        return self._guard.acquire(blocking=False)

    def give_up(self, error: BaseException) -> None:
        """End the job with *error*, unless the writer has taken it."""
        if self.take():
            self.on_done(Outcome(error=error))


class Call(Job):
    """One request."""

    __slots__ = ("request",)

    def __init__(self, on_done: OnDone, request: Request) -> None:
        super().__init__(on_done, request.deadline)
        self.request = request


class IndexBarrier(Job):
    """Done when the full-text indexes have come up to a message.

    *damaged*: rebuild them first, unless the schema has another number by now. *verify*: rebuild
    them if one cannot be used.
    """

    __slots__ = ("damaged", "large", "through", "verify")

    def __init__(
        self,
        on_done: OnDone,
        deadline: float,
        through: int,
        *,
        damaged: int | None = None,
        verify: bool = False,
    ) -> None:
        super().__init__(on_done, deadline)
        self.through = through
        self.damaged = damaged
        self.verify = verify
        # Fixed when it is first asked for: texts that are written after that are not waited for.
        self.large: set[int] | None = None
        """Large texts that were there when all others had been indexed, and still are to be."""


class Maintain(Job):
    """A maintenance task, by its name; see :mod:`hermes_actor.engine.admin_tasks`.

    *is_wanted* is False once its caller has left: what the caller has given up is not begun.
    """

    __slots__ = ("expected", "is_wanted", "path", "task")

    def __init__(
        self,
        on_done: OnDone,
        deadline: float,
        task: str,
        path: str = "",
        expected: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(on_done, deadline)
        self.task = task
        self.path = path
        self.expected = expected
        self.is_wanted = is_wanted


class Hold(Maintain):
    """Keeps all other jobs waiting while one caller copies the content that it then replaces.

    Its outcome is the state. Maintenance that the caller puts here is done meanwhile. A hold that
    is done with an error has ended.
    """

    __slots__ = ("_on_state", "ended", "holder", "work")

    def __init__(
        self, on_done: OnDone, deadline: float, holder: str, is_wanted: Callable[[], bool]
    ) -> None:
        # Through _settle: an error ends the hold, whether the writer reports it or the host, which
        # gives up a job that was not taken.
        super().__init__(self._settle, deadline, "state", is_wanted=is_wanted)
        self._on_state = on_done
        self.holder = holder
        self.work: queue.SimpleQueue[Maintain | None] = queue.SimpleQueue()
        self.ended = False

    def _settle(self, outcome: Outcome) -> None:
        self._on_state(outcome)
        if outcome.error is not None:
            self.end()

    def put(self, job: Maintain) -> None:
        """Bring a piece of work. After the end it is refused, by the side that sees it."""
        self.work.put(job)
        # Checked after the put: either this side sees the end, or end() sees the job.
        if self.ended:
            self.end()

    def end(self) -> None:
        """Mark the end and refuse what came too late."""
        # Before the queue is emptied: put() does the two in the other order, so one side refuses.
        self.ended = True
        with contextlib.suppress(queue.Empty):
            while True:
                job = self.work.get_nowait()
                # None is the mark of abandon().
                if job is not None:
                    job.give_up(_hold_over())

    def abandon(self) -> None:
        """End the hold because the holder has left: other jobs go on at once."""
        # Through the queue, not by a flag: the writer sleeps in it, for up to 10 s.
        self.work.put(None)


class CopyTo(Job):
    """Copies the database to a path outside of a home that is gone."""

    __slots__ = ("target",)

    def __init__(self, on_done: OnDone, target: Path) -> None:
        super().__init__(on_done)
        self.target = target


class ForgetClient(Job):
    """Removes the receipts of a client that has said good-bye."""

    __slots__ = ("client",)

    def __init__(self, on_done: OnDone, client: bytes) -> None:
        super().__init__(on_done)
        self.client = client


class Stop(Job):
    """Has the writer finish what was given before, close the file, and end."""

    __slots__ = ()


class LeaseStep(NamedTuple):
    """One step of a lease: a statement, a commit (with its request), both, or a rollback.

    *is_interrupted* as that of a request.
    """

    statement: SqlStatement | SqlRun | Raw | None
    commit: Request | None
    on_done: OnDone
    is_interrupted: Callable[[], bool] = _never


LeaseSteps = queue.SimpleQueue[LeaseStep | None]
"""Steps that wait; ``None`` only wakes the writer."""


class LeaseTerms(NamedTuple):
    """The terms under which a client asks for a lease.

    *first* runs when the lease is granted, under the *settings* of the holder's connection
    (``None``: those of the kind of file); *seconds* is the length of a long lease, which is a
    migration if it may *pause* for a time of its own. *is_interrupted* is about *first*, as that of
    a request.
    """

    first: SqlRun | Raw | None = None
    settings: Mapping[str, int | str] | None = None
    seconds: float | None = None
    pause: float | None = None
    is_interrupted: Callable[[], bool] = _never


_SHORT = LeaseTerms()


class LeaseHolder(NamedTuple):
    """The program that holds a lease, for people."""

    name: str
    pid: int


_THIS_PROCESS = LeaseHolder("this process", os.getpid())


class Lease(Job):
    """An interactive transaction: done when it is granted, with the result of the first run of its
    terms, then a dialogue of steps.

    A lease that is done with an error has ended, whichever side ends it: its steps are refused.
    """

    __slots__ = (
        "_granted", "_is_left", "_leads", "_on_granted", "_on_step", "ended", "has_commit",
        "holder", "is_abandoned", "is_running", "reason", "since", "steps", "terms",
    )  # fmt: skip

    def __init__(
        self,
        on_done: OnDone,
        deadline: float,
        leads: Callable[[bool], None] = lambda _leads: None,
        terms: LeaseTerms = _SHORT,
        holder: LeaseHolder = _THIS_PROCESS,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        """*leads* is called with True before the lease is granted, with False when it has ended;
        *on_step* after each step that is brought, in the thread that brings it."""
        # As with Hold: an error ends the lease, whichever side reports it.
        super().__init__(self._settle, deadline)
        self.terms = terms
        self.holder = holder
        self.since = 0.0
        """Time of the grant, of the wall clock: for people."""
        self.reason = ""
        """The limit that it broke, once it has."""
        self.steps: LeaseSteps = queue.SimpleQueue()
        self._on_step = on_step
        self.ended = False
        self.is_abandoned = False
        self.is_running = False
        """True while a statement of it runs."""
        self._is_left = False
        self.has_commit = False
        """True if its commit was brought: from then on only a receipt says what became of it."""
        self._on_granted = on_done
        self._leads = leads
        self._granted = False

    def _settle(self, outcome: Outcome) -> None:
        if outcome.error is None:
            # Before the grant is reported: the first step may come at once, on another thread.
            self._granted = True
            self._leads(True)
        # Before end(): the lease is refused first, then the steps that were sent ahead.
        self._on_granted(outcome)
        if outcome.error is not None:
            self.end()

    def put(self, step: LeaseStep) -> None:
        """Bring a step. After the end it is refused, by the side that sees it."""
        if step.statement is None and step.commit is None:
            self._is_left = True
        self.steps.put(step)
        self._on_step()
        # Checked after the put: either this side sees the end, or end() sees the step.
        if self.ended:
            self._refuse_steps()

    @property
    def is_gone(self) -> bool:
        """True if its holder has left, or wants a rollback and no result of what runs."""
        return self.is_abandoned or (self._is_left and self.is_running)

    def end(self) -> None:
        """Mark the end and refuse what came too late."""
        self.ended = True
        if self._granted:
            self._leads(False)
        self._refuse_steps()

    def _refuse_steps(self) -> None:
        while True:
            try:
                step = self.steps.get_nowait()
            except queue.Empty:
                return
            if step is not None:
                step.on_done(Outcome(error=self.why_over()))

    def why_over(self) -> DeadlineExceeded:
        """Return the error for a step that comes after the end. Nothing of the lease was kept."""
        if self.is_abandoned:
            return lease_lost()
        return DeadlineExceeded(self.reason or "the transaction has ended")

    def abandon(self) -> None:
        """Interrupt what runs and roll back at once: the holder has left."""
        # The flag ends a statement that runs, at its next look; the mark wakes a writer that waits
        # for a step.
        self.is_abandoned = True
        self.steps.put(None)
        self._on_step()


def _hold_over() -> DeadlineExceeded:
    return DeadlineExceeded(
        f"changes go on again: they are held for at most {limits.HOLD_TOTAL_SECONDS:g} s, and for"
        f" {limits.HOLD_SILENT_SECONDS:g} s without a request of the holder; nothing was replaced"
    )


def lease_lost() -> LeaseLost:
    """Return the error for a lease that has ended through no fault of its holder."""
    return LeaseLost(
        "the transaction was rolled back: its connection was lost, or the actor ends or hands over"
    )
