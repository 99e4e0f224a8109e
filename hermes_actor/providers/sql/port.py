"""A server as the writer of a SessionDB: what the actor is for a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from hermes_actor.errors import DeadlineExceeded, Unsupported
from hermes_actor.providers.sql.change_stream import ServerChanges
from hermes_actor.providers.sql.database import Database, release
from hermes_protocol.operations import Operation

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import Answer
    from hermes_actor.providers.sql.receipts import Ticket

__all__ = ["ServerPort", "no_private_sql"]

R = TypeVar("R")

_WRITTEN_AT_ONCE = 64
"""Changes of a pipeline that share a transaction."""


def no_private_sql() -> NoReturn:
    """Raise :class:`Unsupported`: a server runs no statements written for SQLite."""
    raise Unsupported(
        "this store is on a server: it takes no SQL of SQLite; use its methods, or connect to the"
        " server with a client of its own"
    )


class ServerPort:
    """Writer of a store on a server; applies changes in the order in which it gets them.

    A call that waits runs in its own thread. Changes of a pipeline are written by one background
    thread, which the first of them starts; later calls wait for them.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.after_fork()
        database.ports.add(self)

    def after_fork(self) -> None:
        """Start afresh in a forked child, which has no thread and no change of the parent."""
        self._guard = threading.Lock()
        self._queue: SimpleQueue[_Sent | None] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._last: Future[Any] | None = None

    def submit(self, operation: Operation[R], timeout: float) -> R:
        """Apply *operation* after all that pipelines sent before; return its result once committed.

        Raises :class:`DeadlineExceeded` if those take longer than *timeout*.
        """
        deadline = time.monotonic() + timeout
        ticket = self.database.tickets.issue(operation)
        self._wait_for(self._last, timeout)
        (outcome,) = self.database.write([ticket], deadline)
        return cast("R", outcome.result)

    @staticmethod
    def _wait_for(last: Future[Any] | None, timeout: float) -> None:
        """Wait until what a pipeline has sent before is applied."""
        if last is not None and not last.done():
            try:
                last.exception(timeout=timeout)
            except TimeoutError:
                raise DeadlineExceeded("changes of a pipeline were still being written") from None

    def send(self, operations: Sequence[Operation[Any]], timeout: float) -> list[Answer]:
        """Queue operations for the background thread; return their answers without waiting.

        They are committed in this order, up to 64 in one transaction.
        """
        deadline = time.monotonic() + timeout
        tickets = [self.database.tickets.issue(operation) for operation in operations]
        sent = [_Sent(ticket, deadline) for ticket in tickets]
        with self._guard:
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, daemon=True, name="pipeline")
                self._writer.start()
            for one in sent:
                self._queue.put(one)
            if sent:
                self._last = sent[-1].answer
        return [cast("Answer", one.answer) for one in sent]

    def catch_up(self, through: int, timeout: float, *, damaged: int | None = None) -> None:
        """Return at once: the indexes of a server are part of its transactions."""

    def lease(self, timeout: float) -> NoReturn:
        """Raise :class:`Unsupported`: there are no interactive transactions on a server."""
        no_private_sql()

    def statistics(self) -> dict[str, Any]:
        """Return mode, durability with its settings, and the state of the pool."""
        dialect = self.database.dialect
        return {
            "mode": dialect.name,
            "durability": dialect.capabilities().durability,
            **dialect.durability_settings(),
            "pool": self.database.engine.pool.status(),
        }

    def newest_change(self, timeout: float) -> int:
        """Return the ``commit_no`` of the newest change that every follower has, 0 without any."""
        newest: int = self.database.read(self.database.dialect.newest_change, (), timeout, False)
        return newest

    def subscribe(self, after: int | None, timeout: float) -> ServerChanges:
        """Return the changes after ``commit_no`` *after*; ``None``: from now on."""
        return ServerChanges(self.database, after, timeout)

    def release(self) -> None:
        """Write what pipelines have sent, then end this use of the shared database."""
        with self._guard:
            writer, self._writer = self._writer, None
        if writer is not None:
            self._queue.put(None)
            writer.join()
        release(self.database)

    def _write(self) -> None:
        """Run the background thread: take what waits, up to a bound, into one transaction."""
        while True:
            taken = [self._queue.get()]
            while len(taken) < _WRITTEN_AT_ONCE and not self._queue.empty():
                taken.append(self._queue.get())
            batch = [one for one in taken if one is not None]
            if batch:
                self._write_batch(batch)
            if len(batch) < len(taken):
                return

    def _write_batch(self, batch: list[_Sent]) -> None:
        try:
            deadline = min(one.deadline for one in batch)
            outcomes = self.database.write([one.ticket for one in batch], deadline)
        except BaseException as error:
            for one in batch:
                one.answer.set_exception(error)
            return
        for one, outcome in zip(batch, outcomes, strict=True):
            if outcome.error is not None:
                one.answer.set_exception(outcome.error)
            else:
                one.answer.set_result(outcome.result)


class _Sent:
    """A queued change of a pipeline, with its deadline and its answer."""

    __slots__ = ("answer", "deadline", "ticket")

    def __init__(self, ticket: Ticket, deadline: float) -> None:
        self.ticket = ticket
        self.deadline = deadline
        self.answer: Future[Any] = Future()
