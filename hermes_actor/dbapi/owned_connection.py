"""A connection to a file that has an actor: its opening, its port, and its snapshots."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hermes_actor.dbapi import actor_port
from hermes_actor.dbapi.cursor import Cursor, buffer
from hermes_actor.dbapi.errors import as_sqlite3
from hermes_actor.dbapi.held_statements import HeldStatements
from hermes_actor.dbapi.presentation import Presenter
from hermes_actor.dbapi.private_objects import PrivateObjects, ask
from hermes_actor.dbapi.sure_statements import SureStatements
from hermes_actor.dbapi.target import Target, owned_target
from hermes_actor.dbapi.transaction import WriteTransaction
from hermes_actor.sqlite import Connection as BaseConnection
from hermes_actor.sqlite import read_only_uri, sqlite3
from hermes_actor.system.fork import inside
from hermes_protocol.operations import SqlRun, SqlStep

if TYPE_CHECKING:
    from hermes_actor.client.actor_client import ActorClient
    from hermes_protocol.client import PendingReply

__all__ = ["OwnedConnection"]

_Native = sqlite3.Connection

_NOTHING = "PRAGMA hermes_actor_nothing"
"""A statement without columns that does nothing: it checks thread and connection like any other."""

_SHORTEST_SECONDS = 0.25
"""Shortest wait for the write lock, however short the timeout of the program is: every answer of
another process takes a moment, and no answer is no proof of a lock."""

_MAKE_SECONDS = 30.0
"""Longest wait for an actor that saves a deleted file, and for the next one to start."""


class OwnedConnection(BaseConnection):
    """A read-only connection with a way to the actor of its file."""

    _target: Target | None = None
    _transaction: WriteTransaction | None = None
    _client: ActorClient | None = None
    _writing: weakref.ref[WriteTransaction] | None = None
    """The last transaction that was begun, from before it is granted."""
    _remote_changes = 0

    prompt = True
    """True: only statements that cannot fail by themselves wait for the next request. False:
    ``BEGIN IMMEDIATE``, and all statements of a write transaction whose counters are not asked for,
    wait and travel with the next request. That spares most round trips. Their errors come then, at
    the latest with the commit, and the write lock is taken with the first statement."""

    lease_seconds: float | None = None
    """Longest time of one write transaction, if the limit of the file is too short for it. The
    status of the actor shows such a transaction and its holder."""

    def __init__(
        self,
        database: Any,
        timeout: float = 5.0,
        detect_types: int = 0,
        isolation_level: str | None = "",
        check_same_thread: bool = True,
        factory: Any = None,
        cached_statements: int = 128,
        uri: bool = False,
        **more: Any,
    ) -> None:
        target = self._target = owned_target(database, uri)
        self._timeout = timeout
        self._lock = threading.RLock()
        self._private = PrivateObjects()
        self._presenter = Presenter(detects_types=bool(detect_types & sqlite3.PARSE_DECLTYPES))
        self._settings: dict[str, int | str] = {}
        self._held = HeldStatements()
        # Of the last run outside of a transaction.
        self._under_way: list[PendingReply] = []
        self._sure = SureStatements()
        self._schema: int | None = None
        self._reading: weakref.WeakSet[Cursor] = weakref.WeakSet()
        # Of the native transaction, in their order.
        self._savepoints: list[str] = []
        self._has_snapshot = False
        # Not later than the snapshot, by the clock of all processes of this machine.
        self._snapshot_time = float("-inf")
        self._is_stale = self._is_schema_stale = False
        self._last_rowid = self._changes = self._remote_changes = 0
        if target is not None:
            if not target.has_content() and target.may_be_made():
                self._make_file(target)
            if not target.paths.db.is_dir():  # a folder is refused when it is opened for writing
                database, uri = read_only_uri(target.paths.db), True
        inside(
            super().__init__,
            database,
            timeout=timeout,
            detect_types=detect_types,
            isolation_level=isolation_level,
            check_same_thread=check_same_thread,
            cached_statements=cached_statements,
            uri=uri,
            **more,
        )
        if target is not None:
            inside(self._prepare)

    def _make_file(self, target: Target) -> None:
        """Have the actor create the file."""
        port = self._port()
        if not target.has_content():
            # Deleted beside its actor, which sees that when it is to write; the next creates it.
            with as_sqlite3():
                port.run(SqlRun(steps=[SqlStep(sql="PRAGMA user_version")]), _MAKE_SECONDS)

    def _prepare(self) -> None:
        me = weakref.ref(self)
        counters: dict[str, Callable[[OwnedConnection], int]] = {
            "last_insert_rowid": lambda conn: conn._last_rowid,
            "changes": lambda conn: conn._changes,
            "total_changes": lambda conn: conn.total_changes,
        }
        for name, count in counters.items():
            _Native.create_function(self, name, 0, lambda count=count: count(me()))
        # What is no database, or damaged, is said by the first statement, as always.
        with contextlib.suppress(sqlite3.DatabaseError):
            if ask(self, "PRAGMA journal_mode") != [("wal",)]:
                self._port()

    # --- snapshots -------------------------------------------------------------------------------

    def _meet_actor(self) -> None:
        """Have the actor run before a transaction takes its snapshot: its start is a commit, after
        which that transaction could not write."""
        assert self._target is not None
        if self._client is None and os.access(self._target.paths.db, os.W_OK):
            with contextlib.suppress(sqlite3.Error):  # it may only read
                self._port()

    def _note_begin(self, was_open: bool) -> None:
        """Look for cursors whose snapshot a transaction that has just begun has taken over."""
        if not was_open and self.in_transaction:
            self._has_snapshot = self._take_rows()
            self._snapshot_time = float("-inf") if self._has_snapshot else time.monotonic()

    def _note_snapshot(self) -> None:
        """Note that the open transaction, if there is one, has read."""
        if self.in_transaction:
            self._has_snapshot = True

    def _note_end(self) -> None:
        if self._target is not None and not self.in_transaction:
            self._has_snapshot, self._schema = False, None
            self._savepoints.clear()
            if self._settings.get("defer_foreign_keys"):
                self._note_deferral()

    def _note_deferral(self) -> None:
        """Forget ``defer_foreign_keys`` once SQLite has: at the end of a transaction, and of
        a statement outside of one that reads, but not at a ``commit()`` of nothing."""
        with self._private.quiet(self), contextlib.suppress(sqlite3.Error):
            if inside(ask, self, "PRAGMA defer_foreign_keys") == [(0,)]:
                self._settings = {
                    name: value
                    for name, value in self._settings.items()
                    if name != "defer_foreign_keys"
                }

    def _refresh(self) -> None:
        """Let the next statement see what this connection has written."""
        if self._settings.get("defer_foreign_keys") and not self.in_transaction:
            self._note_deferral()
        if not self._is_stale or self.in_transaction:
            return
        self._is_stale = False
        if self._is_schema_stale:
            # "already exists" is said from memory: SQLite believes that it knows its own changes.
            self._is_schema_stale = False
            with self._private.quiet(self), contextlib.suppress(sqlite3.Error):
                inside(ask, self, "SELECT 1 FROM sqlite_master WHERE 0")
        self._take_rows()

    def _take_rows(self) -> bool:
        """Take the rows of unfinished cursors, which hold a snapshot; False if there was none."""
        if not self._reading:
            return False
        found = False
        for cursor in list(self._reading):
            found = buffer(cursor) or found
        self._reading.clear()
        return found

    # --- states ----------------------------------------------------------------------------------

    @property
    def _wait_seconds(self) -> float:
        return max(self._timeout, _SHORTEST_SECONDS)

    def _port(self) -> ActorClient:
        actor_port.end_abandoned()
        if self._client is None:
            assert self._target is not None
            self._client = actor_port.open_port(self._target.paths, self._timeout)
        return self._client

    def _check_process(self) -> None:
        if self._pid != os.getpid() and self._pid:
            raise sqlite3.ProgrammingError(
                f"this connection belongs to process {self._pid}; a forked child opens its own"
            )

    def _check_usable(self) -> None:
        """Raise ``ProgrammingError`` in another thread, or if the connection is closed."""
        self._clear(Cursor(self))

    def _clear(self, cursor: Cursor) -> None:
        """Drop the rows of *cursor*; raise as any statement would that cannot run."""
        with self._private.quiet(self):
            inside(sqlite3.Cursor.execute, cursor, _NOTHING)
        cursor._rowcount = cursor._shown = None

    def _is_legacy(self) -> bool:
        return getattr(self, "autocommit", -1) == -1

    def _ends_by_method(self) -> bool:
        return getattr(self, "autocommit", -1) is not True
