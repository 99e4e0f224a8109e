"""Statements of guests, callers that bring SQL of their own, on the write connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from hermes_actor import limits
from hermes_actor.engine.authorizer import RUNS
from hermes_actor.engine.statement_limit import StatementLimit, interruptible
from hermes_actor.errors import (
    DeadlineExceeded,
    HermesActorError,
    NotAllowed,
    Unsupported,
    is_storage_failure,
)
from hermes_actor.sqlite import primary_code, sqlite3
from hermes_actor.store.guest_sql import (
    STATEMENT_ERRORS,
    RowBudget,
    counters,
    error_value,
    first_word,
    names_index,
    quoted,
    raw_text,
    run_statement,
    run_step,
)
from hermes_actor.store.rows import scalar
from hermes_protocol.operations import SqlReply

if TYPE_CHECKING:
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.index.base import Index
    from hermes_actor.engine.kinds import LeaseLimits
    from hermes_actor.sqlite import Connection
    from hermes_protocol.operations import SqlError, SqlResult, SqlRun, SqlStatement, SqlStep

__all__ = ["GuestStatements", "Retry", "RunOutcome"]


class GuestStatements:
    """Runs them inside the open transaction, within their limits."""

    def __init__(
        self,
        connection: WriteConnection,
        index: Index,
        others_wait: Callable[[], bool],
        *,
        allowed: bool,
    ) -> None:
        """*others_wait*: True if a job other than the running one waits for the writer."""
        self._connection = connection
        self._index = index
        self._others_wait = others_wait
        self._allowed = allowed
        # The schema that was looked at, and whether a trigger of it asks for changes().
        self._triggers: tuple[object, bool] = (None, False)

    def check_allowed(self) -> None:
        """Raise :class:`Unsupported` if guests may run no SQL."""
        if not self._allowed:
            raise Unsupported("SQL of clients is switched off (actor.private_sql)")

    def limit(self, end: float = float("inf")) -> StatementLimit:
        """Return the limit of a statement of its own: to *end*, and beside others for as long as a
        lease of this kind of file may take, or less (G13)."""
        leases = self._connection.kind.leases
        return StatementLimit(
            self._connection.env.monotonic,
            end,
            lambda: self._others_wait() or self._must_leave(),
            beside_others=leases.beside_others or leases.total,
        )

    def lease_limit(
        self, leases: LeaseLimits, is_gone: Callable[[], bool] = lambda: False
    ) -> StatementLimit:
        """Return the limit of a lease that begins now, whether it runs statements or pauses, until
        the guest *is_gone*."""
        waits = self._must_leave
        if leases.beside_others is not None:
            waits = lambda: self._others_wait() or self._must_leave()  # noqa: E731
        monotonic = self._connection.env.monotonic
        end = monotonic() + leases.total
        return StatementLimit(monotonic, end, waits, is_gone, leases.beside_others)

    def _must_leave(self) -> bool:
        return self._connection.leave_by < float("inf")

    def run(self, statement: SqlStatement, limit: StatementLimit, *, in_lease: bool = False) -> Any:
        """Run *statement* and return its result; *in_lease*: as a part of a lease.

        Raises :class:`DeadlineExceeded` if *limit* ended it, :class:`NotAllowed`,
        :class:`IndexBehind`, or the error of SQLite.
        """
        with self._confined(limit, statement.sql):
            self._complete_index(statement.sql)
            self._connection.authorizer.enter_guest(statement.sql, in_lease=in_lease)
            return run_statement(self._connection.conn, statement)

    def run_steps(
        self, run: SqlRun, limit: StatementLimit, retry: Retry, *, in_lease: bool
    ) -> RunOutcome:
        """Run the statements of a program's connection, up to the first that fails.

        A statement's own error is in the reply. *retry* gets each, and either returns the result of
        another try, or raises. Raises what :meth:`run` raises, if it is not about one statement:
        then nothing of the run may be kept.
        """
        self.check_allowed()
        conn = self._connection.conn
        rowids = any(_WITH_ROWID.search(step.sql) for step in run.steps)
        counts = self._asks_for_changes(run)
        if counts:
            self._prepare_changes(run.changes)
        if rowids:
            self._set_last_rowid(run.lastrowid)
        if counts:
            # Last: it leaves last_insert_rowid() alone.
            conn.execute(
                "UPDATE temp.hermes_actor_changes SET id = id WHERE id <= ?", (run.changes,)
            )
        cookie, changes, budget = _schema_cookie(conn, run), conn.total_changes, RowBudget()
        sequences = _sequences(conn, run)
        results: list[SqlResult] = []
        error: SqlError | None = None
        failed: SqlResult | None = None
        for step in run.steps:
            before = conn.total_changes
            try:
                try:
                    result = self.run_step(step, limit, budget, in_lease=in_lease)
                except sqlite3.Error as raised:
                    if isinstance(raised, HermesActorError):
                        raise
                    result = retry(step, raised)
            except HermesActorError:
                raise  # some are errors of sqlite3 as well, but none is the statement's own
            except STATEMENT_ERRORS as raised:
                if _is_storage(raised):
                    raise
                error, failed = error_value(raised), counters(conn, before)
                break
            results.append(result)
        if not rowids:
            # Of another guest, or of the writer's own tables.
            results = [structs.replace(result, lastrowid=None) for result in results]
            failed = failed and structs.replace(failed, lastrowid=None)
        schema = scalar(conn, "PRAGMA schema_version") if in_lease else None
        reply = SqlReply(
            results=results, error=error, failed=failed, open=conn.in_transaction, schema=schema
        )
        changed = (
            conn.total_changes != changes
            or cookie != _schema_cookie(conn, run)
            or sequences != _sequences(conn, run)
            or any(first_word(step.sql) in _ALWAYS_CHANGES for step in run.steps)
        )
        return RunOutcome(reply, changed)

    def run_step(
        self, step: SqlStep, limit: StatementLimit, budget: RowBudget, *, in_lease: bool
    ) -> SqlResult:
        """Run one statement of a run. Raises what :meth:`run` raises."""
        conn = self._connection.conn
        with self._confined(limit, step.sql):
            self._complete_index(step.sql)
            self._connection.authorizer.enter_guest(step.sql, RUNS, in_lease=in_lease)
            conn.text_factory = raw_text
            return run_step(conn, step, budget)

    @contextmanager
    def _confined(self, limit: StatementLimit, sql: str) -> Iterator[None]:
        """Bound what runs in the block, and forget afterwards what a guest may have changed."""
        self.check_allowed()
        conn, authorizer = self._connection.conn, self._connection.authorizer
        # A value that a statement makes up must not fill the memory before a row of it is seen.
        longest = conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.STAGED_MAX_BYTES)
        try:
            with interruptible(conn, limit, limit.is_interrupted):
                yield
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}; it was: {quoted(sql)}") from error
        finally:
            conn.text_factory = str
            conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            authorizer.leave_guest()
            # A guest may change the schema, the ids, or the index: derive all of it again. After a
            # savepoint was rolled back to, another schema may get the number of the present one.
            conn.layout_checked = False
            if first_word(sql) == "ROLLBACK":
                conn.layout = None
            self._connection.invalidate_schema()
        # What follows in this transaction must not get ids that count as indexed, nor have its
        # triggers passed over if they are not the known ones any more.
        self._index.guest_has_written()

    def _complete_index(self, sql: str) -> None:
        if names_index(sql):
            # Before the authorizer: indexing is the writer's own work.
            self._index.index_in_transaction()

    def _asks_for_changes(self, run: SqlRun) -> bool:
        """Return True if a statement of *run*, or a trigger of the file, asks for ``changes()``."""
        conn = self._connection.conn
        if any(_CHANGES.search(step.sql) for step in run.steps):
            return True
        # Looked for once in each schema: a change may fire any trigger.
        version = (conn, scalar(conn, "PRAGMA schema_version"))
        if self._triggers[0] != version:
            self._triggers = (version, bool(scalar(conn, _COUNTING_TRIGGERS)))
        return self._triggers[1]

    def _prepare_changes(self, changes: int) -> None:
        """Have rows of which as many can be changed as the connection of the guest has.

        Raises :class:`NotAllowed` for very many. All guests share one connection, and its
        ``changes()`` is that of its last statement, sent by any of them.
        """
        if changes > _MOST_CHANGES:
            raise NotAllowed(
                f"changes() is {changes} here: in a statement that writes, or in a trigger, it may"
                f" be at most {_MOST_CHANGES}"
            )
        conn = self._connection.conn
        conn.execute(
            "CREATE TEMP TABLE IF NOT EXISTS hermes_actor_changes (id INTEGER PRIMARY KEY)"
        )
        there = scalar(conn, "SELECT coalesce(max(id), 0) FROM temp.hermes_actor_changes")
        if there < changes:
            conn.execute(
                "WITH RECURSIVE n (id) AS (SELECT ? UNION ALL SELECT id + 1 FROM n WHERE id < ?)"
                " INSERT INTO temp.hermes_actor_changes SELECT id FROM n",
                (there + 1, changes),
            )

    def _set_last_rowid(self, lastrowid: int) -> None:
        """Have ``last_insert_rowid()`` say what it says on the connection of the guest.

        All guests share one connection, and with it the value: a statement must neither use nor
        return that of another guest.
        """
        conn = self._connection.conn
        if scalar(conn, "SELECT last_insert_rowid()") == lastrowid:
            return
        # There is no other way to set it. In the temporary database, of which no file is synced.
        conn.execute("CREATE TEMP TABLE IF NOT EXISTS hermes_actor_rowid (id INTEGER PRIMARY KEY)")
        conn.execute("INSERT OR REPLACE INTO temp.hermes_actor_rowid VALUES (?)", (lastrowid,))
        conn.execute("DELETE FROM temp.hermes_actor_rowid")


Retry = Callable[["SqlStep", sqlite3.Error], "SqlResult"]
"""Another way to run a step that has failed. Raises the error if there is none."""


class RunOutcome(NamedTuple):
    """The reply to a run, and whether it has changed anything in the file."""

    reply: SqlReply
    changed: bool


_WITH_ROWID = re.compile(r"insert|replace|update|delete", re.IGNORECASE)
"""A statement without these words neither sets nor uses ``last_insert_rowid()``, and fires no
trigger that does."""

_CHANGES = re.compile(r"\bchanges\s*\(", re.IGNORECASE)

_COUNTING_TRIGGERS = (
    "SELECT 1 FROM main.sqlite_master WHERE type = 'trigger' AND sql LIKE '%changes%' LIMIT 1"
)

_MOST_CHANGES = 100_000
"""As many rows the writer keeps for it at most, in memory."""

_ALWAYS_CHANGES = frozenset({"PRAGMA", "ANALYZE", "REINDEX"})
"""Changes that no counter shows. A pragma that only asks is among them: it costs a commit."""

_CHANGES_SCHEMA = frozenset({"CREATE", "DROP", "ALTER"})


def _schema_cookie(conn: Connection, run: SqlRun) -> int:
    """Return a number that is another one after *run* has changed the schema."""
    if any(first_word(step.sql) in _CHANGES_SCHEMA for step in run.steps):
        return scalar(conn, "PRAGMA schema_version")  # type: ignore[no-any-return]
    return 0


_MAY_IGNORE = re.compile(r"\b(?:ignore|conflict)\b", re.IGNORECASE)


def _sequences(conn: Connection, run: SqlRun) -> list[Any]:
    """Return the ids that AUTOINCREMENT has given, if a statement of *run* may use one up and
    change no row."""
    if any(_MAY_IGNORE.search(step.sql) for step in run.steps) and scalar(
        conn, "SELECT 1 FROM main.sqlite_master WHERE name = 'sqlite_sequence'"
    ):
        return conn.execute("SELECT * FROM main.sqlite_sequence").fetchall()
    return []


def _is_storage(error: BaseException) -> bool:
    """Return True if the file or the disk failed, and not the statement."""
    # Damage may be in a table that only this guest uses: it is for the guest to see.
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    return is_storage_failure(error) and primary_code(error) not in damage
