"""The writing half of an open transaction: a lease of the actor that survives the actor.

The statements of the transaction are kept, with a digest of every answer that the program has
seen. When the lease is lost with its actor, they run again in a new one. If all answers are the
same, the program cannot tell the difference and goes on; otherwise the transaction is rolled back
and the program gets the error that its retry loop knows (G17).
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from hermes_actor.dbapi.errors import as_sqlite3, locked
from hermes_actor.dbapi.statements import READS, SCHEMA, words
from hermes_actor.errors import DeadlineExceeded, HermesActorError, LeaseLost
from hermes_actor.limits import LONG_LEASE_SECONDS, MIGRATION_PAUSE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hermes_actor.client.interfaces import SqlLease, SqlPort
    from hermes_protocol.operations import SqlReply, SqlRun

__all__ = ["MOST_BYTES", "MOST_STATEMENTS", "Journal", "WriteTransaction"]

MOST_STATEMENTS = 1_000
"""Statements of a transaction up to which it can run again."""

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of statements and parameters up to which it can."""

_REPLAY_SECONDS = 5.0
"""Shortest time for running again: a new actor has to come up first, whatever the timeout of the
program is, which is about the locks of others."""


class Journal:
    """The statements of a transaction, with digests of what they have answered."""

    def __init__(self) -> None:
        self.entries: list[tuple[SqlRun, bytes]] = []
        self._statements = 0
        self._bytes = 0

    @property
    def is_complete(self) -> bool:
        """False if there was more than is kept: the transaction cannot run again."""
        return self._statements <= MOST_STATEMENTS and self._bytes <= MOST_BYTES

    def add(self, run: SqlRun, reply: SqlReply) -> None:
        """Keep *run* and the digest of its answer."""
        self._statements += sum(len(step.rows or step.named_rows or ()) or 1 for step in run.steps)
        self._bytes += len(msgspec.msgpack.encode(run))
        if self.is_complete:
            self.entries.append((run, digest(reply)))
        else:
            self.entries.clear()


def digest(reply: SqlReply) -> bytes:
    """Return what two answers have in common if and only if a program cannot tell them apart."""
    reply = structs.replace(reply, schema=None)  # may change without it, as by VACUUM
    return hashlib.blake2b(msgspec.msgpack.encode(reply), digest_size=16).digest()


