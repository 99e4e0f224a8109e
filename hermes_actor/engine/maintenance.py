"""Work of the writer in idle time: index, repair, build, clean up, checkpoint.

Each piece is bounded, so that a change that comes meanwhile waits for a bounded time, and each is
a transaction of its own without a place in the order of changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hermes_actor import limits
from hermes_actor.engine.index.fulltext import abandon_leftover, empty_leftover
from hermes_actor.engine.index.indexer import note_schema
from hermes_actor.engine.staged_parts import Stage
from hermes_actor.engine.statement_limit import interruptible
from hermes_actor.errors import Busy, Damaged, DeadlineExceeded, HermesActorError, RequestError
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.schema import OWN_INDEXES
from hermes_actor.store.schema_features import features_of

if TYPE_CHECKING:
    from hermes_actor.engine.change_transaction import ChangeTransaction
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.index.maintenance import IndexMaintenance
    from hermes_actor.engine.receipts import Receipts
    from hermes_actor.sqlite import Connection

__all__ = ["IdleMaintenance", "run_in_transaction"]

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
        # The owner's own change of the schema is no reason to search for gaps.
        note_schema(connection.conn)
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
        index: IndexMaintenance,
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
            large_text_is_due = index.large_texts.is_due and not index.large_texts.is_delayed
            if self._is_done and not large_text_is_due and not connection.foreign_commit_is_new:
                return limits.FOREIGN_LOOK_SECONDS
            # In the order of need: searches wait for indexes, and for nothing else of this.
            if index.run_slice(limits.INDEX_SLICE_IDLE_SECONDS):
                return 0.0
            pause = index.run_large_text_slice(idle=True)
            if pause == 0.0 or index.fill_gaps() or self._remove_leftovers():
                return 0.0
            # Texts that have failed may wait for minutes, and nothing else waits with them.
            if pause is not None and not index.large_texts.is_delayed:
                return pause
            missing = [n for n in OWN_INDEXES if n not in features_of(connection.conn).indexes]
            if missing:
                return 0.0 if self._build_index(missing[0]) else limits.IDLE_GRACE_SECONDS
            # Last: everything above writes, and a truncated WAL would grow again.
            self._checkpointer.run_if_due(waiting=False)
        except Busy:
            return limits.TRUNCATE_AFTER_IDLE_SECONDS
        if not self._checkpointer.state.truncated or index.gaps.is_due:
            rest = limits.TRUNCATE_AFTER_IDLE_SECONDS
            return rest if pause is None else min(rest, pause)
        # As a number of commits, not as a flag: whatever commits next makes it untrue.
        self._done_at_commit = connection.commits
        return limits.FOREIGN_LOOK_SECONDS

    @property
    def _is_done(self) -> bool:
        """True if nothing was committed since everything was done."""
        return self._done_at_commit == self._connection.commits and self._index.damage is None

    def _remove_leftovers(self) -> bool:
        """Give back pages of indexes that were replaced; True while there are more."""
        connection, env = self._connection, self._connection.env
        leftovers = features_of(connection.conn).leftovers
        if not leftovers:
            return False
        enough = env.monotonic() + limits.INDEX_SLICE_BUSY_SECONDS
        name, go_on = leftovers[0], lambda: env.monotonic() < enough
        try:
            run_in_transaction(connection, lambda conn: empty_leftover(conn, name, go_on))
        except Damaged as error:
            # Damaged pages may lead anywhere: better to leave them unused than to follow them.
            _log.error(
                "%s: pages of an old full-text index stay unused, a vacuum frees them: %s",
                connection.paths.db,
                error,
            )
            run_in_transaction(connection, lambda conn: abandon_leftover(conn, name))
        return True

    def _build_index(self, name: str) -> bool:
        """Build one of the extra indexes; False if it was given up because a change came."""

        # In one statement, however large the table is: it cannot be sliced, so it is interrupted
        # when a change comes and begun again later (G13).
        def build(conn: Connection) -> None:
            with interruptible(conn, lambda: "others wait" if self._others_wait() else None):
                conn.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {OWN_INDEXES[name]}")

        try:
            run_in_transaction(self._connection, build, writes=limits.CHECKPOINT_EVERY_WRITES)
        except (DeadlineExceeded, RequestError) as error:
            _log.debug("building %s was given up for now: %s", name, error)
            return False
        return True

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
