"""Mistakes inside the process of an owner: whatever drops the locks that SQLite has on its files.

POSIX drops every lock of a process on a file when the process closes any descriptor of it. So a
raw open and close, or a second copy of SQLite, takes the locks of the first one away, and
nothing reports it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["STRAYS", "act_on_order"]


def _raw(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _raw_wal(path: str) -> None:
    _raw(f"{path}-wal")


def _raw_shm(path: str) -> None:
    _raw(f"{path}-shm")


def _second_copy(path: str) -> None:
    import apsw

    _look(apsw.Connection(path))


def _second_copy_read_only(path: str) -> None:
    import apsw

    _look(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY))


def _same_copy(path: str) -> None:
    import sqlite3

    _look(sqlite3.connect(path))


def _look(conn: Any) -> None:
    with contextlib.closing(conn):
        conn.execute("SELECT COUNT(*) FROM messages").fetchall()


STRAYS: dict[str, Callable[[str], None]] = {
    "raw": _raw,
    "raw-wal": _raw_wal,
    "raw-shm": _raw_shm,
    "second-copy": _second_copy,
    "second-copy-ro": _second_copy_read_only,
    "same-copy": _same_copy,
}


def act_on_order(sign: Path) -> None:
    """From now on this process makes the mistake that *sign* names, once, after a commit."""
    from hermes_actor.engine.connection import WriteConnection

    commit = WriteConnection.commit

    def commit_and_err(self: WriteConnection, *arguments: Any, **named: Any) -> None:
        commit(self, *arguments, **named)
        if sign.exists():
            STRAYS[sign.read_text()](str(self.paths.db))
            sign.unlink()

    WriteConnection.commit = commit_and_err  # type: ignore[method-assign]
