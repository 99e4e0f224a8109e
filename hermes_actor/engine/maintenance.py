"""What a writer does when nobody waits: index, mend, build, fold back.

Each piece is bounded, so that a change that comes meanwhile waits for a bounded time, and each is
a transaction of its own without a place in the order of changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.checkpoint import Action, decide
from hermes_actor.engine.connection import TransactionLost
from hermes_actor.engine.fts_segments import UnknownFormat, is_crowded
from hermes_actor.engine.fulltext import (
    abandon_leftover,
    broken_parts,
    create_fulltext,
    drop_fulltext,
    empty_leftover,
)
from hermes_actor.engine.health import IndexFailed, failing_index, is_index_damage
from hermes_actor.engine.index_notes import has_notes, is_noted, settle, take_notes
from hermes_actor.engine.indexer import (
    advance,
    check_watermark,
    forget_index,
    index_gaps,
    mark_gaps_unchecked,
    newest_id,
    note_schema,
)
from hermes_actor.engine.large_texts import Aside
from hermes_actor.engine.meta_table import get_internal, set_internal
from hermes_actor.engine.statement_limit import interruptible
from hermes_actor.errors import (
    Busy,
    Damaged,
    DeadlineExceeded,
    HermesActorError,
    IndexBehind,
    OutcomeUnknown,
    RequestError,
    StorageError,
)
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.schema import OWN_INDEXES
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.search.coverage import TABLES

if TYPE_CHECKING:
    from hermes_actor.engine.checkpoint import CheckpointState
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.paths import StorePaths
    from hermes_actor.sqlite import Connection

__all__ = ["Upkeep"]

_log = logging.getLogger("hermes_actor.engine")

_NOTHING_MET = (-1, -1, -1)


class Upkeep:
    """The half of a writer that keeps the file in shape."""

    def __init__(self, core: WriteConnection, somebody_waits: Callable[[], bool]) -> None:
        self.core = core
        self.watermark = 0
        self.newest = 0
        self.index_rebuilds = 0
        self.index_blame: str | None = None
        self.upkeep_error: BaseException | None = None
        self._somebody_waits = somebody_waits
        self._all_done = False
        self.unsettled = False
        """Whether notes of ordinary messages are left, as of the last slice."""
        self.aside = Aside(core.env, core.paths)
        self._met = self._meeting = _NOTHING_MET
        self._foreign_seen = 0
        self._holes_due = False
        self._holes_again = float("-inf")
        self._holes_through: int | None = None

    @property
    def paths(self) -> StorePaths:
        return self.core.paths

    @property
    def epoch(self) -> int:
        return self.core.epoch

    @property
    def commit_no(self) -> int:
        return self.core.commit_no

    @property
    def checkpoints(self) -> CheckpointState:
        return self.core.checkpoints

    def recover(self, seconds: float = limits.OPEN_BUSY_SECONDS) -> bool:
        """Try to pass the start-up barrier now. False while something is in the way."""
        return self.core.recover(seconds)

    def close(self) -> None:
        self.aside.close()
        self.core.close()

    def begin(self, deadline: float) -> HermesActorError | None:
        """Like :meth:`WriteConnection.begin`; also meets the schema that the transaction finds."""
        failed = self.core.begin(deadline)
        if failed is not None:
            return failed
        core = self.core
        seen = (core.connections, core.conn.layout_cookie, core.foreign_commits)
        try:
            if seen != self._met:
                self._meet(seen)
        except Exception as error:
            self.core.roll_back()
            return self.core.explain(error)
        return None

    def _meet(self, seen: tuple[int, int, int]) -> None:
        """The schema is new to us, or a foreign program has committed: look at the index again.

        What is derived here is in the file only if this transaction commits; until one has, every
        transaction derives it anew.
        """
        conn = self.core.conn
        self.defer()
        self.watermark = check_watermark(conn)
        self.newest = newest_id(conn)
        # Holes that this does not show are looked for in idle time: at once under a schema that is
        # not ours, now and then beside a program that commits.
        if note_schema(conn):
            mark_gaps_unchecked(conn)
            self._holes_through = None
            if broken_parts(conn):
                self.blame_index("a table or a trigger cannot be used")
        self._holes_due |= self.core.foreign_commits != self._foreign_seen
        self._foreign_seen = self.core.foreign_commits
        self._meeting = seen

    def defer(self) -> None:
        """Pass over the triggers of the file if they are those that we know, and take notes."""
        layout, authorizer = features_of(self.core.conn), self.core.authorizer
        authorizer.deferring = layout.deferrable and layout.stale
        if authorizer.deferring:
            take_notes(self.core.conn, authorizer.noting)
            self.aside.is_due = True

    def forget_meeting(self) -> None:
        """The open transaction may have changed anything: the next one looks at all of it."""
        self._meeting = _NOTHING_MET

    def meet_anew(self) -> None:
        """The content of the file is another one: the next transaction looks at all of it."""
        self._met = self._meeting = _NOTHING_MET
        self._all_done = False
        self.aside.give_up()
        self.aside.forget_failures()

    def blame_index(self, reason: object) -> None:
        """An index is damaged, and no trial without it could be made: rebuild it."""
        self.index_blame = str(reason)
        self._all_done = False

    def rebuild_index(self) -> None:
        """Replace both full-text indexes by empty ones; idle time and searches fill them."""
        failed = self.begin(self.core.env.monotonic() + limits.OPEN_BUSY_SECONDS)
        if failed is not None:
            raise failed
        self._rebuild_index(self.index_blame or "asked for")

    def reindex(self) -> None:
        """Build every ordinary index anew from its table, each in a transaction of its own."""
        sql = "SELECT name FROM sqlite_master WHERE type = 'index'"
        for (name,) in self.core.conn.execute(sql).fetchall():
            self._change(
                partial(self._until_leaving, 'REINDEX "{}"'.format(name.replace('"', '""'))),
                limits.OPEN_BUSY_SECONDS,
                writes=limits.CHECKPOINT_EVERY_WRITES,
            )
            self.checkpoint_if_due(waiting=self._somebody_waits())

    def complete_indexes(self, tell: Callable[[], None] = lambda: None) -> None:
        """Index every message, holes included, for as long as it takes; *tell* after each part.

        Raises :class:`StorageError` if a very large text fails again and again.
        """
        while True:
            tell()
            if self.index_slice(limits.INDEX_SLICE_IDLE_SECONDS) or self._mend_holes():
                continue
            pause = self.aside_slice(idle=True, wait=limits.OPEN_BUSY_SECONDS)
            if pause is None:
                break
            if self.aside.is_delayed and self.aside.tries >= limits.ASIDE_TRIES:
                raise StorageError(str(self.aside.failure))
            self.core.env.sleep(pause)

    # --- checkpoints -----------------------------------------------------------------------------

    def checkpoint_if_due(self, *, waiting: bool) -> bool:
        """The host calls this after it has sent the replies of a batch. Whether one was due."""
        if self.core.broken is not None:
            return False
        action = decide(self.checkpoints, self.core.env.monotonic(), waiting=waiting)
        if action is Action.NOTHING:
            return False
        self.core.checkpoint(action, limits.RESTART_BUDGET_SECONDS)
        return True

    def vacuum(self, deadline: float) -> HermesActorError | None:
        """Rewrite the file without holes. Returns what went wrong.

        VACUUM cannot run inside a transaction, so the epoch is looked at before and after it.
        """
        failed = self.begin(deadline)
        if failed is not None:
            return failed
        self.core.roll_back()
        try:
            with interruptible(self.core.conn, self._why_leave):
                self.core.vacuum(deadline)
        except OutcomeUnknown:
            return self.core.stopped()
        except (sqlite3.Error, DeadlineExceeded) as error:
            return self.core.explain(error)
        failed = self.begin(deadline)
        self.core.roll_back()
        # Done is done: whatever is in the way of another transaction now is not its failure.
        return failed if self.core.broken is not None else None

    def _until_leaving(self, sql: str, conn: Connection) -> None:
        with interruptible(conn, self._why_leave):
            conn.execute(sql)

    def _why_leave(self) -> str | None:
        """Why a long piece of work is given up: the host wants to close the file."""
        if self.core.env.monotonic() < self.core.leave_by:
            return None
        return "it was interrupted and nothing of it executed: the actor ends or hands over"

    # --- full-text indexes -----------------------------------------------------------------------

    @property
    def index_lag_is_urgent(self) -> bool:
        """Whether indexing must go on between batches. Costs one look at the newest id."""
        if self.core.broken is not None:
            return False
        self.newest = newest_id(self.core.conn)
        return self.newest - self.watermark > limits.INDEX_LAG_URGENT_ROWS

    def index_slice(self, seconds: float) -> bool:
        """Index for about *seconds*. Returns whether more is left to do."""
        env = self.core.env
        failed = self.begin(env.monotonic() + limits.OPEN_BUSY_SECONDS)
        if failed is not None:
            raise failed
        conn = self.core.conn  # a transaction may begin on a new one
        if self.index_blame is not None:
            return self._rebuild_index(self.index_blame)
        if not features_of(conn).whole and broken_parts(conn):
            return self._rebuild_index("its triggers are gone")
        self.newest = newest = newest_id(conn)
        noted = features_of(conn).deferrable and has_notes(conn)
        if self.watermark >= newest and not noted:
            self.unsettled = False
            if self._met == self._meeting:
                self.core.roll_back()
            else:
                self.commit()
            return self._merge()
        env.failpoint("index.slice")
        try:
            until = env.monotonic() + seconds
            watermark = advance(conn, self.watermark, env, until)
            self._retry_changed_texts(conn)
            unsettled = noted and settle(conn, env, until)
            if has_notes(conn, aside=True):
                self.aside.wake()
        except sqlite3.Error as error:
            return self._rebuild_after(error)
        try:
            self.commit(writes=watermark - self.watermark)
        except IndexFailed as error:
            return self._rebuild_after(error)
        self.watermark, self.unsettled = watermark, unsettled
        env.failpoint("index.after")
        self.checkpoint_if_due(waiting=self._somebody_waits())
        return self._merge() or unsettled or watermark < newest

    def _retry_changed_texts(self, conn: Connection) -> None:
        """A text that could not be indexed may be small now, or gone: that must not wait."""
        for message_id in self.aside.failed_ids:
            if is_noted(conn, message_id, aside=False):
                self.aside.forget_failures([message_id])

    def _merge(self) -> bool:
        """Merge a bounded part of an index that FTS5 would soon merge in one go.

        Returns whether there was such an index.
        """
        conn = self.core.conn
        if not features_of(conn).deferrable:
            return False
        try:
            with failing_index():
                crowded = [table for table in TABLES if is_crowded(conn, table)]
            for table in crowded:
                failed = self.begin(self.core.env.monotonic() + limits.OPEN_BUSY_SECONDS)
                if failed is not None:
                    raise failed
                with failing_index():
                    conn.execute(
                        f"INSERT INTO {table}({table}, rank) VALUES ('merge', ?)",
                        (limits.MERGE_STEP_PAGES,),
                    )
                self.commit(writes=1)
                self.checkpoint_if_due(waiting=self._somebody_waits())
        except UnknownFormat:
            return False
        except IndexFailed as error:
            return self._rebuild_after(error)
        return bool(crowded)

    def aside_slice(self, *, idle: bool, wait: float = 0.0) -> float | None:
        """Do a bounded part of what large texts need.

        Returns after how many seconds the next part is due, ``None`` if there is none. *idle*: see
        :meth:`Aside.step`. A foreign lock is waited for at most *wait* seconds.
        """
        if self.core.broken is not None or not self._is_aside_due():
            return None
        pause = self.aside.pause(idle=idle)
        if pause != 0.0:
            return pause
        if self.checkpoint_if_due(waiting=True):
            return 0.0
        env = self.core.env
        failed = self.begin(env.monotonic() + wait)
        if failed is not None:
            raise failed
        try:
            if features_of(self.core.conn).deferrable and self._step_aside(idle):
                self.commit(writes=1)
            else:
                self.core.roll_back()
        except BaseException as error:
            self.aside.give_up()
            if not isinstance(error, IndexFailed):
                raise
            self._rebuild_after(error)
            return 0.0
        env.failpoint("aside.after")
        return self.aside.pause(idle=idle)

    def _is_aside_due(self) -> bool:
        """Costs a look at the notes at most; takes no lock."""
        conn = self.core.conn
        if self.aside.is_due and not self.aside.is_working:
            self.aside.is_due = features_of(conn).deferrable and has_notes(conn, aside=True)
            if not self.aside.is_due:
                self.aside.forget_failures()
        return self.aside.is_due

    def _step_aside(self, idle: bool) -> bool:
        try:
            return self.aside.step(self.core.conn, idle=idle)
        except BaseException:
            self.core.roll_back()
            raise

    def index_inside(self) -> None:
        """Index inside the open transaction of a guest, who is about to look at the indexes.

        Raises :class:`IndexBehind` if that would keep others waiting for too long.
        """
        conn, env = self.core.conn, self.core.env
        until, newest = env.monotonic() + limits.INDEX_SLICE_IDLE_SECONDS, newest_id(conn)
        watermark = advance(conn, self.watermark, env, until)
        left = features_of(conn).deferrable and settle(conn, env, until)
        if left or watermark < newest or self.large_texts(newest):
            raise IndexBehind(
                "the full-text index lacks messages that cannot be indexed inside a transaction in"
                " time; try again",
                done=min(watermark, newest),
                total=newest,
            )

    def large_texts(self, through: int) -> set[int]:
        """Messages up to *through* that searches cannot find yet, because their text is large."""
        return {
            message_id
            for (message_id,) in self.core.conn.execute(
                "SELECT s.id FROM hermes_actor_stale s JOIN messages m ON m.id = s.id"
                " WHERE s.aside = 1 AND s.id <= ?",
                (through,),
            )
        }

    def rebuild_if_damaged(self, schema: int | None) -> None:
        """Rebuild the indexes if one cannot be used, or was found damaged under this *schema*.

        Under another one they have been rebuilt since. Whether they are damaged is for others to
        find out: that takes as long as reading them, and changes would wait.
        """
        failed = self.begin(self.core.env.monotonic() + limits.OPEN_BUSY_SECONDS)
        if failed is not None:
            raise failed
        if self.core.conn.layout_cookie == schema:
            self._rebuild_index("a search has found it damaged")
        elif broken_parts(self.core.conn):
            self._rebuild_index("a table or a trigger cannot be used")
        else:
            self.core.roll_back()

    def _mend_holes(self) -> bool:
        """Look for unindexed rows below the watermark; true while there is more to look at.

        Once after the schema has changed, and now and then while other programs commit.
        """
        if self.core.broken is not None:
            return False
        env = self.core.env
        checked = self._holes_through or get_internal(self.core.conn, "holes_checked")
        again = self._holes_due and env.monotonic() >= self._holes_again
        if checked is None or (checked >= self.watermark and not again):
            return False
        failed = self.begin(env.monotonic())
        if failed is not None:
            raise failed
        conn = self.core.conn
        if checked >= self.watermark:
            checked = mark_gaps_unchecked(conn)
            self._holes_due = False
            self._holes_again = env.monotonic() + limits.HOLES_AGAIN_SECONDS
        before, until = conn.total_changes, env.monotonic() + limits.INDEX_SLICE_BUSY_SECONDS
        try:
            through = index_gaps(conn, checked, self.watermark, env, until)
            if conn.total_changes == before and through < self.watermark:
                self.core.roll_back()  # nothing to keep but how far we have come
            else:
                set_internal(conn, "holes_checked", through)
                self.commit()
        except sqlite3.Error as error:
            return self._rebuild_after(error)
        self._holes_through = through if through < self.watermark else None
        return True

    def _rebuild_after(self, error: sqlite3.Error) -> bool:
        """Indexing has failed in the open transaction: rebuild if the index may be to blame."""
        self.core.roll_back()
        if not isinstance(error, IndexFailed):
            raise self.core.explain(error) from error
        failed = self.begin(self.core.env.monotonic() + limits.OPEN_BUSY_SECONDS)
        if failed is not None:
            raise failed from error
        return self._rebuild_index(str(error))

    def _rebuild_index(self, reason: str) -> bool:
        """Replace both full-text tables by empty ones in the open transaction; slices fill them.

        However large the old ones are: their pages are given back in slices, too.
        """
        _log.warning("rebuilding the full-text indexes of %s: %s", self.paths.db, reason)
        conn = self.core.conn
        try:
            for table in TABLES:
                drop_fulltext(conn, table)
                create_fulltext(conn, table)
            nothing = forget_index(conn)
            conn.execute("DELETE FROM hermes_actor_stale")
            note_schema(conn)
        except sqlite3.Error as error:
            self.core.roll_back()
            raise self.core.explain(error) from error
        self.forget_meeting()
        self._holes_through = None
        self.commit()
        self.watermark = nothing
        self.index_blame = None
        self.aside.give_up()
        conn.layout = None
        self.index_rebuilds += 1
        return True

    def _remove_leftovers(self) -> bool:
        """Give back pages of indexes that were replaced; true while there are more."""
        leftovers, env = features_of(self.core.conn).leftovers, self.core.env
        if not leftovers:
            return False
        enough = env.monotonic() + limits.INDEX_SLICE_BUSY_SECONDS
        name, go_on = leftovers[0], lambda: env.monotonic() < enough
        try:
            self._change(lambda conn: empty_leftover(conn, name, go_on))
        except Damaged as error:
            # Damaged pages may lead anywhere: better to leave them unused than to follow them.
            _log.error("%s: pages of an old full-text index stay: %s", self.paths.db, error)
            self._change(lambda conn: abandon_leftover(conn, name))
        return True

    def _change(
        self, work: Callable[[Connection], object], seconds: float = 0.0, writes: int = 0
    ) -> None:
        """Do *work* in a transaction of its own, outside of the order of changes.

        A foreign lock is waited for, for some *seconds*. *writes* is for the next checkpoint.
        """
        failed = self.begin(self.core.env.monotonic() + seconds)
        if failed is not None:
            raise failed
        try:
            work(self.core.conn)
            note_schema(self.core.conn)
        except (sqlite3.Error, DeadlineExceeded) as error:
            self.core.roll_back()
            raise self.core.explain(error) from error
        self.commit(writes=writes)
        self.core.conn.layout_checked = False

    def commit(self, commit_no: int | None = None, writes: int = 0) -> None:
        """Like :meth:`WriteConnection.commit`; what was derived at the beginning now holds."""
        try:
            self.core.commit(commit_no, writes)
        except TransactionLost as lost:
            if commit_no is not None:
                raise
            if isinstance(lost.__cause__, sqlite3.Error) and is_index_damage(lost.__cause__):
                raise IndexFailed(lost.__cause__) from None
            raise lost.cause from None
        except OutcomeUnknown:
            self.meet_anew()  # memory may be behind the file
            raise
        self._met = self._meeting
        self._all_done = False

    # --- idle time -------------------------------------------------------------------------------

    def idle_slice(self) -> float | None:
        """Do a bounded piece of upkeep.

        Returns after how many seconds the next piece is due, ``None`` if never. A foreign lock
        only postpones the work; other errors of the storage pass to the host.
        """
        if self.core.broken is not None:
            return None
        try:
            self.core.look_at_files()
            aside = self.aside.is_due and not self.aside.is_delayed
            if self._all_done and not aside and not self.core.somebody_else_wrote:
                return limits.FOREIGN_LOOK_SECONDS
            if self.index_slice(limits.INDEX_SLICE_IDLE_SECONDS):
                return 0.0
            pause = self.aside_slice(idle=True)
            if pause == 0.0 or self._mend_holes() or self._remove_leftovers():
                return 0.0
            # Texts that have failed may wait for minutes, and nothing else waits with them.
            if pause is not None and not self.aside.is_delayed:
                return pause
            missing = [n for n in OWN_INDEXES if n not in features_of(self.core.conn).indexes]
            if missing:
                return 0.0 if self._build_index(missing[0]) else limits.IDLE_GRACE_SECONDS
            self.checkpoint_if_due(waiting=False)
        except Busy:
            return limits.TRUNCATE_AFTER_IDLE_SECONDS
        self._all_done = self.checkpoints.truncated and not self._holes_due
        if self._all_done:
            return limits.FOREIGN_LOOK_SECONDS
        rest = limits.TRUNCATE_AFTER_IDLE_SECONDS
        return rest if pause is None else min(rest, pause)

    def _build_index(self, name: str) -> bool:
        """Build one of our extra indexes unless a change comes; false if it was given up."""

        def build(conn: Connection) -> None:
            with interruptible(conn, lambda: "others wait" if self._somebody_waits() else None):
                conn.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {OWN_INDEXES[name]}")

        try:
            self._change(build, writes=limits.CHECKPOINT_EVERY_WRITES)
        except (DeadlineExceeded, RequestError) as error:
            _log.debug("building %s was given up for now: %s", name, error)
            return False
        return True
