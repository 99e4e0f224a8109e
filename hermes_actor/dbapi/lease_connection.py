"""The transactions of a connection to a file that has an actor.

The transaction that the program sees is the native one of its read-only connection. Its writing
half, from the first write on, is a lease in the actor. The methods here keep the two together.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from hermes_actor.dbapi.errors import as_sqlite3, busy_snapshot, from_actor
from hermes_actor.dbapi.held_statements import show
from hermes_actor.dbapi.owned_connection import OwnedConnection
from hermes_actor.dbapi.private_objects import ask
from hermes_actor.dbapi.requests import one_each
from hermes_actor.dbapi.statements import SCHEMA, ends_by_conflict, words
from hermes_actor.dbapi.transaction import WriteTransaction
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.limits import MIGRATION_WINDOW_SECONDS
from hermes_actor.sqlite import sqlite3
from hermes_actor.system.fork import inside
from hermes_protocol.operations import SqlReply, SqlRun, SqlStep, Vacuum

__all__ = ["LeaseConnection"]

_Native = sqlite3.Connection

_COMMIT_NO = "SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'"

_EPOCH = "SELECT value FROM hermes_actor_meta WHERE key = 'epoch'"

_OWNER = f"SELECT ({_EPOCH}), hermes_actor_foreign_commit()"
"""In a lease: the actor, and when it has noticed the last commit of a foreign program."""

_DEFERRED_KEYS = "SELECT 1 FROM main.sqlite_master WHERE sql LIKE '%DEFERRED%' LIMIT 1"

_VACUUM_SECONDS = 3600.0


class LeaseConnection(OwnedConnection):
    """A connection whose writes run in the actor: alone, or in a lease."""

    _migrates_until = float("-inf")
    _expects_migration = False

    def expect_migration(self) -> None:
        """Take what this connection writes at first, and after each change of the schema, for parts
        of a migration, whole transactions too: what breaks the limits of the file runs again, for
        as long as it takes, while others wait."""
        self._expects_migration = True
        self._go_on_migrating()

    def _go_on_migrating(self) -> None:
        self._migrates_until = time.monotonic() + MIGRATION_WINDOW_SECONDS

    def _begin_writing(self) -> None:
        """Take the write lock for a transaction that has begun with the word for it."""
        transaction = self._new_transaction()
        try:
            if self.prompt:
                # Without a statement, for the schema that the transaction has.
                transaction.open(self._run_of([]))
            self._transaction = transaction
        except BaseException:
            transaction.give_up()
            self._lose()
            raise

    def _send(self, steps: list[SqlStep]) -> SqlReply:
        """Run *steps* in the actor: alone, or as a part of the open transaction."""
        if any(words(one.sql)[0] in SCHEMA for one in steps):
            self._is_schema_stale = True
            self._go_on_migrating()
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
        if len(single) == 1 or not (
            any(ends_by_conflict(one.sql) for one in steps) or self._has_deferred_keys()
        ):
            return self._run_one(steps)
        reply = SqlReply(results=[])
        for one in single:
            more = self._run_one([one])
            reply = structs.replace(more, results=[*reply.results, *more.results])
            if reply.error is not None:
                break
        return reply

    def _run_one(self, steps: list[SqlStep]) -> SqlReply:
        """Run *steps* in one request outside of a transaction."""
        self._under_way = []
        migrates = time.monotonic() <= self._migrates_until
        with as_sqlite3():
            run = self._run_of(steps)
            try:
                reply = self._port().run(run, self._wait_seconds, self._under_way)
            except DeadlineExceeded:
                if not migrates:
                    raise
                reply = self._migrate(run)
        self._count(reply)
        return reply

    def _migrate(self, run: SqlRun) -> SqlReply:
        """Run again, in a long lease of its own, what was interrupted outside of a transaction."""
        transaction = self._new_transaction(migrates=True)
        transaction.lengthen()
        try:
            reply = transaction.run(run)
            if transaction.is_open:
                transaction.commit()  # as far as it came, if a statement has failed
        except BaseException:
            transaction.give_up()
            raise
        self._go_on_migrating()
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
        return SqlRun(
            steps=steps,
            settings=self._settings,
            lastrowid=self._last_rowid,
            changes=self._changes,
        )

    def _new_transaction(self, *, migrates: bool = False) -> WriteTransaction:
        is_expected = self._expects_migration and time.monotonic() <= self._migrates_until
        made = WriteTransaction(
            self._port(),
            self._settings,
            self._wait_seconds,
            seconds=self.lease_seconds,
            migrates=migrates or is_expected,
        )
        self._writing = weakref.ref(made)
        return made

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
        if transaction.is_migration:
            self._go_on_migrating()  # with the next part of it

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
