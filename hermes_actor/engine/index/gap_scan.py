"""The search for unindexed messages below the watermark.

It runs once after the schema has changed, and now and then while other programs commit: what they
do to the full-text tables shows nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.index.indexer import index_gaps, mark_gaps_unchecked
from hermes_actor.engine.meta_table import get_internal, set_internal

if TYPE_CHECKING:
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.sqlite import Connection

__all__ = ["GapScan"]


class GapScan:
    """The progress of the search, and the time when it is due again."""

    def __init__(self, connection: WriteConnection) -> None:
        self.is_due = False
        """True if other programs have committed since the last search began."""
        self._connection = connection
        self._foreign_seen = 0
        self._not_before = float("-inf")
        self._through: int | None = None

    def restart(self, conn: Connection) -> None:
        """Search all messages again, from inside the open transaction."""
        mark_gaps_unchecked(conn)
        self._through = None

    def forget_progress(self) -> None:
        """Go on where the file says: the indexes were replaced."""
        self._through = None

    def notice_foreign_commits(self) -> None:
        """Have the search run again, when it is time, if other programs have committed since."""
        self.is_due |= self._connection.foreign_commits != self._foreign_seen
        self._foreign_seen = self._connection.foreign_commits

    def run_slice(self, current_watermark: Callable[[], int]) -> bool:
        """Search a bounded part, and index what is missing; False if nothing is due.

        Raises :class:`IndexFailed`, the error of SQLite, or the reason for having no transaction.
        """
        connection, env = self._connection, self._connection.env
        # Memory first: progress that found nothing is not written, or a search of all messages
        # would be a sync for each of its slices.
        checked = self._through or get_internal(connection.conn, "holes_checked")
        again = self.is_due and env.monotonic() >= self._not_before
        if checked is None or (checked >= current_watermark() and not again):
            return False
        # Without any wait: a gap that was there for long can wait for a foreign lock.
        failed = connection.begin(env.monotonic())
        if failed is not None:
            raise failed
        # Not before: beginning a transaction may derive the watermark again.
        conn, watermark = connection.conn, current_watermark()
        if checked >= watermark:
            # From the start: what other programs did may be anywhere.
            checked = mark_gaps_unchecked(conn)
            self.is_due = False
            self._not_before = env.monotonic() + limits.HOLES_AGAIN_SECONDS
        before, until = conn.total_changes, env.monotonic() + limits.INDEX_SLICE_BUSY_SECONDS
        through = index_gaps(conn, checked, watermark, env, until)
        if conn.total_changes == before and through < watermark:
            connection.roll_back()  # nothing to keep but the progress, which memory has
        else:
            set_internal(conn, "holes_checked", through)
            connection.commit()
        self._through = through if through < watermark else None
        return True
