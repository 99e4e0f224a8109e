"""The open transaction of a batch or a lease: what memory must know once it is committed.

Receipts and published changes follow the file. Nothing is remembered of a transaction that was
rolled back, and everything of one that was committed, even if its outcome cannot be acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor.engine.change_log import FOREIGN
from hermes_actor.errors import OutcomeUnknown

if TYPE_CHECKING:
    from hermes_actor.engine.change_log import ChangeLog
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.receipts import Receipts, Ticket
    from hermes_protocol.messages import Changed

__all__ = ["ChangeTransaction"]


class ChangeTransaction:
    """Couples the transactions of a connection with receipts and the log of changes."""

    def __init__(self, connection: WriteConnection, receipts: Receipts, changes: ChangeLog) -> None:
        self.changed: list[Changed] = []
        """Changes of the open transaction, in their order."""
        self.parts_discarded = False
        """True if the transaction has removed the parts of an operation that was refused."""
        self._connection = connection
        self._receipts = receipts
        self._changes = changes
        self._foreign_published = 0

    def commit(self, commit_no: int, writes: int, tickets: list[Ticket]) -> None:
        """Commit the transaction, which holds all changes up to *commit_no*.

        Raises :class:`TransactionLost` or :class:`OutcomeUnknown`.
        """
        try:
            self._connection.commit(commit_no, writes)
        except OutcomeUnknown:
            if self._connection.broken is None:
                # It is in the file, and so are the receipts that answer a client that asks again.
                self._receipts.committed(tickets)
                self.publish()
            raise
        # After the commit: memory ahead of the file would answer requests that are not in it.
        self._receipts.committed(tickets)
        self.parts_discarded = False

    def roll_back(self) -> None:
        """End the transaction, if one is open, without a trace in the file or in memory."""
        self._connection.roll_back()
        self._receipts.rolled_back()
        self.changed = []
        self.parts_discarded = False

    def publish(self) -> None:
        """Add the changes of the transaction that was just committed to the log of changes."""
        changed = self.take_changes()
        if changed:
            self._changes.add(changed)

    def take_changes(self) -> list[Changed]:
        """Return what the caller publishes later, and before anything that is committed later."""
        changed, self.changed = self.changed, []
        if self._connection.foreign_commits != self._foreign_published:
            # Noticed when the transaction began: what was written outside came before it.
            self._foreign_published = self._connection.foreign_commits
            changed.insert(0, FOREIGN)
        return changed
