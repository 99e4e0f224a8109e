"""The interfaces between a SessionDB and its store, whichever process writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from hermes_actor.store.queries import Query
    from hermes_protocol.messages import Changed, Gap
    from hermes_protocol.operations import Operation, SqlReply, SqlResult, SqlRun, SqlStatement

__all__ = [
    "Answer",
    "AsyncAnswer",
    "AsyncChangeStream",
    "AsyncPort",
    "ChangeStream",
    "IndexOwner",
    "Lease",
    "ReaderPort",
    "SqlLease",
    "SqlPort",
    "WriterPort",
]

P = ParamSpec("P")
R = TypeVar("R")


# Protocols and not base classes: an actor's client, the embedded writer and the ports of servers
# have the same methods and no code in common.
class Lease(Protocol):
    """One interactive transaction of the writer. Ends by commit or rollback, or by its limits."""

    def execute(self, statement: SqlStatement) -> SqlResult:
        """Run one statement in the transaction and return its rows. Raises its typed error."""
        ...

    def commit(self) -> None:
        """Return when it is committed and synced. The ``executed`` of an error says if it was."""
        ...

    def rollback(self) -> None:
        """Undo the transaction, and let other writers go on."""
        ...


class Answer(Protocol):
    """The answer to one operation, when it comes."""

    def done(self) -> bool:
        """Return True if :meth:`result` would not wait."""
        ...

    def result(self) -> Any:
        """Wait for it; return the result, or raise the error."""
        ...


# take() and wait() apart, and only wait() waits: a wait that is cancelled or interrupted cannot
# lose a change that was already taken.
class ChangeStream(Protocol):
    """The changes of a store, one by one. One thread takes and waits; any may wake and close."""

    def take(self) -> Changed | Gap | None:
        """Return the next change, if it is there. Raises :class:`Closed` after the end."""
        ...

    def wait(self, seconds: float | None) -> None:
        """Wait until there may be something to take, it was woken, or the time is over."""
        ...

    def wake(self) -> None:
        """Have :meth:`wait` return."""
        ...

    def close(self) -> None:
        """End; a caller in :meth:`wait` is woken."""
        ...


class IndexOwner(Protocol):
    """The writer, as far as a search needs it."""

    def catch_up(self, through: int, timeout: float, *, damaged: int | None = None) -> None:
        """Return when both full-text indexes cover all messages up to *through*.

        *damaged*: a search has found one of them damaged, under this number of the schema; they
        are rebuilt first, unless the schema has changed since.
        """
        ...


class WriterPort(IndexOwner, Protocol):
    """The part of a writer that a SessionDB needs. Safe to use from any thread."""

    def submit(self, operation: Operation[R], timeout: float) -> R:
        """Have *operation* applied; its result once it is committed and synced."""
        ...

    def send(self, operations: Sequence[Operation[Any]], timeout: float) -> list[Answer]:
        """Send several operations, in order, without waiting for any."""
        ...

    def lease(self, timeout: float) -> Lease:
        """Begin an interactive transaction. Raises when this thread already holds one."""
        ...

    def release(self) -> None:
        """End this use of the port."""
        ...

    def statistics(self) -> dict[str, Any]:
        """Return the status document of the owner."""
        ...

    def subscribe(self, after: int | None, timeout: float) -> ChangeStream:
        """Return the changes after ``commit_no`` *after*, or from now on."""
        ...


class SqlLease(Protocol):
    """The open transaction of a program's connection in the writer."""

    reply: SqlReply | None
    """The reply to the run with which it was opened."""

    def run(self, run: SqlRun) -> SqlReply:
        """Run statements in the transaction; an error of their own is in the reply.

        Raises :class:`LeaseLost` if the transaction went with the connection or the actor: the same
        statements can be run again in another one. Raises :class:`DeadlineExceeded` if it broke a
        limit of its own. Nothing of it was executed then.
        """
        ...

    def run_and_commit(self, last: SqlRun) -> SqlReply:
        """Run *last*, then commit as :meth:`commit` does, in one step where that is possible.

        With an error of a statement in the reply everything was rolled back.
        """
        ...

    def commit(self) -> None:
        """Return when it is committed and synced. The ``executed`` of an error says if it was.

        Raises :class:`LeaseLost` and :class:`DeadlineExceeded` as :meth:`run` does.
        """
        ...

    def rollback(self) -> None:
        """Undo the transaction. Raises as :meth:`run` if it has ended, and was undone, before."""
        ...

    def give_up(self) -> None:
        """Undo what is not committed, without waiting for the writer."""
        ...

    def interrupt(self) -> None:
        """Have the statement that runs end, as SQLite's interrupt ends it. Safe in any thread."""
        ...


class SqlPort(Protocol):
    """The writer, as connections of programs use it. Safe to use from any thread.

    A thread may have several connections: the second one that writes waits for the first.
    """

    def run(self, run: SqlRun, timeout: float) -> SqlReply:
        """Run statements as one change, exactly once; an error of their own is in the reply.

        Raises :class:`DeadlineExceeded` if the writer could not begin in time, or if a statement
        was interrupted, and the typed errors of the storage.
        """
        ...

    def open_lease(
        self,
        settings: Mapping[str, int | str],
        timeout: float,
        *,
        first: SqlRun | None = None,
        seconds: float | None = None,
        pause: float | None = None,
        begun: list[SqlLease] | None = None,
    ) -> SqlLease:
        """Begin a transaction, and run *first* in it at once.

        Raises :class:`DeadlineExceeded` if the writer was not free in time. *seconds* asks for a
        long transaction, which with *pause* is a migration. It is appended to *begun* first:
        whatever is raised, also on the way back, the caller can give it up.
        """
        ...


class ReaderPort(Protocol):
    """The reads of a store that a SessionDB needs. Safe to use from any thread."""

    def query(self, query: Query[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer *query* from a state that has every change acknowledged before the call."""
        ...

    def close(self) -> None:
        """Stop answering: later calls raise :class:`Closed`. Calling it again is harmless."""
        ...


class AsyncAnswer(Protocol):
    """The answer to one operation, when it comes."""

    def done(self) -> bool:
        """Return True if :meth:`wait` would not wait."""
        ...

    async def wait(self) -> Any:
        """Return the result, or raise the error. Cancelling the wait does not cancel the change."""
        ...


class AsyncChangeStream(Protocol):
    """The changes of a store, for one task."""

    def take(self) -> Changed | Gap | None:
        """Return the next change, if it is there. Raises :class:`Closed` after the end."""
        ...

    async def wait(self, seconds: float | None) -> None:
        """Wait until there may be something to take, or the time is over."""
        ...

    def close(self) -> None:
        """End; a caller in :meth:`wait` is woken."""
        ...


class AsyncPort(Protocol):
    """The writer of a store, as an asynchronous pipeline uses it."""

    async def send(
        self, operations: Sequence[Operation[Any]], timeout: float
    ) -> Sequence[AsyncAnswer]:
        """Send several operations, in order, without waiting for their answers."""
        ...
