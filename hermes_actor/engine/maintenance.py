"""Work of the writer in idle time and between batches: index, repair, clean up, checkpoint.

Each piece is bounded, so that a change that comes meanwhile waits for a bounded time, and each is
a transaction of its own without a place in the order of changes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hermes_actor import limits
from hermes_actor.engine.staged_parts import Stage
from hermes_actor.errors import Busy, DeadlineExceeded, HermesActorError
from hermes_actor.sqlite import sqlite3

if TYPE_CHECKING:
    from hermes_actor.engine.change_transaction import ChangeTransaction
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.index.base import Index
    from hermes_actor.engine.receipts import Receipts
    from hermes_actor.sqlite import Connection

__all__ = ["BatchMaintenance", "IdleMaintenance", "run_in_transaction"]

_log = logging.getLogger("hermes_actor.engine")

R = TypeVar("R")


def run_in_transaction(
    connection: WriteConnection,
    work: Callable[[Connection], object],
    seconds: float = 0.0,
    writes: int = 0,
) -> None:
    """Do *work* in a transaction of its own, outside of the order of changes.

    A foreign lock is waited for, for some *seconds*. *writes* is for the next checkpoint. Raises a
    typed error, after which nothing of it is left.
    """
    failed = connection.begin(connection.env.monotonic() + seconds)
    if failed is not None:
        raise failed
    try:
        work(connection.conn)
    except (sqlite3.Error, DeadlineExceeded) as error:
        connection.roll_back()
        raise connection.explain(error) from error
    connection.commit(writes=writes)
    # An index may be new: what is remembered of the schema is compared again.
    connection.conn.layout_checked = False


class IdleMaintenance:
    """Decides which piece of work is next when no request waits."""

    def __init__(
        self,
        connection: WriteConnection,
        checkpointer: Checkpointer,
        index: Index,
        receipts: Receipts,
        transaction: ChangeTransaction,
        others_wait: Callable[[], bool],
    ) -> None:
        self.error: BaseException | None = None
        """Error of the last piece, if it failed. The host sets it."""
        self._connection = connection
        self._checkpointer = checkpointer
        self._index = index
        self._receipts = receipts
        self._transaction = transaction
        self._others_wait = others_wait
        self._stage = Stage(connection.env.monotonic())
        self._done_at_commit = -1

    def run_slice(self) -> float | None:
        """Do a bounded piece of work.

        Returns after how many seconds the next piece is due, ``None`` if never. A foreign lock
        only postpones the work; other errors of the storage pass to the host.
        """
        connection, index = self._connection, self._index
        if connection.broken is None:
            self.sweep()
        if connection.broken is not None:
            return None
        try:
            # Without a change, too: so replaced files are noticed within a second (R3).
            connection.verify_files(unless_home_is_gone=True)
            if self._is_done and not index.is_due and not connection.foreign_commit_is_new:
                return limits.FOREIGN_LOOK_SECONDS
            # In the order of need: searches wait for indexes, and for nothing else of this.
            pause = index.run_idle_slice()
            if pause is not None:
                return pause
            # Last: everything above writes, and a truncated WAL would grow again.
            self._checkpointer.run_if_due(waiting=False)
        except Busy:
            return limits.TRUNCATE_AFTER_IDLE_SECONDS
        if not self._checkpointer.state.truncated or index.has_postponed:
            rest = limits.TRUNCATE_AFTER_IDLE_SECONDS
            return rest if index.retry_seconds is None else min(rest, index.retry_seconds)
        # As a number of commits, not as a flag: whatever commits next makes it untrue.
        self._done_at_commit = connection.commits
        return limits.FOREIGN_LOOK_SECONDS

    @property
    def _is_done(self) -> bool:
        """True if nothing was committed since everything was done."""
        return self._done_at_commit == self._connection.commits and self._index.damage is None

    # --- what clients leave ----------------------------------------------------------------------

    def forget_client(self, client: bytes) -> None:
        """Remove the receipts of a client that will not come back, now or with a later sweep."""
        self._clean_up(lambda: self._receipts.forget(self._connection.conn, client))

    def sweep(self) -> None:
        """Remove receipts and parts that clients have left, when it is time."""
        connection, now = self._connection, self._connection.env.monotonic()
        if self._receipts.sweep_is_due(connection.commit_no):
            through = self._clean_up(
                lambda: self._receipts.sweep(connection.conn, connection.commit_no)
            )
            # After the commit: until then the receipts are there, and answer.
            if through is not None:
                self._receipts.swept(through)
        if self._stage.sweep_is_due(now):
            self._stage.begin_look(now, connection.commit_no)
            if self._stage.has_leftovers(connection.conn):
                self._clean_up(lambda: self._stage.sweep(connection.conn))

    def _clean_up(self, work: Callable[[], R]) -> R | None:
        """Remove rows of the actor's own tables in a transaction; ``None``: retry later."""
        connection = self._connection
        # Without any wait: nothing depends on when receipts go.
        if connection.begin(connection.env.monotonic()) is not None:
            return None
        try:
            result = work()
            connection.commit()
        except (HermesActorError, sqlite3.Error) as error:
            self._transaction.roll_back()
            _log.warning(
                "receipts and parts of %s were not removed, retrying later: %s",
                connection.paths.db,
                error,
            )
            return None
        self._transaction.publish()
        return result


