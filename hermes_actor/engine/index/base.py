"""The index of a file that has none of ours; also the face of one to the common engine."""

from __future__ import annotations

from collections.abc import Callable

from hermes_actor.errors import NotAllowed
from hermes_protocol.status import IndexStatus

__all__ = ["Index"]


class Index:
    """Covers everything at any time, because nothing is to be indexed.

    A kind with indexes overrides all of this.
    """

    watermark = newest = rebuilds = 0
    damage: str | None = None
    """Reason for which the indexes must be rebuilt, if there is one."""
    unsettled = False
    """True if notes of ordinary messages were left after the last slice."""
    retry_seconds: float | None = None
    """Seconds after which a text that has failed is due; ``None`` if there is none."""

    @property
    def failure(self) -> str | None:
        """Reason why a text is not indexed although it was tried."""
        return None

    @property
    def lag(self) -> int:
        """Number of ids above the watermark, as of the last look at the newest one."""
        return self.newest - self.watermark

    @property
    def lag_is_urgent(self) -> bool:
        """True if indexing must go on between batches."""
        return False

    @property
    def is_due(self) -> bool:
        """True if idle time is needed, although nothing was committed since the last slice."""
        return False

    @property
    def has_postponed(self) -> bool:
        """True if idle work waits for its time, which comes without a commit."""
        return False

    def status(self) -> IndexStatus:
        """Return the figures for the status document."""
        return IndexStatus()

    def may_have_caused(self, error: BaseException | None) -> bool:
        """Return True if a damaged index may have caused *error* of a change (G7)."""
        return False

    def drop_triggers(self) -> None:
        """Drop the triggers of all indexes inside the open transaction."""

    def forget_contents(self, error: BaseException) -> None:
        """Count every message as unindexed: a change succeeded only without the triggers."""

    def report_damage(self, reason: object) -> None:
        """Have the indexes rebuilt: one is damaged, and no trial without it could be made."""

    def guest_has_written(self) -> None:
        """Derive what a statement may have changed, inside its transaction."""

    def index_in_transaction(self) -> None:
        """Index inside the open transaction of a guest, who is about to read the indexes."""

    def content_replaced(self) -> None:
        """Give up work on a content that is no longer in the file."""

    def pending_large_texts(self, through: int) -> set[int]:
        """Return messages up to *through* that searches lack because their text is large."""
        return set()

    def run_slice(self, seconds: float) -> bool:
        """Index for about *seconds*; returns True if more is left to do."""
        return False

    def run_bulk_slice(self, leave: int = 0) -> float | None:
        """Do a bounded part of indexing many messages aside; returns when the next part is due.

        ``None``: what there is to index is left to slices.
        """
        return None

    def wait_for_bulk(self, seconds: float) -> None:
        """Return when there is something to do for :meth:`run_bulk_slice`, or after *seconds*."""

    def run_large_text_slice(self, *, idle: bool, wait: float = 0.0) -> float | None:
        """Do a bounded part of what large texts need; returns when the next part is due."""
        return None

    def run_idle_slice(self) -> float | None:
        """Do a bounded piece of idle work.

        Returns after how many seconds the next piece is due, before all other maintenance;
        ``None``: other maintenance comes next.
        """
        return None

    def complete(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Index every message, gaps included, for as long as it takes."""

    def rebuild(self) -> None:
        """Replace the indexes by empty ones. Raises :class:`NotAllowed` where there are none."""
        raise NotAllowed("a plain file has no full-text indexes of ours to rebuild")

    def rebuild_if_damaged(self, schema: int | None) -> None:
        """Rebuild the indexes if one cannot be used, or was found damaged under this *schema*."""

    def close(self) -> None:
        """End the processes that work on the index."""
