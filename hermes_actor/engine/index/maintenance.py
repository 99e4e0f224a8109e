"""Bounded pieces of work that bring the full-text indexes up to date, and rebuild damaged ones.

Each piece is a transaction of its own without a place in the order of changes, so a change that
comes meanwhile waits for a bounded time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.health import IndexFailed, failing_index, may_be_the_index
from hermes_actor.engine.index.base import Index
from hermes_actor.engine.index.bulk import BulkIndexer
from hermes_actor.engine.index.fulltext import (
    abandon_leftover,
    broken_parts,
    create_fulltext,
    drop_fulltext,
    drop_triggers,
    empty_leftover,
)
from hermes_actor.engine.index.gap_scan import GapScan
from hermes_actor.engine.index.indexer import (
    check_watermark,
    forget_index,
    index_until,
    keep_ids_rising,
    newest_id,
    note_schema,
    settle_watermark,
)
from hermes_actor.engine.index.large_texts import LargeTextIndexer
from hermes_actor.engine.index.notes import has_notes, is_noted, settle, take_notes
from hermes_actor.engine.index.structure import UnknownFormat, is_crowded
from hermes_actor.engine.maintenance import run_in_transaction
from hermes_actor.engine.statement_limit import interruptible
from hermes_actor.errors import (
    Damaged,
    DeadlineExceeded,
    IndexBehind,
    RequestError,
    StorageError,
)
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.schema import OWN_INDEXES
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.search.coverage import TABLES
from hermes_protocol.status import IndexStatus

if TYPE_CHECKING:
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.sqlite import Connection

__all__ = ["IndexMaintenance"]

_log = logging.getLogger("hermes_actor.engine")


class IndexMaintenance(Index):
    """The state of both full-text indexes, and the work on them."""

    def __init__(
        self,
        connection: WriteConnection,
        checkpointer: Checkpointer,
        others_wait: Callable[[], bool],
    ) -> None:
        self.large_texts = LargeTextIndexer(connection.env, connection.paths)
        self.bulk = BulkIndexer(connection.env)
        self.gaps = GapScan(connection)
        self._may_be_crowded = False
        self._connection = connection
        self._checkpointer = checkpointer
        self._others_wait = others_wait
        # In the first transaction of each connection, too, for which every schema is a new one.
        connection.on_new_schema = self._load_state

    # --- state of the indexes --------------------------------------------------------------------

    def _load_state(self) -> None:
        """Derive the state of the indexes again, after a schema change or a foreign commit.

        What is derived is in the file only if this transaction commits; until one has, every
        transaction derives it again.
        """
        conn = self._connection.conn
        self._defer_triggers()
        self.watermark = check_watermark(conn)
        self.newest = newest_id(conn)
        # Gaps that this does not show are searched in idle time: at once under an unknown schema,
        # now and then beside a program that commits.
        if note_schema(conn):
            self.gaps.restart(conn)
            if broken_parts(conn):
                self.report_damage("a table or a trigger cannot be used")
        self.gaps.notice_foreign_commits()

    def _defer_triggers(self) -> None:
        """Pass over the triggers of the file, if they are the known ones, and take notes.

        Appends are not noted, for their ids are above the watermark; so ids are kept rising.
        """
        features, authorizer = features_of(self._connection.conn), self._connection.authorizer
        # Both: a change that is passed over without a note would be lost for the indexes.
        authorizer.deferring = features.deferrable and features.stale
        if authorizer.deferring:
            take_notes(self._connection.conn, authorizer.noting)
            keep_ids_rising(self._connection.conn)
            # An earlier owner may have left notes.
            self.large_texts.is_due = True

    def guest_has_written(self) -> None:
        """Derive what a statement may have changed, inside its transaction."""
        # At once, because the next message of the batch may get an id below the watermark. The rest
        # is checked by the next transaction, which finds an unknown schema.
        self.watermark = settle_watermark(self._connection.conn)
        self._defer_triggers()

    def content_replaced(self) -> None:
        """Give up work on a content that is no longer in the file."""
        self.bulk.give_up()
        self.large_texts.give_up()
        self.large_texts.forget_failures()

    def report_damage(self, reason: object) -> None:
        """Have the indexes rebuilt: one is damaged, and no trial without it could be made."""
        self.damage = str(reason)

    def drop_triggers(self) -> None:
        """Drop the triggers of both indexes inside the open transaction."""
        for table in TABLES:
            drop_triggers(self._connection.conn, table)
        self._connection.conn.layout = None

    def forget_contents(self, error: BaseException) -> None:
        """Count every message as unindexed: a change succeeded only without the triggers."""
        forget_index(self._connection.conn)
        _log.error(
            "a full-text index of %s is damaged and will be rebuilt: %s",
            self._connection.paths.db,
            error,
        )

    @property
    def failure(self) -> str | None:
        """The large text that has failed most often, and why; ``None`` if none has."""
        return self.large_texts.failure

    @property
    def is_due(self) -> bool:
        """True if large texts wait for the writer."""
        return self.large_texts.is_due and not self.large_texts.is_delayed

    @property
    def has_postponed(self) -> bool:
        """True if a search for gaps waits for its time."""
        return self.gaps.is_due

    def status(self) -> IndexStatus:
        """Return the figures for the status document. Safe in any thread."""
        return IndexStatus(
            watermark=self.watermark,
            newest=self.newest,
            lag=max(0, self.lag),
            rebuilds=self.rebuilds,
            aside=self.large_texts.state,
        )

    def may_have_caused(self, error: BaseException | None) -> bool:
        """Return True if a damaged full-text index may have caused *error*."""
        return may_be_the_index(error)

    @property
    def lag_is_urgent(self) -> bool:
        """True if indexing must go on between batches. Reads the newest id."""
        if self._connection.broken is not None:
            return False
        self.newest = newest_id(self._connection.conn)
        return self.lag > limits.INDEX_LAG_URGENT_ROWS

    def pending_large_texts(self, through: int) -> set[int]:
        """Return messages up to *through* that searches lack because their text is large."""
        return {
            message_id
            for (message_id,) in self._connection.conn.execute(
                # Only of messages that exist: what is indexed of others is never found.
                "SELECT s.id FROM hermes_actor_stale s JOIN messages m ON m.id = s.id"
                " WHERE s.aside = 1 AND s.id <= ?",
                (through,),
            )
        }

    # --- slices ----------------------------------------------------------------------------------

    def run_slice(self, seconds: float) -> bool:
        """Index for about *seconds*; returns True if more is left to do.

        Raises a typed error if there is no transaction, or messages cannot be read.
        """
        connection, env = self._connection, self._connection.env
        if self._checkpoint_instead():
            return True
        self._begin(limits.OPEN_BUSY_SECONDS)
        conn = connection.conn  # not before: a transaction may begin on a new connection
        if self.damage is not None:
            return self._rebuild(self.damage)
        # The features are remembered; broken_parts() asks SQLite about each table.
        if not features_of(conn).whole and broken_parts(conn):
            return self._rebuild("its triggers are gone")
        self.newest = newest = newest_id(conn)
        noted = features_of(conn).deferrable and has_notes(conn)
        if self.watermark >= newest and not noted:
            self.unsettled = False
            if connection.schema_is_known:
                connection.roll_back()
            else:
                connection.commit()  # keeps what was derived of the new schema
            return self._merge()
        env.failpoint("index.slice")
        try:
            until = env.monotonic() + seconds
            watermark = index_until(conn, self.watermark, env, until)
            # Before settle(), which removes the notes that say so.
            self._retry_changed_texts(conn)
            unsettled = noted and settle(conn, env, until)
            if has_notes(conn, aside=True):
                self.large_texts.wake()
        except sqlite3.Error as error:
            return self._rebuild_after(error)
        try:
            connection.commit(writes=watermark - self.watermark)
        except IndexFailed as error:
            return self._rebuild_after(error)
        # After the commit: memory is never ahead of the file.
        self.watermark, self.unsettled = watermark, unsettled
        env.failpoint("index.after")
        return self._merge() or unsettled or watermark < newest

    def run_bulk_slice(self, leave: int = 0) -> float | None:
        """Do a bounded part of indexing many messages aside, except for the newest *leave*.

        Returns after how many seconds the next part is due; ``None`` if slices are to index what
        there is. Raises what :meth:`run_slice` raises.
        """
        connection, bulk = self._connection, self.bulk
        # Tables that are to be rebuilt, or whose triggers are not passed over, are left to slices.
        if connection.broken is not None or not self._defers():
            bulk.give_up()
            return None
        # A copy is a segment more, and FTS5 would merge sixteen of them in one go.
        if self._may_be_crowded:
            self._may_be_crowded = self._merge()
            return 0.0
        try:
            # Before the place of the one that is ready: its thread works during that.
            self.newest = newest_id(connection.conn)
            bulk.begin(connection.conn, self.watermark, self.newest - leave)
            if not bulk.is_ready:
                return limits.BULK_LOOK_SECONDS if bulk.is_working else None
            if self._checkpoint_instead():
                return 0.0
            self._begin(limits.OPEN_BUSY_SECONDS)
            connection.env.failpoint("bulk.place")
            through = bulk.place(connection.conn) if self._defers() else None
            if through is None:
                connection.roll_back()
                return None
            connection.commit(writes=through - self.watermark)
        except IndexFailed as error:
            bulk.give_up()
            self._rebuild_after(error)
            return 0.0
        except sqlite3.Error as error:
            bulk.give_up()
            connection.roll_back()
            raise connection.explain(error) from error
        # After the commit: memory is never ahead of the file.
        self.watermark, self._may_be_crowded = through, True
        bulk.placed()
        connection.env.failpoint("bulk.after")
        return 0.0

    def _checkpoint_instead(self) -> bool:
        """Run the checkpoint that is due; the caller then does nothing else in this slice.

        One or the other: in one go they would add up (G13). Due it is, though, in a long run of
        slices, which writes as much as clients do.
        """
        return self._checkpointer.run_if_due(waiting=True)

    def _defers(self) -> bool:
        return self.damage is None and self._connection.authorizer.deferring

    def wait_for_bulk(self, seconds: float) -> None:
        """Return when there is something to do for :meth:`run_bulk_slice`, or after *seconds*."""
        self.bulk.wait(seconds)

    def _retry_changed_texts(self, conn: Connection) -> None:
        """Forget failures of texts that were changed: they may be small now, or gone."""
        for message_id in self.large_texts.failed_ids:
            if is_noted(conn, message_id, aside=False):
                self.large_texts.forget_failures([message_id])

    def _begin(self, seconds: float) -> None:
        failed = self._connection.begin(self._connection.env.monotonic() + seconds)
        if failed is not None:
            raise failed

    def _merge(self) -> bool:
        """Merge a bounded part of an index that FTS5 would soon merge in one go.

        Returns True if there was such an index.
        """
        conn = self._connection.conn
        if not features_of(conn).deferrable:
            return False
        try:
            with failing_index():
                # Read without a lock: only an index that is crowded costs a transaction.
                crowded = [table for table in TABLES if is_crowded(conn, table)]
            # One at a time: changes come in between.
            for table in crowded[:1]:
                self._begin(limits.OPEN_BUSY_SECONDS)
                with failing_index():
                    conn.execute(
                        f"INSERT INTO {table}({table}, rank) VALUES ('merge', ?)",
                        (limits.MERGE_STEP_PAGES,),
                    )
                self._connection.commit(writes=1)
        except UnknownFormat:
            # An index of another form is left to FTS5, which merges when it wants to.
            return False
        except IndexFailed as error:
            return self._rebuild_after(error)
        return bool(crowded)

    def run_large_text_slice(self, *, idle: bool, wait: float = 0.0) -> float | None:
        """Do a bounded part of what large texts need.

        Returns after how many seconds the next part is due, ``None`` if there is none. *idle*: see
        :meth:`LargeTextIndexer.step`. A foreign lock is waited for at most *wait* seconds.
        """
        connection, large_texts = self._connection, self.large_texts
        if connection.broken is not None or not self._large_texts_are_due():
            return None
        pause = large_texts.pause(idle=idle)
        if pause != 0.0:
            return pause
        if self._checkpoint_instead():
            return 0.0
        self._begin(wait)
        try:
            if features_of(connection.conn).deferrable and self._step_large_texts(idle):
                connection.commit(writes=1)
            else:
                connection.roll_back()
        except BaseException as error:
            # Memory has gone on as if this part were committed; the notes, which are in the file,
            # say where it really stands.
            large_texts.give_up()
            if not isinstance(error, IndexFailed):
                raise
            self._rebuild_after(error)
            return 0.0
        connection.env.failpoint("aside.after")
        return large_texts.pause(idle=idle)

    def _large_texts_are_due(self) -> bool:
        """Costs one read of the notes at most; takes no lock."""
        conn, large_texts = self._connection.conn, self.large_texts
        if large_texts.is_due and not large_texts.is_working:
            large_texts.is_due = features_of(conn).deferrable and has_notes(conn, aside=True)
            if not large_texts.is_due:
                large_texts.forget_failures()
        return large_texts.is_due

    def _step_large_texts(self, idle: bool) -> bool:
        try:
            return self.large_texts.step(self._connection.conn, idle=idle)
        except BaseException:
            self._connection.roll_back()
            raise

    def fill_gaps(self) -> bool:
        """Search a part of the messages below the watermark for unindexed ones, and index them.

        Returns True while there is more to search.
        """
        if self._connection.broken is not None:
            return False
        try:
            return self.gaps.run_slice(lambda: self.watermark)
        except sqlite3.Error as error:
            return self._rebuild_after(error)

    def index_in_transaction(self) -> None:
        """Index inside the open transaction of a guest, who is about to read the indexes.

        Raises :class:`IndexBehind` if that would keep others waiting for too long.
        """
        conn, env = self._connection.conn, self._connection.env
        until, newest = env.monotonic() + limits.INDEX_SLICE_IDLE_SECONDS, newest_id(conn)
        # Not kept in memory here: the guest may roll back. What holds is read from the file when
        # its statement has ended.
        watermark = index_until(conn, self.watermark, env, until)
        left = features_of(conn).deferrable and settle(conn, env, until)
        if left or watermark < newest or self.pending_large_texts(newest):
            raise IndexBehind(
                "the full-text index lacks messages that cannot be indexed inside a transaction"
                f" within {limits.INDEX_SLICE_IDLE_SECONDS:g} s; retry later",
                done=min(watermark, newest),
                total=newest,
            )

    # --- idle time -------------------------------------------------------------------------------

    def run_idle_slice(self) -> float | None:
        """Index, repair, clean up and build, in the order of need; see :class:`Index`."""
        pause = self.run_bulk_slice()
        if pause is not None:
            return pause
        if self.run_slice(limits.INDEX_SLICE_IDLE_SECONDS):
            return 0.0
        pause = self.retry_seconds = self.run_large_text_slice(idle=True)
        if pause == 0.0 or self.fill_gaps() or self._remove_leftovers():
            return 0.0
        # Texts that have failed may wait for minutes, and nothing else waits with them.
        if pause is not None and not self.large_texts.is_delayed:
            return pause
        features = features_of(self._connection.conn)
        missing = [n for n in OWN_INDEXES if n not in features.indexes]
        if missing:
            return 0.0 if self._build_index(missing[0]) else limits.IDLE_GRACE_SECONDS
        # After those that take their place are there.
        if not features.former_indexes:
            return None
        self._drop_index(features.former_indexes[0])
        return 0.0

    def _remove_leftovers(self) -> bool:
        """Give back pages of indexes that were replaced; True while there are more."""
        connection, env = self._connection, self._connection.env
        leftovers = features_of(connection.conn).leftovers
        if not leftovers:
            return False
        enough = env.monotonic() + limits.INDEX_SLICE_BUSY_SECONDS
        name, go_on = leftovers[0], lambda: env.monotonic() < enough
        try:
            self._run_own(lambda conn: empty_leftover(conn, name, go_on))
        except Damaged as error:
            # Damaged pages may lead anywhere: better to leave them unused than to follow them.
            _log.error(
                "%s: pages of an old full-text index stay unused, a vacuum frees them: %s",
                connection.paths.db,
                error,
            )
            self._run_own(lambda conn: abandon_leftover(conn, name))
        return True

    def _build_index(self, name: str) -> bool:
        """Build one of the extra indexes; False if it was given up because a change came."""

        # In one statement, however large the table is: it cannot be sliced, so it is interrupted
        # when a change comes and begun again later (G13).
        def build(conn: Connection) -> None:
            with interruptible(conn, lambda: "others wait" if self._others_wait() else None):
                conn.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {OWN_INDEXES[name]}")

        try:
            self._run_own(build, limits.CHECKPOINT_EVERY_WRITES)
        except (DeadlineExceeded, RequestError) as error:
            _log.debug("building %s was given up for now: %s", name, error)
            return False
        return True

    def _drop_index(self, name: str) -> None:
        def drop(conn: Connection) -> None:
            conn.execute(f"DROP INDEX IF EXISTS {name}")

        self._run_own(drop)

    def _run_own(self, work: Callable[[Connection], None], writes: int = 0) -> None:
        """Change the schema in a transaction; it is no reason to search for gaps."""

        def and_note(conn: Connection) -> None:
            work(conn)
            note_schema(conn)

        run_in_transaction(self._connection, and_note, writes=writes)

    def complete(self, on_progress: Callable[[], None] = lambda: None) -> None:
        """Index every message, gaps included, for as long as it takes.

        Calls *on_progress* before each part. Raises :class:`StorageError` if a very large text
        fails again and again.
        """
        while True:
            on_progress()
            pause = self.run_bulk_slice()
            if pause is not None:
                self.wait_for_bulk(pause)
                continue
            if self.run_slice(limits.INDEX_SLICE_IDLE_SECONDS) or self.fill_gaps():
                continue
            pause = self.run_large_text_slice(idle=True, wait=limits.OPEN_BUSY_SECONDS)
            if pause is None:
                break
            # All that is left are texts that fail, and their pauses grow to minutes.
            if self.large_texts.is_delayed and self.large_texts.tries >= limits.ASIDE_TRIES:
                raise StorageError(str(self.large_texts.failure))
            self._connection.env.sleep(pause)

    def close(self) -> None:
        """Give up all work aside: the process that builds must not outlive the file."""
        self.bulk.give_up()
        self.large_texts.close()

    # --- rebuilding ------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Replace both full-text indexes by empty ones; idle time and searches fill them."""
        self._begin(limits.OPEN_BUSY_SECONDS)
        self._rebuild(self.damage or "asked for")

    def rebuild_if_damaged(self, schema: int | None) -> None:
        """Rebuild the indexes if one cannot be used, or was found damaged under this *schema*.

        Under another one they have been rebuilt since. The content is not verified here: that
        takes as long as reading it, and changes would wait.
        """
        self._begin(limits.OPEN_BUSY_SECONDS)
        # Many searches find the same damage. The first rebuild changes the schema, so the others
        # come with a number that is no longer true.
        if self._connection.conn.layout_cookie == schema:
            self._rebuild("a search has found it damaged")
        elif broken_parts(self._connection.conn):
            self._rebuild("a table or a trigger cannot be used")
        else:
            self._connection.roll_back()

    def _rebuild_after(self, error: sqlite3.Error) -> bool:
        """Rebuild after a transaction that failed with *error*, if the index may be to blame."""
        self._connection.roll_back()
        if not isinstance(error, IndexFailed):
            raise self._connection.explain(error) from error
        failed = self._connection.begin(self._connection.env.monotonic() + limits.OPEN_BUSY_SECONDS)
        if failed is not None:
            raise failed from error
        return self._rebuild(str(error))

    def _rebuild(self, reason: str) -> bool:
        """Replace both full-text tables by empty ones in the open transaction; slices fill them.

        However large the old ones are: their pages are given back in slices, too.
        """
        connection, conn = self._connection, self._connection.conn
        _log.warning("rebuilding the full-text indexes of %s: %s", connection.paths.db, reason)
        try:
            nothing = _replace_tables(conn)
        except sqlite3.Error as error:
            connection.roll_back()
            raise connection.explain(error) from error
        # Before the commit, which would take the schema that its transaction found for known.
        connection.invalidate_schema()
        self.gaps.forget_progress()
        connection.commit()
        self.watermark = nothing
        self.damage = None
        self.bulk.give_up()
        # Its pages and numbers were of the tables that are gone.
        self.large_texts.give_up()
        conn.layout = None
        self.rebuilds += 1
        return True


def _replace_tables(conn: Connection) -> int:
    for table in TABLES:
        drop_fulltext(conn, table)
        create_fulltext(conn, table)
    nothing = forget_index(conn)
    # A note has an entry compared with its message; there is no entry left, and every message is
    # indexed again anyway.
    conn.execute("DELETE FROM hermes_actor_stale")
    # Under its own schema an owner does not search for gaps.
    note_schema(conn)
    return nothing
