"""Access to a server: a pool that one process shares, retries, and deadlines."""

from __future__ import annotations

import contextlib
import random
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import IntegrityError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from hermes_actor.errors import (
    Closed,
    ConstraintFailed,
    HermesActorError,
    OutcomeUnknown,
    RequestError,
)
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.dialect import COMMITTED, Classification, RetryAction
from hermes_actor.providers.sql.error_classes import pool_in_use
from hermes_actor.providers.sql.receipts import (
    SESSIONS,
    Served,
    Ticket,
    Tickets,
    apply_and_note,
    apply_once,
    sweep,
    sweep_is_due,
)
from hermes_actor.system import fork
from hermes_actor.system.shared import SharedObjects

if TYPE_CHECKING:
    from hermes_actor.providers.sql.dialect import ServerDialect

__all__ = ["Database", "Outcome"]

R = TypeVar("R")

_FIRST_PAUSE_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 1.0
_OPEN_SECONDS = 5.0
"""Longest wait of an opening for a server that does not answer: about as long as a restart."""


class Outcome(NamedTuple):
    """Result or error of one change."""

    result: Any = None
    error: HermesActorError | None = None


class _Try:
    """Certainty about a change over several attempts.

    An attempt whose commit got no answer leaves the change *uncertain*. A later attempt settles
    that once it has inserted or found the receipt, and not before: one that waited for the receipt
    in vain, because the first transaction still runs, proves nothing.
    """

    __slots__ = ("before", "uncertain")

    def __init__(self) -> None:
        self.uncertain = self.before = False

    def begin(self) -> None:
        """Start another attempt; an uncertainty of earlier ones is kept."""
        self.before = self.uncertain

    def commits(self) -> None:
        """Note that the receipt is inserted: from here a commit may happen without an answer."""
        self.before, self.uncertain = False, True

    def may_commit(self) -> None:
        """Note that a commit may happen without an answer; doubts about earlier ones stay."""
        self.uncertain = True

    def undone(self) -> None:
        """Note that the server rolled this attempt back; doubts about earlier ones stay."""
        self.uncertain = self.before


class Forked(Protocol):
    """An object with a thread or a lock that does not exist in a forked child."""

    def after_fork(self) -> None:
        """Replace, in a forked child, what only works in the parent."""
        ...


