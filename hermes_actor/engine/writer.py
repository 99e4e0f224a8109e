"""The writer: the order of all changes of one database.

It knows no threads, sockets or event loops. Its host calls :meth:`Writer.run_batch` with the
operations that wait and :meth:`Writer.idle_slice` when none do; embedded mode, the actor, the
simulation and the crash replay are such hosts.

Guarantees to the host. Results of a batch are final when ``run_batch`` returns: committed and
synced, or not executed at all. An operation that fails takes no other with it, and a broken index
fails none. An error that leaves the outcome open (:class:`OutcomeUnknown`) breaks the writer for
good: every later call raises the first cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.batch import BatchRunner
from hermes_actor.engine.change_log import ChangeLog
from hermes_actor.engine.change_transaction import ChangeTransaction
from hermes_actor.engine.checkpoint import Checkpointer
from hermes_actor.engine.connection import WriteConnection
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.guest_statements import GuestStatements
from hermes_actor.engine.leases import LeaseRunner
from hermes_actor.engine.maintenance import IdleMaintenance
from hermes_actor.engine.receipts import Receipts
from hermes_actor.sqlite import sqlite3
from hermes_actor.write_rules import NO_RULES, WriteRules
from hermes_protocol.features import SESSIONS

if TYPE_CHECKING:
    from hermes_actor.engine.jobs import Lease, Outcome, Request
    from hermes_actor.engine.kinds import Kind
    from hermes_actor.paths import StorePaths
    from hermes_protocol.messages import Changed
    from hermes_protocol.status import PhaseReport

__all__ = ["Writer"]

_log = logging.getLogger("hermes_actor.engine")


class Writer:
    """Composes connection, receipts, batches, leases and maintenance of one database.

    The caller holds the owner lock for as long as it lives.
    """

    def __init__(
        self,
        paths: StorePaths,
        env: Environment | None = None,
        *,
        others_wait: Callable[[], bool] = lambda: False,
        on_epoch: Callable[[int], None] = lambda _epoch: None,
        on_phase: Callable[[PhaseReport], None] = lambda _phase: None,
        changes: ChangeLog | None = None,
        timeout: float = limits.OPEN_BUSY_SECONDS,
        anchored: bool = False,
        rescues: bool = True,
        private_sql: bool = True,
        kind: str = SESSIONS,
        rules: WriteRules = NO_RULES,
    ) -> None:
        """Open the file and bring its schema up to date; see :func:`open_database` for errors.

        *others_wait* is called during long idle work, which is given up when it returns True.
        *on_epoch* is called with each epoch that begins, *on_phase* with what takes long during the
        opening, in which foreign locks are waited for with *timeout*. Every commit goes to
        *changes*. *anchored*: closing leaves the WAL to processes that have the file open, or are
        about to open it. *rescues*: a database that is removed while it is open is saved whole.
        Without *private_sql* every statement of a guest is refused, in whatever way it comes.
        *kind* is that of a file that does not say its own. *rules* are those of the settings.
        """
        self.connection = WriteConnection(
            paths,
            env or Environment(),
            on_epoch,
            on_phase,
            timeout,
            anchored,
            rescues,
            kind,
            rules,
        )
        self.checkpointer = Checkpointer(self.connection)
        self.receipts = Receipts(self.connection.swept_through)
        self.changes = changes or ChangeLog()
        # Empty: a subscriber that asks for what came before this owner gets a gap.
        self.changes.begin(self.connection.commit_no)
        self.index = self.kind.index(self.connection, self.checkpointer, others_wait)
        self.lease: Lease | None = None
        """The interactive transaction that is open. The loop sets it."""
        self.held_by: str | None = None
        """Holder that keeps changes waiting, for people."""
        self.others_wait = others_wait
        """True if anything but the running job waits for the writer. The host may know better."""
        self._transaction = ChangeTransaction(self.connection, self.receipts, self.changes)
        guests = GuestStatements(
            # Looked up at each call: the loop replaces others_wait when it begins.
            self.connection,
            self.index,
            lambda: self.others_wait(),
            allowed=private_sql,
        )
        self._batches = BatchRunner(
            self.connection,
            self.checkpointer,
            self.receipts,
            self._transaction,
            self.index,
            guests,
        )
        self.leases = LeaseRunner(
            self.connection, self.receipts, self._transaction, self.index, guests
        )
        self.maintenance = IdleMaintenance(
            self.connection,
            self.checkpointer,
            self.index,
            self.receipts,
            self._transaction,
            others_wait,
        )

    def __repr__(self) -> str:
        connection = self.connection
        state = "broken" if connection.broken else "open" if connection.recovered else "recovering"
        return (
            f"<Writer {state} {self.paths.db.name} epoch={connection.epoch}"
            f" commit_no={connection.commit_no} watermark={self.index.watermark}>"
        )

    @property
    def paths(self) -> StorePaths:
        """The files of the store."""
        return self.connection.paths

    @property
    def kind(self) -> Kind:
        """The kind of the file."""
        return self.connection.kind

    @property
    def epoch(self) -> int:
        """The epoch of this owner; 0 before start-up recovery."""
        return self.connection.epoch

    @property
    def commit_no(self) -> int:
        """The number of the last change that is in the file."""
        return self.connection.commit_no

    def recover(self, seconds: float = limits.OPEN_BUSY_SECONDS) -> bool:
        """Try start-up recovery now. Returns False while a foreign lock or a reader blocks it."""
        return self.connection.recover(seconds)

    def run_batch(self, requests: Sequence[Request]) -> list[Outcome]:
        """Apply *requests* in order and commit them together.

        Returns the outcomes of a prefix of *requests*, at least one: a batch that takes long
        commits what it has, and the host brings the rest again.
        """
        return self._batches.run(requests)

    def idle_slice(self) -> float | None:
        """Do a bounded piece of maintenance; see :meth:`IdleMaintenance.run_slice`."""
        pause = self.maintenance.run_slice()
        # A slice may have noticed commits of other programs; subscribers learn of them here.
        self._transaction.publish()
        return pause

    def take_changes(self) -> list[Changed]:
        """Return the changes of the lease that was just committed, for :meth:`ChangeLog.add`."""
        return self._transaction.take_changes()

    def abandon(self) -> None:
        """Leave no transaction open after a lease or an unexpected error, and no part of a
        statement. A broken writer touches nothing."""
        # In memory, so a broken writer may do that as well.
        self.leases.discard_parts()
        if self.connection.broken is None:
            try:
                self._transaction.roll_back()
            except sqlite3.Error as error:
                _log.error("%s cannot be rolled back: %s", self.paths.db, error)

    def close(self) -> None:
        """Move the WAL into the database as far as readers allow, and close the file."""
        # In this order: the builder must not outlive the file, and the checkpoint needs it open.
        self.index.close()
        self.checkpointer.run_before_close()
        self.connection.close()
