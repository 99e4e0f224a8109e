"""The client of a history on a plain file: a program with ``hermes_actor.connect()``.

Every change appends exactly one row, and nothing else commits. So the id of a row is its place in
the order of changes, from the first row on, which the schema brings with it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any

from hermes_actor.testing.records import SOURCE

__all__ = ["SCHEMA", "Program", "open_program", "snapshots"]

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, source TEXT, message_count INTEGER);
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, session_id TEXT, content TEXT, source TEXT DEFAULT '{SOURCE}');
CREATE TRIGGER IF NOT EXISTS counts AFTER INSERT ON messages BEGIN
    INSERT OR IGNORE INTO sessions VALUES (new.session_id, new.source, 0);
    UPDATE sessions SET message_count = message_count + 1 WHERE id = new.session_id;
END;
INSERT OR IGNORE INTO messages VALUES (1, 'the schema', 'is the first change', 'schema');
"""
"""The tables that every judge of a history reads, without what else a store has."""

_INSERT = "INSERT INTO messages (session_id, content) VALUES (?, ?)"

_LOCKED = "database is locked"
"""Nothing of the transaction is in the file, so it may be made again."""


class Program:
    """One connection. It has the methods of a channel that a writer of a history uses."""

    def __init__(self, db: str, timeout: float) -> None:
        self._db, self._timeout = db, timeout
        self._open()

    def _open(self) -> None:
        from hermes_actor import connect

        self._pid = os.getpid()
        self._conn = connect(self._db, self._timeout, isolation_level=None, check_same_thread=False)

    @property
    def conn(self) -> sqlite3.Connection:
        """The connection of this process: a forked child opens its own."""
        if self._pid != os.getpid():
            self._open()
        return self._conn

    def create_schema(self) -> None:
        """Create the tables, in one change, unless they are there."""
        self.conn.executescript(SCHEMA)

    def submit(self, _session: Any, _timeout: float) -> None:
        """Do nothing: the first message of a session makes it."""

    def statistics(self) -> None:
        """Ask the actor something that changes nothing."""
        self.conn.execute("BEGIN IMMEDIATE")
        self.conn.execute("ROLLBACK")

    def send(self, appends: Sequence[Any], timeout: float) -> list[Change]:
        """Return changes that are made when they are asked for their result, in this order."""
        return [Change(self.conn, one, timeout) for one in appends]

    def release(self) -> None:
        """Close the connection."""
        self.conn.close()


class Change:
    """One row, in a transaction of one of the forms that programs use."""

    def __init__(self, conn: sqlite3.Connection, append: Any, timeout: float) -> None:
        self._conn, self._timeout = conn, timeout
        self._row = append.session_id, append.message.content
        forms = (self._statement, self._immediate, self._deferred)
        self._form = forms[len(append.message.content) % len(forms)]

    def result(self) -> int:
        """Make the change, again while it is only locked out; return the id of its row.

        The error says whether it was executed, as its text promises.
        """
        # Each call of a program has a time of its own.
        deadline = time.monotonic() + self._timeout
        self._conn.execute(f"PRAGMA busy_timeout = {int(1000 * self._timeout)}")
        while True:
            try:
                return self._form()
            except sqlite3.Error as error:
                text = str(error)
                known = "unknown" if text.startswith("outcome unknown") else "no"
                error.executed = known  # type: ignore[attr-defined]
                if not text.startswith(_LOCKED) or time.monotonic() > deadline:
                    raise
            finally:
                if self._conn.in_transaction:
                    self._conn.rollback()

    def _statement(self) -> int:
        """By itself: a transaction of one statement."""
        return self._conn.execute(_INSERT, self._row).lastrowid or 0

    def _immediate(self) -> int:
        return self._transaction("BEGIN IMMEDIATE")

    def _deferred(self) -> int:
        """Reads first: others may commit before it writes."""
        return self._transaction("BEGIN")

    def _transaction(self, begin: str) -> int:
        conn, (session, text) = self._conn, self._row
        conn.execute(begin)
        conn.execute("SELECT message_count FROM sessions WHERE id = ?", (session,)).fetchall()
        # Without its second half a row is not what was sent.
        row = conn.execute(_INSERT, (session, "half of it")).lastrowid or 0
        conn.execute("UPDATE messages SET content = ? WHERE id = ?", (text, row))
        conn.execute("COMMIT")
        return row


def open_program(db: str, timeout: float) -> Program:
    """Return a program whose tables are there."""
    program = Program(db, timeout)
    program.create_schema()
    return program


def snapshots(db: str) -> Callable[[Callable[[Any], Any]], Any]:
    """Return a function that reads the file in one snapshot, through a connection of its own."""
    from hermes_actor import connect

    conn = connect(db, isolation_level=None)

    def read(look: Callable[[Any], Any]) -> Any:
        conn.execute("BEGIN")
        try:
            return look(conn)
        finally:
            conn.execute("ROLLBACK")

    return read
