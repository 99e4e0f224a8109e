"""The only door to SQLite: the one import of ``sqlite3``, the kinds of connection, the codes.

Every process uses the standard ``sqlite3``. Two copies of SQLite in one process on one file lose
each other's locks, and only this module reports extended result codes, which is how faults are
classified here; message texts are for people.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from hermes_actor.system.fork import inside

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.store.schema_features import SchemaFeatures
    from hermes_actor.write_rules import WriteRules

__all__ = [
    "WAL_RESET_FIXED", "Connection", "connect_alone", "connect_reader", "connect_writer",
    "primary_code", "read_only_uri", "split_script", "sqlite3", "wal_reset_safe",
]  # fmt: skip

WAL_RESET_FIXED = (3, 51, 3)
"""First release without the WAL-reset race (it needs two writing connections to bite)."""

_BACKPORTS: dict[tuple[int, ...], int] = {(3, 44): 6, (3, 50): 7}


class Connection(sqlite3.Connection):
    """A connection that remembers what it has learned about the layout of its file.

    It belongs to the process that has opened it. A forked child never closes its copy, not even
    when nothing refers to it: that would run SQLite on locks and memory of the parent.
    """

    layout: SchemaFeatures | None = None
    layout_cookie: int = -1
    layout_checked: bool = False
    identity: tuple[int, ...] | None = None
    rules: WriteRules | None = None
    """Of the settings of its home, on the connection of a writer; ``None`` is none."""

    _pid = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pid = os.getpid()

    def close(self) -> None:
        if self._pid == os.getpid():
            inside(super().close)

    def __del__(self) -> None:
        if self._pid == os.getpid():
            with contextlib.suppress(sqlite3.Error):  # such as: it is another thread's
                self.close()
        elif self._pid:
            _inherited.append(self)


_inherited: list[Connection] = []
"""Connections of a parent process, kept so that nothing ever closes them."""


def connect_writer(path: Path) -> Connection:
    """Open *path*, which must exist, for writing, in autocommit mode and without any waiting.

    Waiting for a foreign lock is the engine's business: SQLite's own busy handler sleeps for up
    to 100 ms between tries and knows no deadlines.
    """
    return _connect(path, "rw", check_same_thread=True)


def connect_reader(path: Path) -> Connection:
    """Open *path* read-only: it can neither checkpoint nor unlink the WAL.

    The connection may move between threads, one at a time; the pool that owns it sees to that.
    """
    # In WAL mode a reader never waits; on other file systems it does, for a commit in progress.
    return _connect(path, "ro", timeout=1.0, check_same_thread=False)


def connect_alone(database: Path | str = ":memory:") -> Connection:
    """Open what only the caller uses, in autocommit mode: a scratch database, a copy to be made."""
    return inside(
        sqlite3.connect,
        database,
        isolation_level=None,
        check_same_thread=False,
        factory=Connection,
    )


def _connect(path: Path, mode: str, *, timeout: float = 0.0, check_same_thread: bool) -> Connection:
    return inside(
        sqlite3.connect,
        _uri(path, mode),
        uri=True,
        timeout=timeout,
        isolation_level=None,
        cached_statements=256,
        check_same_thread=check_same_thread,
        factory=Connection,
    )


def read_only_uri(path: Path | str) -> str:
    """Return the URI that opens *path* for reading only."""
    return _uri(path, "ro")


def _uri(path: Path | str, mode: str) -> str:
    return f"file:{quote(os.fsencode(path))}?mode={mode}"


def split_script(script: str) -> Iterator[str]:
    """Yield the statements of *script*, each with its semicolon, and what follows the last one."""
    pending = ""
    *parts, rest = script.split(";")
    for part in parts:
        pending += part + ";"
        if sqlite3.complete_statement(pending):
            if pending.strip(" \t\r\n;"):
                yield pending
            pending = ""
    if (pending + rest).strip(" \t\r\n;"):
        yield pending + rest


def primary_code(error: BaseException | None) -> int:
    """The primary result code of an SQLite error, 0 for anything else."""
    code: Any = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else 0


def wal_reset_safe(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> bool:
    """Return True if the linked SQLite has no WAL-reset race, also beside a foreign writer."""
    if version >= WAL_RESET_FIXED:
        return True
    fixed = _BACKPORTS.get(version[:2])
    return fixed is not None and version[2] >= fixed
