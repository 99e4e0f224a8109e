"""Readers: direct read-only connections in the calling process.

A reader never waits for the writer and can neither checkpoint nor unlink the WAL. Connections are
few, are lent to one thread at a time, always come back with their cursors finished, and are never
used after a fork. The identity of the file is compared before use: after a replacement the next
read opens the file that is there now.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hermes_actor import limits
from hermes_actor.errors import CannotRead, Closed, DeadlineExceeded, HermesActorError, from_sqlite
from hermes_actor.sqlite import Connection, connect_reader, primary_code, sqlite3
from hermes_actor.store.rows import read_transaction
from hermes_actor.system import fork
from hermes_actor.system.fork import inside

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["Reader"]

R = TypeVar("R")

_now = time.monotonic

_KEPT = 4
"""Idle connections that are kept: each costs two descriptors."""

_MOST = 16
"""Connections at one time. More threads than that wait for one another, which is quicker than to
share two or three cores; and a process that may open 256 descriptors keeps most of them."""

_LOOK_EVERY_SECONDS = 0.001
"""Validity of one check of the identity and the layout of the file. The owner of another file
must first get the lock, open the file and sync a commit, which takes longer, so no acknowledged
change can be missed. (What a search must know exactly, it reads in its own snapshot.)"""

_WAIT_SECONDS = 0.05
"""Time between two checks for a slot by a thread that waits; nearly always it is given one."""

_FRESH_CONNECTION_HELPS = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
)


class _Slot:
    """The right to one connection, and that connection while it is open."""

    __slots__ = ("__weakref__", "conn")

    def __init__(self) -> None:
        self.conn: Connection | None = None

    def close(self) -> None:
        conn, self.conn = self.conn, None
        if conn is not None:
            with contextlib.suppress(sqlite3.Error):
                conn.close()


class Reader:
    """A bounded pool of read-only connections to one database. Safe to use from any thread.

    *timeout*: seconds that a read waits while all connections are in use.

    The pool is a list and a queue of slots: taking from either and adding to it are atomic. A slot
    that an interrupted thread loses is replaced when it is missed.
    """

    def __init__(self, paths: StorePaths, timeout: float = limits.DEFAULT_TIMEOUT_SECONDS) -> None:
        self._paths = paths
        self._timeout = timeout
        self._path = str(paths.db)
        self._wal = str(paths.wal)
        self._shm = str(paths.shm)
        self._identity: tuple[int, ...] | None = None
        self._closed = False
        self._begin()
        fork.notify(self)

    def after_fork(self) -> None:
        """Begin with an empty pool, in a child, and leave the parent's connections alone."""
        # The connections are the parent's, and the threads that have some in use are not here.
        self._begin()

    def _begin(self) -> None:
        """Make the pool: in a forked child once more, without the parent's connections and without
        those that its other threads had in use."""
        # A SimpleQueue and a list: their methods are single steps, which a signal handler cannot
        # split. A lock around a counter would stay taken when it raises in between.
        self._free: queue.SimpleQueue[_Slot] = queue.SimpleQueue()
        self._idle: list[_Slot] = []
        self._slots: list[weakref.ref[_Slot]] = []
        self._look_again = 0.0
        for _ in range(_MOST):
            slot = _Slot()
            self._slots.append(weakref.ref(slot))
            self._free.put(slot)

    def query(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return ``function(connection, *arguments)``, which runs a single statement.

        Raises the typed error of SQLite's, :class:`CannotRead` if the file is gone, and
        :class:`DeadlineExceeded` if all connections stay in use.
        """
        if _now() >= self._look_again:
            self._look()
        idle, free = self._idle, self._free
        try:
            # The one that came back last: its pages and its statements are in memory.
            slot = idle.pop()
        except IndexError:
            slot = self._wait_for_slot()
        try:
            conn = slot.conn or self._open(slot)
            result: R = inside(function, conn, *arguments)
        except BaseException as error:
            return self._failed(slot, error, function, arguments)
        # A connection of another file, or of a closed reader, does not come back.
        # By identity: the object is replaced when the file is, and by close().
        is_current = conn.identity is self._identity
        if is_current and len(idle) < _KEPT and not free.empty():
            idle.append(slot)
            return result
        # Without free slots a thread may wait for this one: it gets the open connection.
        if not is_current or not free.empty():
            slot.close()
        free.put(slot)
        return result

    def _wait_for_slot(self) -> _Slot:
        """Return a free slot, or one that another thread gives back."""
        give_up = _now() + self._timeout
        while True:
            with contextlib.suppress(queue.Empty):
                # In short waits: slots can come back to the other list, or be lost.
                slot = self._free.get(timeout=_WAIT_SECONDS)
                break
            with contextlib.suppress(IndexError):
                return self._idle.pop()
            self._replace_lost_slots()
            if _now() >= give_up:
                raise DeadlineExceeded(
                    f"all {_MOST} connections with which this process reads {self._path} were in"
                    f" use for {self._timeout:g} s; read from fewer threads at a time"
                )
        # Not among the idle ones when the file was looked at last.
        if slot.conn is not None and slot.conn.identity is self._identity:
            slot.conn.layout_checked = False
        else:
            slot.close()
        return slot

    def _replace_lost_slots(self) -> None:
        for number, reference in enumerate(self._slots):
            if reference() is None:
                slot = _Slot()
                self._slots[number] = weakref.ref(slot)
                self._free.put(slot)

    def _failed(
        self,
        slot: _Slot,
        error: BaseException,
        function: Callable[..., R],
        arguments: tuple[Any, ...],
    ) -> R:
        from traceback import clear_frames  # few reads fail

        # An unfinished cursor would pin its snapshot, and keep the file open behind a connection
        # that is closed. Frames that have ended hold such cursors for as long as *error* lives.
        inside(clear_frames, error.__traceback__)
        slot.close()
        try:
            if not isinstance(error, sqlite3.Error) or isinstance(error, HermesActorError):
                raise error
            if primary_code(error) not in _FRESH_CONNECTION_HELPS:
                raise from_sqlite(error, self._paths.db) from error
            return self._retry(slot, function, arguments)
        finally:
            self._free.put(slot)
            del error  # whose traceback holds this frame

    def snapshot(self, function: Callable[..., R], *arguments: Any) -> R:
        """Return what :meth:`query` does, for several statements: all of them see one state."""
        result: R = self.query(_in_snapshot, function, arguments)
        return result

    def close(self) -> None:
        """Close the pool. Connections that are in use close when they come back."""
        self._closed = True
        # So that connections in use are not current when they come back, and close.
        self._identity = None
        self._look_again = 0.0
        self._drop()

    def _look(self) -> None:
        """Notice a closed object, another file behind the path, a changed schema."""
        if self._closed:
            raise Closed("this SessionDB is closed")
        try:
            found = os.stat(self._path)
        except OSError as error:
            words = "unable to open database file"
            raise CannotRead(
                f"{words}: {self._path} ({error.strerror})", sqlite_message=words
            ) from error
        # A connection holds the WAL and the shared memory that it met; after one was removed, it
        # sees neither the frames nor the locks of others.
        identity = (found.st_dev, found.st_ino, _inode(self._wal), _inode(self._shm))
        if self._identity != identity:
            self._drop()
            self._identity = identity
        for slot in tuple(self._idle):
            if slot.conn is not None:
                slot.conn.layout_checked = False
        self._look_again = _now() + _LOOK_EVERY_SECONDS

    def _open(self, slot: _Slot) -> Connection:
        conn = slot.conn = inside(self._connect)
        conn.identity = self._identity
        return conn

    def _connect(self) -> Connection:
        conn = connect_reader(self._paths.db)
        conn.execute("PRAGMA foreign_keys = ON")
        return conn

    def _retry(self, slot: _Slot, function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
        """A second try on a fresh connection; what fails twice is the file's fault."""
        self._drop()
        try:
            return inside(function, self._open(slot), *arguments)
        except sqlite3.Error as error:
            raise from_sqlite(error, self._paths.db) from error
        finally:
            slot.close()

    def _drop(self) -> None:
        """Close the connections that are not in use."""
        slots: list[_Slot] = []
        with contextlib.suppress(IndexError):
            while True:
                slots.append(self._idle.pop())
        with contextlib.suppress(queue.Empty):
            while True:
                slots.append(self._free.get_nowait())
        for slot in slots:
            slot.close()
            self._free.put(slot)


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _in_snapshot(conn: Connection, function: Callable[..., R], arguments: tuple[Any, ...]) -> R:
    with read_transaction(conn):
        return function(conn, *arguments)
