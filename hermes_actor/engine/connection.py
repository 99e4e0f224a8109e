"""The one write connection of a database: transactions that are durable or did not happen.

Rules. R1: nothing is acknowledged before start-up recovery. R2: after a failed sync the connection
is neither used nor closed. R3: a commit counts only if the files are still the ones that were
opened. R5: every transaction first finds its own epoch in the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor import exit_codes, limits
from hermes_actor.engine.authorizer import Authorizer
from hermes_actor.engine.checkpoint import CheckpointState, checkpoint_whole_wal
from hermes_actor.engine.file_identity import FileIdentityGuard, descriptor_of
from hermes_actor.engine.guest_settings import GuestSettings, Settings
from hermes_actor.engine.health import IndexFailed, StorageHealth, is_index_damage
from hermes_actor.engine.kinds import KINDS
from hermes_actor.engine.meta_table import file_id, get_internal, has_meta_tables, set_internal
from hermes_actor.engine.retry import is_busy, retry_busy
from hermes_actor.engine.startup.open_database import open_database
from hermes_actor.engine.startup.orphaned_files import (
    columns_of_rows,
    describe_wal,
    save_orphans,
    save_wal,
)
from hermes_actor.engine.startup.recovery import (
    clear_failed_sync,
    has_failed_sync,
    record_failed_sync,
    run_startup_recovery,
)
from hermes_actor.errors import (
    ActorBroken,
    Busy,
    ConstraintFailed,
    Damaged,
    DiskFull,
    DiskIOError,
    HermesActorError,
    OutcomeUnknown,
    StorageError,
    cannot_use,
    from_sqlite,
)
from hermes_actor.paths import is_gone
from hermes_actor.sqlite import Connection, primary_code, sqlite3
from hermes_actor.write_rules import NO_RULES, WriteRules
from hermes_protocol.features import SESSIONS

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import PhaseReport

__all__ = ["TransactionLost", "WriteConnection", "data_version"]

_log = logging.getLogger("hermes_actor.engine")

_FRAME_HEADER_BYTES = 24
"""Before each page in a WAL."""

_UNKNOWN_SCHEMA = (-1, -1, -1)

_abandoned: list[Connection] = []
"""Connections of broken writers. Closing one, even by the garbage collector, could checkpoint
stale pages over the data of other programs, so they are kept until the process ends."""


class TransactionLost(Exception):
    """SQLite ended the transaction, or refused to commit it: nothing of it was executed."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class WriteConnection:
    """Owner of the connection. The caller holds the owner lock for as long as it lives."""

    def __init__(
        self,
        paths: StorePaths,
        env: Environment,
        on_epoch: Callable[[int], None] = lambda _epoch: None,
        on_phase: Callable[[PhaseReport], None] = lambda _phase: None,
        timeout: float = limits.OPEN_BUSY_SECONDS,
        anchored: bool = False,
        rescues: bool = True,
        kind: str = SESSIONS,
        rules: WriteRules = NO_RULES,
    ) -> None:
        """Open the file and read where the order of changes stands.

        *on_epoch* is called with each epoch that begins, once it is durable; *on_phase* with what
        takes long while the file is opened; *timeout* is for foreign locks meanwhile. *anchored*:
        closing must not be the last close of the file. *rescues*: save the whole database if it is
        removed or replaced while it is open. *kind* is that of a file that does not say its own.
        *rules* are those of the settings.
        Raises the errors of :func:`open_database`.
        """
        self.paths = paths
        self.env = env
        self.epoch = 0
        self.file_id = b""
        self.commit_no = 0
        self.swept_through = 0
        self.checkpoints = CheckpointState()
        self._rules = rules
        self.guard = FileIdentityGuard(paths, env)
        self.health = StorageHealth(paths)
        self.leave_by = float("inf")
        """Time by which the host wants the file closed; bounds every wait for a foreign lock."""
        self.broken: BaseException | None = None
        self.exit_code = exit_codes.BROKEN
        self.recovered = False
        self.commits = 0
        """Transactions that this object has committed, maintenance included."""
        self.foreign_commits = 0
        self.last_foreign_commit = float("-inf")
        self.on_new_schema: Callable[[], None] = lambda: None
        """Called inside a transaction that finds another schema than the last commit left."""
        self.settle: Callable[[], None] = lambda: None
        """Returns when no answer waits for :meth:`sync_wal`. Who withholds answers sets it."""
        self._is_open = False
        """True while a transaction has not been ended here, though SQLite may have ended it."""
        self.shares_sync = False
        """True if a commit counts only after :meth:`sync_wal`."""
        self._wal_descriptor: int | None = None
        self._on_epoch = on_epoch
        self._on_phase = on_phase
        self._timeout = timeout
        self._anchored = anchored
        self._rescues = rescues
        self._anchor: Connection | None = None
        self._connections = 0
        self._wal = str(paths.wal)
        self._frame_bytes = 0
        self._recheck_files_at = float("-inf")
        self._suspect = False
        self._data_version = -1
        self._known_schema = self._pending_schema = _UNKNOWN_SCHEMA
        self.kind = KINDS[kind]
        self.authorizer = Authorizer(self.kind.guests)
        self.conn = self._open()
        try:
            self._read_counters()
        except sqlite3.Error as error:
            self._close_connections()
            raise self.explain(error) from error

    def _read_counters(self) -> None:
        """Read where the order of changes stands: clients get it before start-up recovery."""
        if has_meta_tables(self.conn):
            self.commit_no = get_internal(self.conn, "commit_no") or 0
            self.swept_through = get_internal(self.conn, "swept_through") or 0
            self.file_id = file_id(self.conn)

    def _open(self) -> Connection:
        # Log around open and close: the log must never show two processes with the file open.
        _log.info("database opened by pid %d at %.6f", os.getpid(), self.env.monotonic())
        return self._connect()

    def _connect(self) -> Connection:
        conn, self.kind = open_database(
            self.paths, self.env, self._on_phase, self._timeout, self.kind.name
        )
        self.authorizer.rules = self.kind.guests
        self.settings = GuestSettings(conn, self.kind.settings)
        # For connections of programs: was there a foreign commit since their snapshot?
        conn.create_function("hermes_actor_foreign_commit", 0, lambda: self.last_foreign_commit)
        conn.set_authorizer(self.authorizer)
        conn.rules = self._rules
        self._connections += 1
        try:
            ((page_bytes,),) = conn.execute("PRAGMA page_size").fetchall()
            self._frame_bytes = page_bytes + _FRAME_HEADER_BYTES
            if self._anchored:
                # With an anchor, closing the write connection is never the last close, which would
                # checkpoint for as long as it takes and unlink the WAL while others open the file.
                self._anchor = self.env.connect_reader(self.paths.db)
        except sqlite3.Error as error:
            conn.close()
            raise self.explain(error) from error
        if self._anchor is not None:
            # A connection opens the WAL with its first read; one that fails still keeps the file.
            with contextlib.suppress(sqlite3.Error):
                self._anchor.execute("PRAGMA schema_version").fetchall()
        return conn

    # --- transactions ----------------------------------------------------------------------------

    def begin(
        self, deadline: float, settings: Settings | None = None, *, may_share: bool = False
    ) -> HermesActorError | None:
        """Begin a transaction under the epoch of this connection; wait for foreign locks.

        *settings* are those of a guest's connection; ``None``: it is the engine's own work.
        *may_share*: its commit may leave the sync to others, see :attr:`shares_sync`.
        Returns the reason if none could be begun by *deadline*; nothing is executed then.
        """
        if not may_share:
            self.sync_each_commit()
        if self.broken is not None:
            return self.broken_error()
        refusal = self.health.refusal()
        if refusal is not None:
            return refusal
        try:
            self.run_startup_recovery(deadline)
            if self._suspect:
                self._reopen_after_io_error(deadline)
            # Before writing, too: a commit beside a foreign WAL or shared memory harms others.
            # Not again right after the last commit: a replacement needs longer than that.
            if self.env.monotonic() > self._recheck_files_at and not self.guard.intact():
                self._files_replaced()
            if may_share:
                self._share_sync()
            # Before it begins: inside, SQLite ignores some of them.
            self.settings.apply(settings)
            # IMMEDIATE: a deferred transaction that reads first and writes later fails with
            # SQLITE_BUSY_SNAPSHOT, which no wait can cure, if another program commits in between.
            retry_busy(
                lambda: self.conn.execute("BEGIN IMMEDIATE"),
                self.env,
                deadline,
                lambda: self.leave_by,
            )
            self._is_open = True
            if settings is not None:
                self.settings.apply(settings, inside=True)
            # Under the write lock: what is found here stays true until the commit.
            fence = self._fence()
            self.env.failpoint("batch.begin")
        except OutcomeUnknown:
            # It is about the files, and of earlier changes: this transaction was not begun.
            return self.broken_error()
        except Exception as error:
            self.roll_back()
            return self.health.record(self.explain(error))
        if fence is not None:
            # R5: whatever this owner still writes would be acknowledged on the strength of a lock,
            # or of a content, that it no longer has.
            self.roll_back()
            self.mark_broken(ActorBroken(fence), exit_codes.FENCED)
            return self.broken_error()
        schema = (self._connections, self.conn.layout_cookie, self.foreign_commits)
        try:
            if schema != self._known_schema:
                self.on_new_schema()
                self._pending_schema = schema
        except Exception as error:
            self.roll_back()
            return self.explain(error)
        return None

    def _fence(self) -> str | None:
        """Return why this owner is none any more, as the open transaction sees it (R5)."""
        try:
            epoch = get_internal(self.conn, "epoch")
        except sqlite3.OperationalError:
            if has_meta_tables(self.conn):
                raise
            return self._replaced_by("one that never had an actor")
        if epoch == self.epoch:
            return self._notice_foreign_commits()
        if epoch is None or epoch < self.epoch:
            return self._replaced_by("an earlier one")
        return f"another owner has taken over {self.paths.db}"

    def _replaced_by(self, what: str) -> str:
        return (
            f"another program has replaced the content of {self.paths.db} by {what}; what had been"
            f" written before is in no copy of ours but the backups: hermes-actor restore --list"
        )

    def _share_sync(self) -> None:
        """Have commits leave their sync to :meth:`sync_wal`, if that is possible."""
        if not self.shares_sync and self._wal_descriptor is not None:
            # WAL frames are written as before, and begin to count in their order. What is not
            # synced yet cannot be checkpointed either: SQLite syncs the WAL before it moves pages.
            self.conn.execute("PRAGMA synchronous = NORMAL")
            self.shares_sync = True

    def sync_each_commit(self) -> None:
        """Return when everything committed is synced; from here on, each commit syncs itself."""
        if self.shares_sync:
            self.settle()
            self.shares_sync = False
            if self.broken is None:
                self.conn.execute("PRAGMA synchronous = FULL")

    def sync_wal(self) -> None:
        """Sync everything that is committed. Raises :class:`OSError` or :class:`ActorBroken`.

        In any thread, but only while the writer does nothing else than leases.
        """
        self.env.failpoint("sync.before")
        if self.broken is not None:
            raise self.broken_error()  # a second sync would find nothing wrong any more
        assert self._wal_descriptor is not None
        assert self.env.sync is not None
        self.env.sync(self._wal_descriptor)
        self.env.failpoint("sync.after")

    def shared_sync_failed(self, error: Exception) -> OutcomeUnknown:
        """Break the writer (R2); the error for answers that have waited for the sync."""
        record_failed_sync(self.paths)
        failed = DiskIOError(f"disk I/O error: {error}", sqlite_message="disk I/O error")
        self.mark_broken(failed, exit_codes.FSYNC_FAILED)
        return OutcomeUnknown(f"{failed}; the change may or may not be kept, and the actor stops")

    def _notice_foreign_commits(self) -> str | None:
        """Count them. Without one the schema is as this connection left it.

        Returns why this owner is none any more, if one has replaced the content.
        """
        version = data_version(self.conn)
        if version != self._data_version:
            if self._data_version != -1:
                self.foreign_commits += 1
                self.last_foreign_commit = self.env.monotonic()
                if get_internal(self.conn, "commit_no") != self.commit_no:
                    return self._replaced_by("an earlier one")
            self._data_version = version
            self.conn.layout_checked = False
        self.kind.read_schema(self.conn)
        return None

    def invalidate_schema(self) -> None:
        """Have the next transaction look at the schema again: the open one may have changed it."""
        self._pending_schema = _UNKNOWN_SCHEMA

    @property
    def schema_is_known(self) -> bool:
        """True if the open transaction has found the schema that the last commit left."""
        return self._known_schema == self._pending_schema

    @property
    def state(self) -> str:
        """A name for the present content. Another name: it has changed, or may have.

        Own changes count in ``commit_no``; commits of other programs show in the data version,
        which means something on this connection only, as the epoch does.
        """
        return f"{self.file_id.hex()}.{self.epoch}.{self.commit_no}.{data_version(self.conn)}"

    @property
    def foreign_commit_is_new(self) -> bool:
        """True if another program has committed since the last transaction. Takes no lock."""
        return self._data_version != -1 and data_version(self.conn) != self._data_version

    def commit(self, commit_no: int | None = None, writes: int = 0) -> None:
        """Commit durably; *commit_no* is the last number of the changes in it, ``None`` for
        maintenance, which has no place in the order of changes.

        Raises :class:`OutcomeUnknown` if it may or may not be kept; the writer is then broken,
        unless only the look at the files failed. If nothing was executed: with a *commit_no*
        :class:`TransactionLost`, without one the typed error, :class:`IndexFailed` for damage that
        FTS5 finds while it writes its pages.
        """
        try:
            if commit_no is not None:
                set_internal(self.conn, "commit_no", commit_no)
            self.env.failpoint("commit.before")
            # Only a rollback journal makes a commit wait, for readers that are inside.
            timeout = self.env.monotonic() + limits.COMMIT_BUSY_SECONDS
            retry_busy(lambda: self.conn.execute("COMMIT"), self.env, timeout)
        except (sqlite3.Error, MemoryError) as error:
            self._commit_failed(error, in_order=commit_no is not None)
        self.env.failpoint("commit.after")
        self._is_open = False
        self.health.clear()
        self.commits += 1
        self._known_schema = self._pending_schema
        changes = 0 if commit_no is None else commit_no - self.commit_no
        # Before the files are checked: whatever they say, the numbers are in the file and taken.
        self.commit_no += changes
        try:
            # After the commit and before the acknowledgement: a file that was replaced between the
            # check in begin() and the commit took this change along, and no reader will see it.
            if not self.guard.intact():
                self._files_replaced()
            self._recheck_files_at = self.env.monotonic() + limits.LOOK_AGAIN_SECONDS
            frames = self.guard.wal_bytes // self._frame_bytes
            self.checkpoints.wrote(writes, self.env.monotonic(), frames, changes)
        except OSError as error:
            # R3: what was not verified is not acknowledged. The client can ask for it again.
            self._forget_schema()
            raise OutcomeUnknown(
                f"committed, but the files of {self.paths.db} cannot be checked: {error}"
            ) from error

    def _commit_failed(self, error: BaseException, *, in_order: bool) -> None:
        explained = self.explain(error)
        # A refused constraint, a foreign lock, no room: the transaction is whole, and rolled back
        # means not executed. So is one in which FTS5 finds its pages damaged: it writes them before
        # SQLite writes the WAL. A write or sync that fails is an I/O error.
        if isinstance(explained, ConstraintFailed | Busy | DiskFull | Damaged):
            self.roll_back()
            recorded = self.health.record(explained)
            if in_order:
                raise TransactionLost(recorded) from error
            if isinstance(error, sqlite3.Error) and is_index_damage(error):
                raise IndexFailed(error) from None
            raise recorded from None
        # R2: the kernel reports a failed sync once, and takes its pages for clean after that. No
        # retry can tell what is on the disk; the next owner writes the WAL again.
        record_failed_sync(self.paths)
        self.mark_broken(explained, exit_codes.FSYNC_FAILED)
        raise OutcomeUnknown(
            f"{explained}; the change may or may not be kept, and the actor stops"
        ) from error

    def break_on_io_error(self, error: sqlite3.Error) -> None:
        """Mark the writer as broken if *error* of a checkpoint, or of what contains one, is an I/O
        error: it is then unknown how much of the WAL is in the database."""
        if primary_code(error) == sqlite3.SQLITE_IOERR:
            record_failed_sync(self.paths)
            self.mark_broken(self.explain(error), exit_codes.FSYNC_FAILED)

    def roll_back(self) -> None:
        """End the open transaction, if any, without a trace."""
        if self.conn.in_transaction:
            self.conn.execute("ROLLBACK")
        elif not self._is_open:
            return  # what was learned about the schema is committed
        self._is_open = False
        self.conn.layout = None

    def mark_broken(self, cause: BaseException, exit_code: int) -> None:
        """Stop for good. The first cause sticks; the connection is neither used nor closed."""
        if self.broken is None:
            self.broken, self.exit_code = cause, exit_code
            _abandoned.append(self.conn)
            import ctypes  # late: only a broken writer needs it

            # The interpreter clears modules when it ends, and would close what they held.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.conn))
            _log.error("the writer of %s has stopped: %s", self.paths.db, cause)

    def broken_error(self) -> ActorBroken:
        """Error for requests that arrive after the writer broke."""
        return ActorBroken(f"the writer of {self.paths.db} has stopped: {self.broken}")

    def explain(self, error: BaseException) -> HermesActorError:
        """Return the typed error for *error*, which anything in a transaction may have raised."""
        if isinstance(error, HermesActorError):
            return error
        if isinstance(error, sqlite3.Error):
            # A full-text table keeps wrong totals in memory after a transaction that failed so.
            self._suspect |= primary_code(error) == sqlite3.SQLITE_IOERR
            return from_sqlite(error, self.paths.db)
        if isinstance(error, OSError):
            return cannot_use(self.paths.db, error.filename or self.paths.folder, error)
        _log.error("unexpected error of %s", self.paths.db, exc_info=error)
        return StorageError(
            f"unexpected error while writing {self.paths.db}: {type(error).__name__}: {error}"
        )

    def explain_to_caller(self, error: Exception) -> Exception:
        """Like :meth:`explain`, but the error of a wrong value stays as Python raised it."""
        wrong_value = isinstance(error, ValueError | TypeError | OverflowError)
        return error if wrong_value else self.explain(error)

    # --- start-up recovery -----------------------------------------------------------------------

    def recover(self, seconds: float = limits.OPEN_BUSY_SECONDS) -> bool:
        """Try start-up recovery now. Returns False while a foreign lock or a reader blocks it."""
        try:
            self.run_startup_recovery(self.env.monotonic() + seconds)
        except Busy:
            pass
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise self.explain(error) from error
        return self.recovered

    def run_startup_recovery(self, deadline: float) -> None:
        """Begin the epoch of this connection (R1), once; see :mod:`engine.startup.recovery`.

        Raises :class:`Busy` or the error of SQLite if that is impossible by *deadline*.
        """
        if self.recovered:
            return
        if self.guard.shm_unlinked():
            self.mark_broken(
                ActorBroken(
                    f"connections of pid {os.getpid()} still use the unlinked shared memory of"
                    f" {self.paths.db}, which other processes cannot see: restart this process"
                ),
                exit_codes.FILES_REPLACED,
            )
            raise self.broken_error()
        try:
            self.epoch = run_startup_recovery(
                self.conn,
                self.env,
                deadline,
                self.paths,
                self.kind,
                after_failure=has_failed_sync(self.paths),
                leave_by=lambda: self.leave_by,
            )
        except OSError as error:
            # The WAL could not be written again: a failed write like any other (R2).
            record_failed_sync(self.paths)
            failed = DiskIOError(f"disk I/O error: {error}", sqlite_message="disk I/O error")
            self.mark_broken(failed, exit_codes.FSYNC_FAILED)
            raise failed from error
        except sqlite3.Error as error:
            self.break_on_io_error(error)
            raise
        # After the commit of the epoch: a crash before it leaves the mark, and with it the strict
        # form of R1, to the next owner.
        clear_failed_sync(self.paths)
        self.commit_no = get_internal(self.conn, "commit_no") or 0
        self.file_id = file_id(self.conn)
        self._on_epoch(self.epoch)
        # Only now do all files exist: the commit of the epoch has created WAL and shared memory.
        self.guard.remember()
        self.guard.checkpointed()
        # From here on, and not from the first transaction on: clients take snapshots meanwhile.
        self._data_version, self.conn.layout_checked = data_version(self.conn), False
        self._wal_descriptor = self._find_wal()
        self.recovered = True

    def _find_wal(self) -> int | None:
        """Return the descriptor by which SQLite writes the WAL; ``None``: there is no such way."""
        ((mode,),) = self.conn.execute("PRAGMA journal_mode").fetchall()
        if mode != "wal" or self.env.sync is None:
            return None
        return descriptor_of(self.guard.wal)

    def _reopen_after_io_error(self, deadline: float) -> None:
        """Go on with a new connection, if there can be one.

        FTS5 keeps wrong totals of what was rolled back for as long as its connection lives, and
        would write them with the next change.
        """
        self.verify_files()
        self.sync_each_commit()
        used, anchor = self.conn, self._anchor
        # The old one is closed after the new one is open: it is never the last close of the file.
        self.conn = self._connect()
        self._suspect = False
        self._forget_connection()
        used.close()
        if anchor is not None:
            anchor.close()
        self.run_startup_recovery(deadline)

    def _forget_connection(self) -> None:
        self.recovered = False
        self._wal_descriptor = None
        self._data_version = -1

    def _forget_schema(self) -> None:
        self._known_schema = self._pending_schema = _UNKNOWN_SCHEMA

    def content_replaced(self) -> None:
        """Adopt a content that a restore has written through this connection, epoch included."""
        self.epoch = get_internal(self.conn, "epoch") or 0
        self._read_counters()
        self._data_version = -1
        self._forget_schema()
        self.commits += 1
        self.conn.layout, self.conn.layout_checked = None, False
        self.health.mark_repaired()
        self._on_epoch(self.epoch)
        self.checkpoints.wrote(1, self.env.monotonic(), self.wal_frames(), 1)

    def wal_frames(self) -> int:
        """Length of the WAL file in frames. It does not shrink when SQLite restarts the WAL."""
        return self.env.size(self._wal) // self._frame_bytes

    # --- replaced files --------------------------------------------------------------------------

    def verify_files(self, *, unless_home_is_gone: bool = False) -> None:
        """Raise :class:`OutcomeUnknown` and break the writer if a file was replaced (R3).

        *unless_home_is_gone*: for idle time. If the whole folder is gone, nothing can be saved
        beside the database, and the host rescues it in its own way.
        """
        if unless_home_is_gone and (not self.recovered or is_gone(self.paths.db.parent)):
            return
        if not self.guard.intact():
            self._files_replaced()

    def _files_replaced(self) -> None:
        """Save what only the unlinked files hold and stop.

        Returns only if just the WAL was unlinked, no other program has written, and all of it, a
        change that was just committed included, is in the database again.
        """
        self.sync_each_commit()
        # Asked first: a checkpoint of the WAL changes the database, by this process itself.
        unwritten = self.guard.unchanged_since_checkpoint()
        if unwritten and self._checkpoint_unlinked_wal():
            return
        saved = save_orphans(
            self.guard,
            self.paths,
            self.conn,
            self.epoch,
            self.checkpoints.changes_in_wal,
            rescues=self._rescues,
            wal_fits=unwritten,
        )
        # Opened together with the new database, the stale WAL would put its pages into that file.
        with contextlib.suppress(OSError):
            self.guard.unlink_stale_wal()
        raise self._stop_replaced(ActorBroken(f"{self.paths.db} {saved}"))

    def _stop_replaced(self, cause: HermesActorError) -> OutcomeUnknown:
        self.mark_broken(cause, exit_codes.FILES_REPLACED)
        return OutcomeUnknown(str(self.broken))

    def _checkpoint_unlinked_wal(self) -> bool:
        """Move every frame of the unlinked WAL into the database and reopen it.

        Returns False if that is impossible. A reader can stop a checkpoint half-way: SQLite then
        skips every page that has changed since, and the database is whole only together with its
        WAL. So readers are waited for. Breaks the writer and raises :class:`OutcomeUnknown`, with
        the WAL saved, if the database cannot be opened again or lacks a change.
        """
        try:
            if not checkpoint_whole_wal(self.conn, self.env, limits.UNLINKED_WAL_SECONDS):
                return False
        except sqlite3.Error as error:
            # Do not propagate: the change is committed; raising would report it as not executed.
            _log.error("the unlinked WAL of %s cannot be checkpointed: %s", self.paths.db, error)
            self.break_on_io_error(error)
            return False
        wal, epoch, commit_no = self.guard.wal, self.epoch, self.commit_no
        columns = columns_of_rows(self.conn)
        with self.guard.keep(wal):
            self._close_connections()
            self._forget_connection()
            cause: HermesActorError | None = None
            try:
                self.conn = self._open()
                self.run_startup_recovery(self.env.monotonic() + limits.OPEN_BUSY_SECONDS)
            except (sqlite3.Error, HermesActorError) as error:
                cause = self.explain(error)
            # That a checkpoint was complete is what the shared memory says, and programs that saw
            # no lock of this one may have written there. What the file says is asked instead.
            if cause is None and self.commit_no == commit_no:
                _log.warning(
                    "the WAL of %s was removed; all of it is in the file again", self.paths.db
                )
                return True
            saved = save_wal(self.paths, epoch, wal, columns)
        text = describe_wal(saved, self.checkpoints.changes_in_wal)
        if cause is not None:
            _log.error("%s cannot be opened again: %s", self.paths.db, cause)
        raise self._stop_replaced(cause or ActorBroken(f"{self.paths.db} {text}"))

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file. A broken connection stays open: closing it could write (R2)."""
        if self.broken is None:
            self._close_connections()
            self.env.failpoint("close.after")

    def _close_connections(self) -> None:
        self.sync_each_commit()
        self.conn.close()
        if self._anchor is not None:
            # Last, and read-only: it can neither checkpoint nor unlink anything.
            self._anchor.close()
        _log.info("database closed by pid %d at %.6f", os.getpid(), self.env.monotonic())


def data_version(conn: Connection) -> int:
    """Return a number that changes on *conn* when another connection has committed."""
    ((version,),) = conn.execute("PRAGMA data_version").fetchall()
    return int(version)
