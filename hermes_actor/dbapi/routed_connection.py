"""The place of a statement: the connection of the program, or the actor.

Every statement is first tried here. SQLite itself then says what it is: reads, temporary tables,
``CREATE … IF NOT EXISTS`` of what exists and most pragmas simply run; what writes to the file fails
with SQLITE_READONLY before anything has happened, and goes to the actor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from hermes_actor.dbapi import pragmas
from hermes_actor.dbapi.cursor import Cursor
from hermes_actor.dbapi.errors import from_actor, is_readonly, not_supported
from hermes_actor.dbapi.held_statements import may_wait
from hermes_actor.dbapi.lease_connection import LeaseConnection
from hermes_actor.dbapi.parameters import Bound, bind, step
from hermes_actor.dbapi.presentation import stored
from hermes_actor.dbapi.private_objects import ask
from hermes_actor.dbapi.requests import TriedRows, chunks, count_together
from hermes_actor.dbapi.statements import (
    CONTROL,
    DML,
    begins_writing,
    ends_transaction,
    may_run_anywhere,
    split,
    words,
)
from hermes_actor.dbapi.sure_statements import is_small, schema_version
from hermes_actor.dbapi.transaction import WriteTransaction
from hermes_actor.sqlite import sqlite3
from hermes_actor.system.fork import inside
from hermes_protocol.operations import SqlReply, SqlResult, SqlStep

__all__ = ["RoutedConnection"]

_OBJECTS = (
    "SELECT 1 FROM main.sqlite_master WHERE name NOT LIKE 'hermes~_actor~_%' ESCAPE '~' LIMIT 1"
)

_LONGEST_WAIT_SECONDS = 0.1
"""Time without a request after which no statement waits: a lease ends when its holder pauses."""

_Native = sqlite3.Connection
_NativeCursor = sqlite3.Cursor
_native_isolation_level: Any = vars(_Native)["isolation_level"]
_native_lastrowid: Any = vars(_NativeCursor)["lastrowid"]


class RoutedConnection(LeaseConnection):
    """A connection whose cursors run statements here or in the actor."""

    # --- one statement ---------------------------------------------------------------------------

    def _execute(self, cursor: Cursor, sql: Any, parameters: Any) -> None:
        self._check_process()
        if not isinstance(sql, str):
            _NativeCursor.execute(cursor, sql, parameters)  # raises TypeError
        with self._lock:
            cursor._held = None  # if it waits, it runs all the same, without a cursor
            first, second = words(sql)
            if first == "PRAGMA" and self._run_pragma(cursor, sql):
                pass
            elif self._transaction is not None:
                self._run_in_lease(cursor, first, second, sql, parameters)
            else:
                self._try_here(cursor, first, second, sql, parameters)
            if first and cursor._held is None:
                cursor._lastrowid = self._last_rowid

    def _try_here(self, cursor: Cursor, first: str, second: str, sql: str, parameters: Any) -> None:
        self._refresh()
        was_open = self.in_transaction
        cursor._rowcount = cursor._shown = None
        try:
            inside(_NativeCursor.execute, cursor, sql, parameters)
        except sqlite3.OperationalError as error:
            self._note_begin(was_open)
            if not is_readonly(error):
                self._note_snapshot()
                raise
        except BaseException:
            self._note_begin(was_open)
            self._note_snapshot()  # a read that failed half-way has one, too
            raise
        else:
            self._ran_here(cursor, first, second, sql, was_open)
            return
        if first == "VACUUM":
            self._vacuum()
            return
        if self._private.exist:
            self._private.refuse_mixture(self, sql, parameters)
        bound = bind(parameters, sql)
        with self._begun(was_open):
            reply = self._send([step(sql, bound)])
        self._take(cursor, first, sql, bound, reply)

    def _ran_here(self, cursor: Cursor, first: str, second: str, sql: str, was_open: bool) -> None:
        """Note what a statement that has run on this connection means for the next ones."""
        if first in CONTROL:
            self._note_begin(was_open)
            if begins_writing(first, second):
                self._begin_writing()
            elif self.in_transaction and first != "BEGIN":
                # In order: they run in the lease if the transaction comes to write.
                self._savepoints.append(sql)
            if not was_open and self.in_transaction and self._transaction is None:
                self._meet_actor()
            self._note_end()
            return
        self._note_snapshot()
        if cursor.description is not None:
            self._reading.add(cursor)
        elif first in DML:
            self._last_rowid = _native_lastrowid.__get__(cursor)
            self._changes = max(0, cursor.rowcount)
        elif first in ("CREATE", "DROP", "ATTACH", "DETACH"):
            if first == "ATTACH":
                self._private.confine_attached(self)
            self._private.look_for_tables(self)

    def _run_in_lease(
        self, cursor: Cursor, first: str, second: str, sql: str, parameters: Any
    ) -> None:
        self._clear(cursor)
        if first in CONTROL:
            self._control_lease(cursor, first, sql)
            return
        if first in ("ATTACH", "DETACH", "VACUUM"):
            inside(_NativeCursor.execute, cursor, sql, parameters)  # says: not in a transaction
            self._private.look_for_tables(self)
            return
        here = may_run_anywhere(first, second, sql)
        if here:
            self._send_held()  # it may ask for their counters
        if self._private.exist or here:
            if inside(self._private.run_without_file, cursor, sql, parameters):
                self._ran_here(cursor, first, second, sql, True)
                return
            if self._private.exist:
                self._private.refuse_mixture(self, sql, parameters)
        self._private.authorize(self, sql, parameters)
        bound = bind(parameters, sql)
        self._trace(sql, parameters)
        if self._may_wait(first, sql, bound):
            self._is_stale = True
            self._held.add(cursor, step(sql, bound))
        else:
            self._take(cursor, first, sql, bound, self._send([step(sql, bound)]))

    def _may_wait(self, first: str, sql: str, bound: Bound) -> bool:
        """Return True if a statement need not run before the next request."""
        transaction = self._transaction
        assert transaction is not None
        if not may_wait(first, sql) or self._held.is_full:
            return False
        if transaction.idle_seconds > _LONGEST_WAIT_SECONDS:
            return False
        return not self.prompt or self._is_sure(transaction, sql, bound)

    def _is_sure(self, transaction: WriteTransaction, sql: str, bound: Bound) -> bool:
        """Return True if a statement cannot fail by itself.

        The schema of this connection says so, which must be that of the transaction.
        """
        if self._private.exist or transaction.schema is None or self.text_factory is not str:
            return False
        if not is_small(bound.values() if isinstance(bound, dict) else bound):
            return False
        with self._private.quiet(self):
            if self._schema is None:
                self._schema = schema_version(self)
            return self._schema == transaction.schema and self._sure.contains(
                self, self._schema, sql, stored(bound)
            )

    def _control_lease(self, cursor: Cursor, first: str, sql: str) -> None:
        """Run transaction control while there is a lease: there first, then here."""
        if first == "BEGIN":
            inside(_NativeCursor.execute, cursor, sql)  # says: within a transaction
        elif ends_transaction(first, sql):
            self._end_writing(commit=first != "ROLLBACK")
            inside(_NativeCursor.execute, cursor, sql)
        else:
            self._raise_error(self._send([step(sql, [])]))
            inside(_NativeCursor.execute, cursor, sql)
            if not self.in_transaction:  # the outermost savepoint was released
                self._end_writing(commit=True)
        self._note_end()

    # --- answers ---------------------------------------------------------------------------------

    def _take(self, cursor: Cursor, first: str, sql: str, bound: Bound, reply: SqlReply) -> None:
        """Make the answer to one statement the result of *cursor*."""
        self._raise_error(reply)
        (result,) = reply.results
        if result.columns:
            reads = first not in DML
            self._present(cursor, (sql, bound) if reads else None, result)
        cursor._rowcount = result.rowcount if first in DML else -1

    def _present(self, cursor: Cursor, query: tuple[str, Bound] | None, result: SqlResult) -> None:
        with self._private.quiet(self):
            cursor._shown = inside(self._presenter.show, cursor, query, result.columns, result.rows)

    def _raise_error(self, reply: SqlReply) -> None:
        if reply.error is not None:
            raise self._private.explained(from_actor(reply.error))

    # --- many statements -------------------------------------------------------------------------

    def _executemany(self, cursor: Cursor, sql: Any, rows: Iterable[Any]) -> None:
        self._check_process()
        if not isinstance(sql, str):
            _NativeCursor.executemany(cursor, sql, rows)  # raises TypeError
        with self._lock:
            first, _ = words(sql)
            cursor._rowcount = cursor._shown = cursor._held = None
            was_open = self.in_transaction
            if self._transaction is not None:
                if first not in DML:
                    _NativeCursor.executemany(cursor, sql, ())  # says: only DML
                self._clear(cursor)
                if self._private.exist:
                    self._run_each_in_lease(cursor, first, sql, rows)
                    return
                rest: Iterator[Any] = iter(rows)
            else:
                self._refresh()
                tried = TriedRows(rows)
                try:
                    _NativeCursor.executemany(cursor, sql, tried)
                    return
                except sqlite3.OperationalError as error:
                    if not is_readonly(error):
                        raise
                    self._note_begin(was_open)
                if self._private.exist:
                    self._private.refuse_mixture(self, sql, tried.last)
                rest = itertools.chain((tried.last,), tried)
            total = 0
            with self._begun(was_open):
                for chunk in chunks(sql, rest):
                    reply = self._send([chunk])
                    total += sum(max(0, result.rowcount) for result in reply.results)
                    self._raise_error(reply)
            cursor._rowcount = total

    def _run_each_in_lease(self, cursor: Cursor, first: str, sql: str, rows: Iterable[Any]) -> None:
        """Run *sql* for each of *rows* by itself: each may be about private objects."""
        total = 0
        for row in rows:
            self._run_in_lease(cursor, first, "", sql, row)
            total += max(0, cursor.rowcount)
        cursor._rowcount = total

    def _executescript(self, cursor: Cursor, script: Any) -> None:
        self._check_process()
        with self._lock:
            legacy = self._is_legacy()
            if isinstance(script, str) and "\0" not in script:
                if legacy and self._transaction is not None:
                    self._check_usable()
                    self._end_writing(commit=True)
                _NativeCursor.executescript(cursor, "")
                self._note_end()
            else:
                _NativeCursor.executescript(cursor, script)  # raises
            level = self.isolation_level
            if legacy:
                _native_isolation_level.__set__(self, None)
            inner = Cursor(self)
            try:
                self._run_statements(inner, list(split(script)))
            finally:
                inner.close()
                if legacy and level is not None:
                    _native_isolation_level.__set__(self, level)

    def _run_statements(self, cursor: Cursor, statements: list[str]) -> None:
        """Run *statements*: those that need the actor together, as far as possible."""
        done = 0
        while done < len(statements):
            sql = statements[done]
            together = 1 if self._private.exist else count_together(statements, done)
            if together == 1 or self._runs_here(cursor, sql):
                if together == 1:
                    cursor.execute(sql).fetchall()
                done += 1
                continue
            reply = self._send([SqlStep(sql=one) for one in statements[done : done + together]])
            self._raise_error(reply)
            done += together

    def _runs_here(self, cursor: Cursor, sql: str) -> bool:
        """Try one statement of a script here; return False if it writes to the file."""
        if self._transaction is not None:
            return False
        first, second = words(sql)
        self._refresh()
        was_open = self.in_transaction
        try:
            inside(_NativeCursor.execute, cursor, sql)
        except sqlite3.OperationalError as error:
            if not is_readonly(error):
                raise
            return False
        self._ran_here(cursor, first, second, sql, was_open)
        _NativeCursor.fetchall(cursor)
        return True

    # --- pragmas ---------------------------------------------------------------------------------

    def _run_pragma(self, cursor: Cursor, sql: str) -> bool:
        """Run a pragma that is not a statement like any other. Returns False if it is."""
        pragma = pragmas.parse(sql)
        if pragma is None:
            return False
        name, argument = pragma
        if name in pragmas.OWNERS and argument is not None:
            inside(_NativeCursor.execute, cursor, f"PRAGMA {name}")
        elif name in pragmas.ANSWERED:
            self._clear(cursor)
            columns = pragmas.ANSWERED[name]
            if columns:
                self._present(
                    cursor, None, SqlResult(columns=list(columns), rows=[[0] * len(columns)])
                )
        elif name in pragmas.LAYOUT and argument is not None:
            inside(_NativeCursor.execute, cursor, sql)
            self._check_layout(name, argument)
        elif name in pragmas.SETTINGS or name in pragmas.LOCAL:
            if argument is not None:
                self._send_held()  # under the settings of before
            inside(_NativeCursor.execute, cursor, sql)
            if argument is not None:
                self._note_setting(name, argument)
        else:
            return False
        cursor._rowcount = None
        return True

    def _check_layout(self, name: str, argument: str) -> None:
        """Raise ``NotSupportedError`` if a new file was to be made another way.

        In a file with tables SQLite leaves things as they are, and says nothing.
        """
        wanted = pragmas.LAYOUT[name].get(argument.lower(), argument.lower())
        with self._private.quiet(self):
            ((there,),) = ask(self, f"PRAGMA main.{name}")
            if str(there).lower() != wanted and not ask(self, _OBJECTS):
                raise not_supported(
                    f"the file has {name} {there}: its actor has created it. Create it with the"
                    f" module sqlite3, its {name} and a first table, and open it here then"
                )

    def _note_setting(self, name: str, argument: str) -> None:
        if name == "busy_timeout":
            with self._private.quiet(self):
                ((milliseconds,),) = ask(self, "PRAGMA busy_timeout")
            self._timeout = milliseconds / 1000
        elif name in pragmas.SETTINGS:
            with self._private.quiet(self):
                rows = ask(self, f"PRAGMA {name}")
            # The value that holds now: SQLite ignores some settings inside a transaction. One has
            # no question.
            value = rows[0][0] if rows else int(argument.lower() in ("1", "on", "true", "yes"))
            self._settings = {**self._settings, name: value}
            if name == "defer_foreign_keys" and self._transaction is not None:
                # At once: switched off, it forgives what was broken, and a commit may follow.
                self._send([])

    def _trace(self, sql: str, parameters: Any) -> None:
        """Show a statement of the lease to the trace callback, with its values filled in."""
        if self._private.trace is None:
            return
        try:
            ask(self, sql, parameters)  # for its trace alone: it writes nothing
        except sqlite3.Error as error:
            if not is_readonly(error):
                self._private.trace(sql)