class BatchMaintenance:
    """Decides what is done between two batches, while operations may wait."""

    def __init__(
        self,
        connection: WriteConnection,
        checkpointer: Checkpointer,
        index: Index,
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._checkpointer = checkpointer
        self._index = index
        self._clock = clock
        self._owed = 0
        """Rows to be indexed so that an urgent lag does not grow."""
        self._put_off = False
        """True if indexing has made way for something else after the last batch."""

    def run(self, *, waiting: bool) -> None:
        """Run a checkpoint, a part of a large text, or indexing; *waiting*: operations wait."""
        index = self._index
        # Before lag_is_urgent, which reads it again: the difference is what was written since.
        newest, urgent = index.newest, index.lag_is_urgent
        # From here on the lag may not grow: as many rows are indexed as are written.
        self._owed = self._owed + max(0, index.newest - newest) if urgent else 0
        if self._run_due_step(waiting=waiting) and not self._put_off:
            # All clients wait, so one thing after a batch (G13). Not twice in a row: beside large
            # rows there is always a checkpoint due, and messages would never be indexed.
            self._put_off = True
            return
        self._put_off = False
        if urgent:
            self._pay_debt()
        # Until it is urgent, clients do not wait for the threads that index aside.
        elif index.lag > limits.INDEX_LAG_ASIDE_ROWS:
            index.run_bulk_slice(limits.INDEX_LAG_ASIDE_ROWS)

    def _run_due_step(self, *, waiting: bool) -> bool:
        """Run the checkpoint or the part of a large text that is due; True if there was one."""
        if self._checkpointer.run_if_due(waiting=waiting):
            return True
        commits = self._connection.commits
        # Between batches as well: under steady load there is no idle time, and searches need large
        # texts, too (G4).
        with contextlib.suppress(Busy):  # retried after the next batch
            self._index.run_large_text_slice(idle=False)
        return self._connection.commits != commits

    def _pay_debt(self) -> None:
        """Index as many rows as are owed, for a bounded time: clients come next (G13).

        Later batches make up for the rest.
        """
        index, began = self._index, self._clock()
        # The nearer the lag is to its bound, the longer threads that index aside have the processor
        # for themselves; a full wait for each batch would be longer than they need.
        room = limits.INDEX_LAG_MAX_ROWS - limits.INDEX_LAG_URGENT_ROWS
        share = min(1.0, (index.lag - limits.INDEX_LAG_URGENT_ROWS) / room)
        while self._owed > 0 and (spent := self._clock() - began) < limits.INDEX_DEBT_SECONDS:
            before = index.watermark
            pause = index.run_bulk_slice()
            if pause:
                left = share * limits.INDEX_DEBT_SECONDS - spent
                if left <= 0:
                    return
                index.wait_for_bulk(left)
                continue
            if pause is None:
                index.run_slice(limits.INDEX_SLICE_BUSY_SECONDS)
            # At least 1: a rebuild lowers the watermark, which must not add to the debt.
            self._owed -= max(1, index.watermark - before)
