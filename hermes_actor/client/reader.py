"""Readers: direct read-only connections in the calling process.

A reader never waits for the writer and can neither checkpoint nor unlink the WAL. Connections are
few, are lent to one thread at a time, always come back with their cursors finished, and are never
used after a fork. Before each use the identity of the file is compared: after a restore or a
replacement the next read opens the file that is there now.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hermes_actor.errors import CannotRead, Closed, HermesActorError, from_sqlite
from hermes_actor.sqlite import Connection, connect_reader, primary_code, sqlite3

if TYPE_CHECKING:
    from hermes_actor.paths import Place

__all__ = ["Reader"]

R = TypeVar("R")

_KEPT = 4
"""Idle connections that are kept: each costs two descriptors."""

_FRESH_CONNECTION_HELPS = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
)


class Reader:
    """A small pool of read-only connections to one database."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._path = str(place.db)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._closed = False

    def query(self, function: Callable[[Connection], R]) -> R:
        """Run *function*, which makes one statement, on a connection of the pool."""
        return self._run(function)

    def snapshot(self, function: Callable[[Connection], R]) -> R:
        """Run *function* inside one read transaction: all its statements see one state."""

        def consistent(conn: Connection) -> R:
            conn.execute("BEGIN")
            try:
                return function(conn)
            finally:
                if conn.in_transaction:
                    conn.execute("ROLLBACK")

        return self._run(consistent)

    def _run(self, function: Callable[[Connection], R]) -> R:
        conn = self._take()
        try:
            result = function(conn)
        except BaseException as error:
            # The connection may be left with an unfinished cursor, which would pin its snapshot.
            conn.close()
            if isinstance(error, sqlite3.Error) and not isinstance(error, HermesActorError):
                if primary_code(error) in _FRESH_CONNECTION_HELPS:
                    return self._retry(function)
                raise from_sqlite(error, self._place.db) from error
            raise
        self._give_back(conn)
        return result

    def _retry(self, function: Callable[[Connection], R]) -> R:
        """A second try on a fresh connection; what fails twice is the file's fault."""
        conn = self._open()
        try:
            result = function(conn)
        except sqlite3.Error as error:
            conn.close()
            raise from_sqlite(error, self._place.db) from error
        self._give_back(conn)
        return result

    def _take(self) -> Connection:
        if self._closed:
            raise Closed("this SessionDB is closed")
        if self._pid != os.getpid():
            self._after_fork()
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise CannotRead(
                f"unable to open database file: {self._path} ({error.strerror})",
                words="unable to open database file",
            ) from error
        identity = (found.st_dev, found.st_ino)
        with self._lock:
            if identity == self._identity:
                conn = self._idle.pop() if self._idle else None
            else:
                for stale in self._idle:
                    stale.close()
                self._idle.clear()
                self._identity, conn = identity, None
        if conn is None:
            conn = self._open()
        conn.layout_checked = False
        return conn

    def _open(self) -> Connection:
        try:
            conn = connect_reader(self._place.db)
            conn.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error as error:
            raise from_sqlite(error, self._place.db) from error
        return conn

    def _give_back(self, conn: Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _KEPT:
                self._idle.append(conn)
                return
        conn.close()

    def _after_fork(self) -> None:
        """In a child: leave the inherited connections alone, closing them would disturb nobody
        but could run SQLite code on state that belongs to the parent."""
        self._lock = threading.Lock()
        _inherited.extend(self._idle)
        self._idle = []
        self._pid = os.getpid()

    def close(self) -> None:
        """Close the pool. Connections that are in use close when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        if self._pid == os.getpid():
            for conn in idle:
                with contextlib.suppress(sqlite3.Error):
                    conn.close()
        else:
            _inherited.extend(idle)


_inherited: list[Connection] = []
"""Connections of a parent process, kept alive so that nothing ever finalises them."""
