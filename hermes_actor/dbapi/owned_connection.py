"""A connection to a file that has an actor: its opening, its port, and its transactions.

The transaction that the program sees is the native one of this read-only connection. Its writing
half, from the first write on, is a lease in the actor. The methods here keep the two together, and
let reads of this connection see what it has written.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import structs

from hermes_actor.dbapi import actor_port
from hermes_actor.dbapi.cursor import Cursor, buffer
from hermes_actor.dbapi.errors import as_sqlite3, busy_snapshot, from_actor
from hermes_actor.dbapi.held_statements import HeldStatements, show
from hermes_actor.dbapi.presentation import Presenter
from hermes_actor.dbapi.private_objects import PrivateObjects, ask
from hermes_actor.dbapi.requests import one_each
from hermes_actor.dbapi.statements import SCHEMA, ends_by_conflict, words
from hermes_actor.dbapi.target import Target, owned_target
from hermes_actor.dbapi.transaction import WriteTransaction
from hermes_actor.sqlite import Connection as BaseConnection
from hermes_actor.sqlite import read_only_uri, sqlite3
from hermes_actor.system.fork import inside
from hermes_protocol.operations import SqlReply, SqlRun, SqlStep, Vacuum

if TYPE_CHECKING:
    from hermes_actor.client.actor_client import ActorClient

__all__ = ["OwnedConnection"]

_Native = sqlite3.Connection

_NOTHING = "PRAGMA hermes_actor_nothing"
"""A statement without columns that does nothing: it checks thread and connection like any other."""

_COMMIT_NO = "SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'"

_EPOCH = "SELECT value FROM hermes_actor_meta WHERE key = 'epoch'"

_OWNER = f"SELECT ({_EPOCH}), hermes_actor_foreign_commit()"
"""In a lease: the actor, and when it has noticed the last commit of a foreign program."""

_DEFERRED_KEYS = "SELECT 1 FROM main.sqlite_master WHERE sql LIKE '%DEFERRED%' LIMIT 1"

_SHORTEST_SECONDS = 0.25
"""Shortest wait for the write lock, however short the timeout of the program is: every answer of
another process takes a moment, and no answer is no proof of a lock."""

_VACUUM_SECONDS = 3600.0

_MAKE_SECONDS = 30.0
"""Longest wait for an actor that saves a deleted file, and for the next one to start."""


class OwnedConnection(BaseConnection):
    """A read-only connection with a way to the actor of its file."""

    _target: Target | None = None
    _transaction: WriteTransaction | None = None
    _client: ActorClient | None = None
    _remote_changes = 0

    prompt = True
    """False: ``BEGIN IMMEDIATE``, and statements of a write transaction whose counters are not
    asked for, wait and travel with the next request. That spares most round trips. Their errors
    come then, at the latest with the commit, and the write lock is taken with the first
    statement."""

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

    # --- writing ---------------------------------------------------------------------------------

    def _begin_writing(self) -> None:
        """Take the write lock for a transaction that has begun with the word for it."""
        transaction = self._new_transaction()
        try:
            if self.prompt:
                transaction.open()
            self._transaction = transaction
        except BaseException:
            transaction.give_up()
            self._lose()
            raise

    def _send(self, steps: list[SqlStep]) -> SqlReply:
        """Run *steps* in the actor: alone, or as a part of the open transaction."""
        if any(words(one.sql)[0] in SCHEMA for one in steps):
            self._is_schema_stale = True
        self._is_stale = True
        held = self._held.take()
        if self._transaction is not None:
            run = self._run_of([*(one.step for one in held), *steps])
            reply = self._run_open(self._transaction, run)
        elif self.in_transaction:
            reply = self._open_writing(steps)
        else:
            return self._run_alone(steps)
        before = self._last_rowid
        self._count(reply)
        if held:
            show(held, reply, before)
            if len(reply.results) < len(held) and reply.error is not None:
                raise self._private.explained(from_actor(reply.error))
            reply = structs.replace(reply, results=reply.results[len(held) :])
        return reply

    def _run_alone(self, steps: list[SqlStep]) -> SqlReply:
        """Run *steps* outside of a transaction: in one request, if that is the same as
        a transaction for each statement and each row."""
        single = one_each(steps)
        apart = len(single) > 1 and (
            any(ends_by_conflict(one.sql) for one in steps) or self._has_deferred_keys()
        )
        reply = SqlReply(results=[])
        for group in ([one] for one in single) if apart else [steps]:
            with as_sqlite3():
                more = self._port().run(self._run_of(group), self._wait_seconds)
            self._count(more)
            reply = structs.replace(more, results=[*reply.results, *more.results])
            if reply.error is not None:
                break
        return reply

    def _has_deferred_keys(self) -> bool:
        """Return True if a commit may find what no statement before it did."""
        if not self._settings.get("foreign_keys"):
            return False
        self._refresh()
        with self._private.quiet(self), contextlib.suppress(sqlite3.DatabaseError):
            return bool(inside(ask, self, _DEFERRED_KEYS))
        return False

    def _send_held(self) -> None:
        """Run the statements that wait."""
        with self._lock:
            if self._held:
                self._send([])

    def _run_open(self, transaction: WriteTransaction, run: SqlRun) -> SqlReply:
        try:
            return transaction.run(run)
        finally:
            if not transaction.is_open:
                self._lose()

    def _open_writing(self, steps: list[SqlStep]) -> SqlReply:
        """Begin to write in a transaction that has only read so far. *steps* travel along.

        Raises SQLITE_BUSY_SNAPSHOT if what it has read is not the present state any more.
        """
        prefix = self._prefix()
        seen = self._in_snapshot(_COMMIT_NO) if self._has_snapshot else None
        if self._has_snapshot:
            prefix.insert(0, SqlStep(sql=_COMMIT_NO))
        transaction = self._new_transaction()
        try:
            reply = transaction.open(self._run_of([*prefix, *steps]))
            assert reply is not None
            if self._has_snapshot and (
                seen != reply.results[0].rows or not self._is_latest_snapshot(transaction)
            ):
                transaction.rollback()
                raise busy_snapshot()
            self._transaction = transaction
        except BaseException:
            transaction.give_up()
            raise
        if not transaction.is_open:
            self._lose()
        return structs.replace(reply, results=reply.results[len(prefix) :])

    def _run_of(self, steps: list[SqlStep]) -> SqlRun:
        return SqlRun(steps=steps, settings=self._settings, lastrowid=self._last_rowid)

    def _new_transaction(self) -> WriteTransaction:
        return WriteTransaction(
            self._port(), self._settings, self._wait_seconds, seconds=self.lease_seconds
        )

    def _prefix(self) -> list[SqlStep]:
        return [SqlStep(sql=sql) for sql in self._savepoints]

    def _in_snapshot(self, sql: str) -> list[list[Any]]:
        """Return the rows of a query of our own in the snapshot of this connection."""
        with self._private.quiet(self), contextlib.suppress(sqlite3.OperationalError):
            return [list(row) for row in inside(ask, self, sql)]
        return []

    def _is_latest_snapshot(self, transaction: WriteTransaction) -> bool:
        """Return True if no program without an actor has committed since the snapshot.

        Called while the lease keeps all of them out. An actor notices such commits; of what was
        before its start it knows nothing. Its own commits that are no change of a program count as
        little as they do for programs.
        """
        reply = transaction.ask(self._run_of([SqlStep(sql=_OWNER)]))
        if reply.error is not None:
            return False
        ((epoch, noticed),) = reply.results[0].rows
        is_later = isinstance(noticed, float) and noticed > self._snapshot_time
        return [[epoch]] == self._in_snapshot(_EPOCH) and not is_later

    @contextlib.contextmanager
    def _begun(self, was_open: bool) -> Iterator[None]:
        """Undo the BEGIN IMMEDIATE of Python if the block does not get the write lock."""
        try:
            yield
        except sqlite3.Error:
            begun = self.in_transaction and not was_open and self._transaction is None
            if begun and (self.isolation_level or "").upper() in ("IMMEDIATE", "EXCLUSIVE"):
                inside(_Native.rollback, self)
                self._note_end()
            raise

    def _end_writing(self, *, commit: bool) -> None:
        """End the lease. If it cannot be committed, the transaction is over here, too."""
        transaction = self._transaction
        assert transaction is not None
        self._is_stale = True
        try:
            if commit:
                self._commit(transaction)
            else:
                self._held.drop()
                transaction.rollback()
            self._transaction = None
        except BaseException:
            self._lose()
            raise

    def _commit(self, transaction: WriteTransaction) -> None:
        held = self._held.take()
        reply = transaction.commit(self._run_of([one.step for one in held]) if held else None)
        if reply is None:
            return
        before = self._last_rowid
        self._count(reply)
        show(held, reply, before)
        if reply.error is not None:
            raise self._private.explained(from_actor(reply.error))

    def _lose(self) -> None:
        """Roll back here what is rolled back in the actor."""
        self._held.drop()
        if self._transaction is not None:
            # A statement may have ended the transaction; its lease would stay, and others wait.
            self._transaction.give_up()
            self._transaction = None
        self._is_stale = True
        if self.in_transaction:
            inside(_Native.rollback, self)
        self._note_end()

    def _vacuum(self) -> None:
        with as_sqlite3():
            self._port().submit(Vacuum(), _VACUUM_SECONDS)
        self._is_stale = self._is_schema_stale = True

    def _count(self, reply: SqlReply) -> None:
        for result in [*reply.results, *filter(None, [reply.failed])]:
            if result.lastrowid is not None:
                self._last_rowid = result.lastrowid
            if result.rowcount >= 0 or result is reply.failed:
                self._changes = result.changes
            self._remote_changes += result.total_changes

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
            self._has_snapshot = False
            self._savepoints.clear()
            if "defer_foreign_keys" in self._settings:  # SQLite resets it, too
                self._settings = {
                    name: value
                    for name, value in self._settings.items()
                    if name != "defer_foreign_keys"
                }

    def _refresh(self) -> None:
        """Let the next statement see what this connection has written."""
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
