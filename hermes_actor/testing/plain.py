"""The same load without an actor: every writer opens the file with ``sqlite3`` by itself.

The file has the tables and the full-text triggers that hermes-agent's file has, a write is one
transaction in WAL mode, and a writer waits for a lock as long as ``sqlite3`` does by default: 5 s.
"""

from __future__ import annotations

import time

from hermes_actor.session_db import SessionDB
from hermes_actor.sqlite import sqlite3
from hermes_actor.testing.load import Load
from hermes_actor.testing.records import SOURCE
from hermes_actor.testing.worker import Worker, record_appends

__all__ = ["PlainLoad", "Refused", "append"]


class PlainLoad(Load):
    """Writers and readers of a file that has no owner."""

    title = "plain sqlite3"
    work = "hermes_actor.testing.plain:append"

    def _prepare(self) -> None:
        SessionDB(self.paths.db, mode="embedded").close()  # its tables and triggers


class Refused(sqlite3.OperationalError):
    """A write was given up and rolled back."""

    executed = "no"


def append(worker: Worker) -> None:
    """Append messages to a session of its own by ``sqlite3``, and record every outcome.

    Options: ``pause``, ``words`` and ``report_pid``, as of
    :func:`~hermes_actor.testing.worker.write`.
    """
    conn = sqlite3.connect(worker.store, isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    session = "INSERT INTO sessions (id, source, started_at) VALUES (?, ?, ?)"
    conn.execute(session, (worker.name, SOURCE, time.time()))

    def append_one(text: str) -> int | None:
        try:
            conn.execute("BEGIN IMMEDIATE")
            made = conn.execute(
                "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
                (worker.name, "user", text, time.time()),
            )
            count = "UPDATE sessions SET message_count = message_count + 1 WHERE id = ?"
            conn.execute(count, (worker.name,))
            conn.execute("COMMIT")
        except sqlite3.Error as error:
            conn.rollback()
            raise Refused(str(error)) from error
        return made.lastrowid

    record_appends(worker, append_one)
    conn.close()
