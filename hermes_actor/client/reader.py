"""Readers: direct read-only connections in the calling process.

A reader never waits for the writer and can neither checkpoint nor unlink the WAL. Connections are
few, are lent to one thread at a time, always come back with their cursors finished, and are never
used after a fork. The identity of the file is compared before use: after a replacement the next
read opens the file that is there now.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_actor.errors import CannotRead, Closed, HermesActorError, from_sqlite
from hermes_actor.sqlite import Connection, connect_reader, primary_code, sqlite3
from hermes_actor.store.rows import one_state

if TYPE_CHECKING:
    from hermes_actor.paths import Place

__all__ = ["Reader"]

R = TypeVar("R")

_now = time.monotonic

_KEPT = 4
"""Idle connections that are kept: each costs two descriptors."""

_LOOK_EVERY_SECONDS = 0.001
"""How long one look at the identity and the layout of the file holds. The owner of another file
must first get the lock, open the file and sync a commit, which takes longer, so no acknowledged
change can be missed. (What a search must know exactly, it reads in its own snapshot.)"""

_FORK_SECONDS = 5.0
"""How long a fork waits for queries of other threads."""

_FRESH_CONNECTION_HELPS = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
)


class Reader:
    """A small pool of read-only connections to one database. Safe to use from any thread.

    The pool is a plain list: taking from its end and adding to it are atomic.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._path = str(place.db)
        self._wal = str(place.wal)
        self._shm = str(place.shm)
        self._idle: list[Connection] = []
        self._identity: tuple[int, ...] | None = None
        self._look_again = 0.0
        self._closed = False
        _readers.add(self)

    def query(self, function: Callable[..., R], *arguments: Any) -> R:
        """``function(connection, *arguments)``, which makes a single statement."""
        _gate.enter()
        try:
            return self._query(function, arguments)
        finally:
            _gate.leave()

    def _query(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
        if _now() >= self._look_again:
            self._look()
        idle = self._idle
        try:
            conn = idle.pop()
        except IndexError:
            conn = self._open()
        try:
            result: R = function(conn, *arguments)
        except BaseException as error:
            return self._failed(conn, error, function, arguments)
        # A connection of another file, or of a closed reader, does not come back.
        if conn.identity is self._identity and len(idle) < _KEPT:
            idle.append(conn)
        else:
            conn.close()
        return result

    def _failed(
        self,
        conn: Connection,
        error: BaseException,
        function: Callable[..., R],
        arguments: tuple[Any, ...],
    ) -> R:
        # The connection may be left with an unfinished cursor, which would pin its snapshot.
        conn.close()
        if not isinstance(error, sqlite3.Error) or isinstance(error, HermesActorError):
            raise error
        if primary_code(error) not in _FRESH_CONNECTION_HELPS:
            raise from_sqlite(error, self._place.db) from error
        return self._retry(function, arguments)

    def snapshot(self, function: Callable[..., R], *arguments: Any) -> R:
        """Like :meth:`query`, for several statements: all of them see one state."""
        result: R = self.query(_in_snapshot, function, arguments)
        return result

    def close(self) -> None:
        """Close the pool. Connections that are in use close when they come back."""
        self._closed = True
        self._identity = None
        self._look_again = 0.0
        self._drop(self._idle)

    def _look(self) -> None:
        """Notice a closed object, another file behind the path, a changed schema."""
        if self._closed:
            raise Closed("this SessionDB is closed")
        try:
            found = os.stat(self._path)
        except OSError as error:
            words = "unable to open database file"
            raise CannotRead(f"{words}: {self._path} ({error.strerror})", words=words) from error
        # A connection holds the WAL and the shared memory that it met; after one was removed, it
        # sees neither the frames nor the locks of others.
        identity = (found.st_dev, found.st_ino, _inode(self._wal), _inode(self._shm))
        if self._identity != identity:
            self._drop(self._idle)
            self._identity = identity
        for conn in self._idle:
            conn.layout_checked = False
        self._look_again = _now() + _LOOK_EVERY_SECONDS

    def _open(self) -> Connection:
        try:
            conn = connect_reader(self._place.db)
            conn.identity = self._identity
            conn.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error as error:
            raise from_sqlite(error, self._place.db) from error
        return conn

    def _retry(self, function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
        """A second try on a fresh connection; what fails twice is the file's fault."""
        self._drop(self._idle)
        with contextlib.closing(self._open()) as conn:
            try:
                return function(conn, *arguments)
            except sqlite3.Error as error:
                raise from_sqlite(error, self._place.db) from error

    @staticmethod
    def _drop(idle: list[Connection]) -> None:
        while idle:
            with contextlib.suppress(IndexError, sqlite3.Error):
                idle.pop().close()

    def _after_fork(self) -> None:
        """In a child: leave the parent's connections alone; closing them would run SQLite on
        locks and memory that belong to the parent."""
        _inherited.extend(self._idle)
        self._idle = []
        self._look_again = 0.0


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _in_snapshot(conn: Connection, function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
    with one_state(conn):
        return function(conn, *arguments)


class _Gate:
    """Keeps forks and queries apart.

    A child of a process in which some thread is inside SQLite inherits SQLite's own mutexes as
    they are, and hangs in the first call that needs one.
    """

    def __init__(self) -> None:
        self._inside: list[int] = []
        self._open = threading.Event()
        self._open.set()

    def enter(self) -> None:
        while True:
            # In this order: whoever closes the gate then sees us, or we see it closed.
            self._inside.append(threading.get_ident())
            if self._open.is_set():
                return
            self.leave()
            self._open.wait(_FORK_SECONDS)

    def leave(self) -> None:
        self._inside.remove(threading.get_ident())

    def close(self) -> None:
        """Before a fork: wait until no other thread is inside, for as long as a query may take."""
        self._open.clear()
        give_up, me = _now() + _FORK_SECONDS, threading.get_ident()
        while any(thread != me for thread in tuple(self._inside)) and _now() < give_up:
            time.sleep(0.0002)

    def open(self) -> None:
        self._open.set()

    def open_in_child(self) -> None:
        """The other threads are not here."""
        me = threading.get_ident()
        self._inside = [thread for thread in self._inside if thread == me]
        self._open = threading.Event()
        self._open.set()


_gate = _Gate()

_readers: weakref.WeakSet[Reader] = weakref.WeakSet()
_inherited: list[Connection] = []
"""Connections of a parent process, kept so that nothing ever finalises them."""


def _leave_to_the_parent() -> None:
    _gate.open_in_child()
    for reader in list(_readers):
        reader._after_fork()


os.register_at_fork(
    before=_gate.close, after_in_parent=_gate.open, after_in_child=_leave_to_the_parent
)