class WriteTransaction:
    """One transaction in the actor. Every method raises classes of ``sqlite3`` only.

    After an error of the lease itself :attr:`is_open` is False, and the transaction is rolled back.
    An error of a statement is in its reply.

    A migration that breaks the limits of the file runs again under those of a long lease: one that
    changes the schema, or is marked as one.
    """

    def __init__(
        self,
        port: SqlPort,
        settings: Mapping[str, int | str],
        timeout: float,
        *,
        seconds: float | None = None,
        migrates: bool = False,
    ) -> None:
        self.is_open = False
        self.schema: int | None = None
        """Version of the schema inside the transaction, as far as it is known."""
        self._port = port
        self._settings = dict(settings)
        self._timeout = timeout
        self._seconds = seconds
        self._pause: float | None = None
        self._migrates = migrates
        self._journal = Journal()
        self._may_have_written = False
        # The lease, if there is one. A list, which has it before anything is sent.
        self._leases: list[SqlLease] = []
        self._heard = 0.0

    @property
    def idle_seconds(self) -> float:
        """Time since the last answer of the actor; 0 before there is a lease."""
        return time.monotonic() - self._heard if self._leases else 0.0

    def open(self, first: SqlRun | None = None) -> SqlReply | None:
        """Take the write lock, and run *first* in the same request.

        Raises "database is locked" if it is not free within the timeout.
        """
        if first is not None:
            self._note_writes(first)
        with as_sqlite3():
            try:
                lease = self._open_lease(self._timeout, first)
            except DeadlineExceeded:
                if not self.lengthen():
                    raise
                lease = self._open_lease(self._timeout, first)
        reply = lease.reply
        self.is_open = reply is None or reply.open
        if first is not None and reply is not None:
            self.schema = reply.schema
            self._journal.add(first, reply)
        self._heard = time.monotonic()
        return reply

    def run(self, run: SqlRun) -> SqlReply:
        """Run statements, in another lease than before if that was lost, or with which it opens."""
        try:
            if not self.is_open and not self._leases:
                opened = self.open(run)
                assert opened is not None
                return opened
            self._note_writes(run)
            with as_sqlite3():
                while True:
                    try:
                        reply = self._leases[-1].run(run)
                        break
                    except DeadlineExceeded as error:
                        self._repeat(error)
        except BaseException:
            # Of an interrupted statement the answer is lost, so whether it ran is not known here.
            self.give_up()
            raise
        self.is_open, self.schema = reply.open, reply.schema
        self._heard = time.monotonic()
        self._journal.add(run, reply)
        return reply

    def ask(self, run: SqlRun) -> SqlReply:
        """Run a question of our own, which is not repeated in another lease."""
        with as_sqlite3():
            return self._leases[-1].run(run)

    def commit(self, last: SqlRun | None = None) -> SqlReply | None:
        """Return when everything is committed and synced, once, however often it was sent.

        *last* travels with the commit; with an error of a statement in its reply, which is
        returned, everything is rolled back. After any other error it is rolled back, unless its
        text says that the outcome is unknown.
        """
        if not self._leases:
            if last is None:
                return None  # not opened: there was nothing to travel with
            reply = self.run(last)
            if reply.error is not None:
                self.rollback()
                return reply
            self.commit()
            return reply
        answer: SqlReply | None = None
        if last is not None:
            self._note_writes(last)
        try:
            with as_sqlite3():
                while True:
                    try:
                        lease = self._leases[-1]
                        if last is not None:
                            answer = lease.run_and_commit(last)
                        else:
                            # Nothing to commit, number and sync; but that the lock was held is
                            # asked.
                            (lease.commit if self._may_have_written else lease.rollback)()
                        break
                    except DeadlineExceeded as error:
                        # Not committed: a commit whose answer was lost is answered by its receipt.
                        self._repeat(error)
        except BaseException:
            self.give_up()
            raise
        self.is_open = False
        self._leases.clear()
        return answer

    def rollback(self) -> None:
        """Undo everything. Never raises: what the actor cannot be asked for it does by itself."""
        self.is_open = False
        for lease in self._leases:
            with contextlib.suppress(HermesActorError, OSError):
                lease.rollback()
        self._leases.clear()

    def give_up(self) -> None:
        """Undo everything that is not committed, without waiting for the actor."""
        self.is_open = False
        for lease in self._leases:
            lease.give_up()
        self._leases.clear()

    @property
    def is_migration(self) -> bool:
        """True if it runs under the limits of a migration."""
        return self._pause is not None

    def lengthen(self) -> bool:
        """Ask for the limits of a migration from now on; False if it is none, or has asked."""
        if not self._migrates or self._seconds is not None:
            return False
        self._seconds, self._pause = LONG_LEASE_SECONDS, MIGRATION_PAUSE_SECONDS
        return True

    def interrupt(self) -> None:
        """Have the statement end that another thread waits for."""
        for lease in list(self._leases):
            lease.interrupt()

    def _note_writes(self, run: SqlRun) -> None:
        first_words = {words(step.sql)[0] for step in run.steps}
        self._may_have_written |= not first_words <= READS
        self._migrates |= not first_words.isdisjoint(SCHEMA)

    def _open_lease(self, timeout: float, first: SqlRun | None) -> SqlLease:
        self._leases.clear()
        return self._port.open_lease(
            self._settings,
            timeout,
            first=first,
            seconds=self._seconds,
            pause=self._pause,
            begun=self._leases,
        )

    def _repeat(self, lost: DeadlineExceeded) -> None:
        """Run everything again in a new lease. Raises "database is locked" if that differs, and
        *lost* if the lease has broken a limit that it has to keep."""
        if not isinstance(lost, LeaseLost) and not self.lengthen():
            raise lost
        if not self._journal.is_complete:
            raise locked(
                f"a transaction of more than {MOST_STATEMENTS} statements or {MOST_BYTES} bytes was"
                f" lost and cannot run again; it was rolled back ({lost})"
            ) from lost
        deadline = time.monotonic() + max(self._timeout, _REPLAY_SECONDS)
        while True:
            try:
                self._repeat_once(max(0.0, deadline - time.monotonic()))
                return
            except LeaseLost as again:
                if time.monotonic() >= deadline:
                    raise locked(f"the transaction was rolled back ({again})") from again

    def _repeat_once(self, timeout: float) -> None:
        entries = self._journal.entries
        lease = self._open_lease(timeout, entries[0][0] if entries else None)
        for position, (run, seen) in enumerate(entries):
            reply = lease.reply if position == 0 else lease.run(run)
            self.schema = None if reply is None else reply.schema
            if reply is None or digest(reply) != seen:
                self.rollback()
                raise locked(
                    "the transaction was lost in the middle, and another program has meanwhile"
                    " changed what it had read; it was rolled back"
                )