class Database:
    """The store on a server that all objects of this process share."""

    def __init__(
        self,
        dialect: ServerDialect,
        engine: Engine,
        *,
        owned: bool = True,
        key: tuple[Any, ...] | None = None,
        served: Served = SESSIONS,
    ) -> None:
        """Wrap *engine*; if *owned*, :meth:`close` disposes of it. A shared one has a *key*."""
        self.served = served
        self.dialect = dialect
        self.key = key
        self.engine = engine
        self.tickets = Tickets()
        self.ports: weakref.WeakSet[Forked] = weakref.WeakSet()
        """State that begins again, as the connections do, in a forked child."""
        self._owned = owned
        self._closed = False
        fork.notify(self)

    def open(self, timeout: float) -> None:
        """Connect, and create or update the schema.

        Raises the errors of either; a server that does not answer is retried for at most 5 s.
        """
        deadline = time.monotonic() + min(timeout, _OPEN_SECONDS)
        self._try(lambda: self.served.ensure(self.engine, self.dialect), deadline, _Try())

    def close(self) -> None:
        """Refuse later calls with :class:`Closed`, and close the pool if it is owned."""
        self._closed = True
        if self._owned:
            self.engine.dispose()

    def after_fork(self) -> None:
        """Drop, in a forked child, the connections and the client id of the parent."""
        self.engine.dispose(close=False)
        self.tickets.after_fork()
        for port in list(self.ports):
            port.after_fork()

    def read(
        self, function: Callable[..., R], arguments: tuple[Any, ...], timeout: float, one: bool
    ) -> R:
        """Run *function* on a connection and return its result; retry until the timeout.

        With *one* it is a single statement and needs no transaction; otherwise all statements see
        one snapshot. For a caller who waits less than the connection does, the server ends each
        statement: :class:`DeadlineExceeded`.
        """
        deadline = time.monotonic() + timeout

        def attempt() -> R:
            with self.engine.connect() as conn:
                if self._is_short(deadline):
                    self.dialect.begin_snapshot(conn)
                    with self.dialect.limited_reads(conn, max(deadline - time.monotonic(), 0.001)):
                        return function(ServerConnection(conn, self.dialect), *arguments)
                if one:
                    conn = self.dialect.for_one_read(conn)
                else:
                    self.dialect.begin_snapshot(conn)
                return function(ServerConnection(conn, self.dialect), *arguments)

        return self._try(attempt, deadline, _Try())

    def write(self, tickets: Sequence[Ticket], deadline: float) -> list[Outcome]:
        """Apply changes in order, in one transaction, each at most once; return their outcomes.

        A change that is refused does not undo the others. If all fail, raises for a single change;
        of several, each outcome has the error.
        """
        known = _Try()

        def attempt() -> list[Outcome]:
            known.begin()
            if len(tickets) == 1 and not self._is_short(deadline):
                outcome = self._write_at_once(tickets[0], known)
                if outcome is None and self.dialect.notes_last(tickets[0]):
                    outcome = self._write_and_note(tickets[0], deadline, known)
                if outcome is not None:
                    return [outcome]
            with self.engine.connect() as conn:
                with conn.begin() as transaction:
                    self._limit(conn, deadline)
                    outcomes = self._apply(ServerConnection(conn, self.dialect), conn, tickets)
                    known.commits()
                    transaction.commit()
                conn.info[COMMITTED] = True
                known.uncertain = False
                return outcomes

        try:
            outcomes = self._try(attempt, deadline, known)
        except HermesActorError as error:
            if len(tickets) > 1:
                return [Outcome(error=error)] * len(tickets)
            raise
        self._sweep(tickets)
        return outcomes

    def _write_at_once(self, ticket: Ticket, known: _Try) -> Outcome | None:
        """Apply a change by one statement; ``None`` if that is not possible: nothing was changed.

        The general way then says why: it finds the receipt, or raises the error.
        """
        change = self.dialect.one_statement(ticket)
        if change is None:
            return None
        with self.engine.connect() as conn:
            conn = conn.execution_options(isolation_level="AUTOCOMMIT")
            known.may_commit()
            try:
                row = conn.execute(*change).first()
            except StatementError as error:
                # The server has answered, and so it has rolled the statement back; all else is in
                # doubt until the receipt is there, or is found.
                if self._classify(error).action is not RetryAction.RECONNECT:
                    known.undone()
                if isinstance(error, IntegrityError):
                    return None
                raise
            if row is None:
                known.undone()
                return None
            known.uncertain = False
            return Outcome(row[0])

    def _write_and_note(self, ticket: Ticket, deadline: float, known: _Try) -> Outcome | None:
        """Apply a change and insert its receipt after it, with the result in it; ``None`` if
        either is refused: nothing was changed, and the general way says why.

        A receipt that is there, or comes with an earlier attempt that is still under way, refuses
        this one as a whole: its key is unique, whichever statement meets it.
        """
        with self.engine.connect() as conn:
            with conn.begin() as transaction:
                self._limit(conn, deadline)
                try:
                    result = apply_and_note(
                        ServerConnection(conn, self.dialect), ticket, self.served
                    )
                except (IntegrityError, ConstraintFailed):
                    transaction.rollback()
                    return None
                known.commits()
                transaction.commit()
            conn.info[COMMITTED] = True
            known.uncertain = False
            return Outcome(result)

    def _apply(
        self, server: ServerConnection, conn: Connection, tickets: Sequence[Ticket]
    ) -> list[Outcome]:
        if len(tickets) == 1:
            return [Outcome(apply_once(server, tickets[0], self.served))]
        outcomes = []
        for ticket in tickets:
            try:
                with conn.begin_nested():
                    outcomes.append(Outcome(apply_once(server, ticket, self.served)))
            except (StatementError, RequestError) as error:
                found = self._classify(error)
                if found.action is not RetryAction.RAISE or not isinstance(
                    found.error, RequestError
                ):
                    raise
                outcomes.append(Outcome(error=found.error))
        return outcomes

    def _sweep(self, tickets: Sequence[Ticket]) -> None:
        if any(sweep_is_due(ticket) for ticket in tickets):
            with contextlib.suppress(SQLAlchemyError), self.engine.begin() as conn:
                sweep(ServerConnection(conn, self.dialect))

    def _limit(self, conn: Connection, deadline: float) -> None:
        left = max(deadline - time.monotonic(), 0.001)
        self.dialect.limit_statements(conn, left if self._is_short(deadline) else None)

    def _is_short(self, deadline: float) -> bool:
        """Return True for a caller who waits less than the limit that every connection has."""
        left = deadline - time.monotonic()
        return left < 0.9 * self.dialect.settings.statement_timeout_seconds

    def _classify(self, error: BaseException) -> Classification:
        if isinstance(error, StatementError) and isinstance(error.orig, HermesActorError):
            error = error.orig
        if isinstance(error, HermesActorError):
            return Classification(RetryAction.RAISE, error)
        return pool_in_use() if isinstance(error, PoolTimeout) else self.dialect.classify(error)

    def _try(self, attempt: Callable[[], R], deadline: float, known: _Try) -> R:
        pause, undone = _FIRST_PAUSE_SECONDS, 0
        while True:
            if self._closed:
                raise Closed("this SessionDB is closed")
            try:
                return attempt()
            except (StatementError, PoolTimeout) as error:
                found = self._classify(error)
                cause = getattr(error, "orig", None) or error
                _let_go(error)
            if found.action is RetryAction.RETRY:
                known.undone()
                undone += 1
            late = time.monotonic() + pause >= deadline
            if found.action is RetryAction.RAISE or late or (found.once and undone > 1):
                # A refusal comes after the note, which an earlier try would have been found by.
                if known.uncertain and not isinstance(found.error, RequestError):
                    raise OutcomeUnknown(
                        f"the connection was lost while the change was committed: {found.error}"
                    ) from cause
                raise found.error from cause
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _let_go(error: BaseException | None) -> None:
    """Free what the frames of a failed try hold.

    Drivers leave the sockets of refused connections there, in circles that only the garbage
    collector breaks: a process that waits for its server would run out of descriptors before.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


_databases: SharedObjects[tuple[Any, ...], Database] = SharedObjects()
"""The databases of this process, by URL and settings."""


def share(url: str, dialect: ServerDialect, timeout: float, served: Served = SESSIONS) -> Database:
    """Return the open database of *url* that this process shares; :func:`release` ends the use."""
    key = (url, type(dialect), dialect.settings, served.name)
    database = _databases.acquire(
        key, lambda: Database(dialect, dialect.engine(url), key=key, served=served)
    )
    try:
        database.open(timeout)
    except BaseException:
        release(database)
        raise
    return database


def release(database: Database) -> None:
    """End one use of *database*; the last one closes it."""
    if database.key is None or _databases.release(database.key, database):
        database.close()
