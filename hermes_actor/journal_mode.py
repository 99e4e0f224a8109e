"""The journal mode: WAL, and the one place that may settle for less.

On some network file systems WAL cannot work, and SQLite says so when the mode is set. Only then,
and only on a file that is not in WAL mode yet, a rollback journal is used instead, with a warning.
The mode of a file that already has a WAL is never changed: a passing I/O error must not flip it
under other programs.
"""

from __future__ import annotations

import logging
from typing import Any

from hermes_actor.sqlite import sqlite3

__all__ = ["WAL_INCOMPAT_MARKERS", "apply_wal_with_fallback", "warned_labels"]

WAL_INCOMPAT_MARKERS = ("locking protocol", "not authorized", "disk i/o error")
"""Lower-case fragments of the messages that mean: no WAL on this file system."""

warned_labels: set[str] = set()
"""Labels of databases that this process has already warned about."""

_log = logging.getLogger("hermes_state")


def apply_wal_with_fallback(conn: Any, *, db_label: str = "state.db") -> str:
    """Set WAL mode, or DELETE mode where WAL cannot work. Returns ``"wal"`` or ``"delete"``.

    Success is the absence of an error, not the mode that SQLite answers: an in-memory database
    answers ``memory`` and counts as ``"wal"``.
    """
    try:
        conn.execute("PRAGMA journal_mode=WAL").fetchone()
    except sqlite3.OperationalError as error:
        if not any(marker in str(error).lower() for marker in WAL_INCOMPAT_MARKERS):
            raise
        if db_label not in warned_labels:
            warned_labels.add(db_label)
            _log.warning(
                "%s: WAL mode is not possible here (%s); using journal_mode=DELETE", db_label, error
            )
        conn.execute("PRAGMA journal_mode=DELETE").fetchone()
        return "delete"
    return "wal"
