"""The one write connection of a database: transactions that are durable or did not happen.

Rules. R1: nothing is acknowledged before the barrier. R2: after a failed sync nothing more is
done with the connection, not even closing it. R3: before a commit counts, the files are the ones
that we opened. R5: every transaction first finds our epoch in the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor import exit_codes, limits
from hermes_actor.engine.authorizer import Authorizer
from hermes_actor.engine.checkpoint import Action, CheckpointState, run_checkpoint
from hermes_actor.engine.file_identity import FileIdentityGuard
from hermes_actor.engine.health import StorageHealth
from hermes_actor.engine.meta_table import file_id, get_internal, has_meta_tables, set_internal
from hermes_actor.engine.open_database import open_database
from hermes_actor.engine.orphaned_files import put_back_wal, save_database, save_wal
from hermes_actor.engine.recovery import run_startup_recovery
from hermes_actor.engine.retry import is_busy, retry_busy
from hermes_actor.errors import (
    ActorBroken,
    Busy,
    ConstraintFailed,
    Damaged,
    DiskFull,
    DiskIOError,
    HermesActorError,
    OutcomeUnknown,
    StateChanged,
    StorageError,
    cannot_use,
    from_sqlite,
)
from hermes_actor.paths import is_gone
from hermes_actor.sqlite import Connection, primary_code, sqlite3
from hermes_actor.store.schema_features import features_of

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.engine.environment import Environment
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import PhaseReport

__all__ = ["TransactionLost", "WriteConnection"]

_log = logging.getLogger("hermes_actor.engine")

_FRAME_BYTES = 4096 + 24

_abandoned: list[Connection] = []
"""Connections of broken writers. Closing one, even by the garbage collector, could checkpoint
stale pages over somebody's data, so they are kept until the process ends."""


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
    ) -> None:
        """*on_epoch* is told each epoch that begins, once it is durable; *on_phase* what takes
        long while the file is opened; *timeout* is for foreign locks meanwhile. *anchored*: see
        :meth:`_open`. *rescues*: a database that is removed under us is saved whole."""
        self.paths = paths
        self._on_epoch = on_epoch
        self._on_phase = on_phase
        self._timeout = timeout
        self._anchored = anchored
        self._rescues = rescues
        self._anchor: Connection | None = None
        self.env = env
        self.epoch = 0
        self.file_id = b""
        self.commit_no = 0
        self.swept_through = 0
        self.checkpoints = CheckpointState()
        self.authorizer = Authorizer()
        self.leave_by = float("inf")
        """When the host wants the file closed; foreign locks are not waited for beyond that."""
        self.broken: BaseException | None = None
        self.exit_code = exit_codes.BROKEN
        self.faults = StorageHealth(paths)
        self.recovered = False
        self.foreign_commits = 0
        self.connections = 0
        self.last_foreign_commit = float("-inf")
        self._unfolded = 0
        self.file_bytes = env.size(str(paths.db))
        self._guard = FileIdentityGuard(paths, env)
        self._wal = str(paths.wal)
        self._look_again = float("-inf")
        self._suspect = False
        self._data_version = -1
        self.conn = self._open()
        try:
            self._look_ahead()
        except sqlite3.Error as error:
            self._close_connections()
            raise self.explain(error) from error

    def _look_ahead(self) -> None:
        """Where the order of changes stands: clients are told at once, before the barrier."""
        if has_meta_tables(self.conn):
            self.commit_no = get_internal(self.conn, "commit_no") or 0
            self.swept_through = get_internal(self.conn, "swept_through") or 0
            self.file_id = file_id(self.conn)

    def _open(self) -> Connection:
        # Told before and after: at no time are two processes between such a pair of lines.
        _log.info("database opened by pid %d at %.6f", os.getpid(), self.env.monotonic())
        return self._connect()

    def _connect(self) -> Connection:
        conn = open_database(self.paths, self.env, self._on_phase, self._timeout)
        conn.set_authorizer(self.authorizer)
        self.connections += 1
        if self._anchored:
            # With an anchor, closing the write connection is never the last close, which would
            # checkpoint for as long as it takes and unlink the WAL under whoever opens just then.
            try:
                self._anchor = self.env.connect_reader(self.paths.db)
            except sqlite3.Error as error:
                conn.close()
                raise self.explain(error) from error
            with contextlib.suppress(sqlite3.Error):
                self._anchor.execute("PRAGMA schema_version").fetchall()
        return conn

    # --- transactions ----------------------------------------------------------------------------

    def begin(self, deadline: float) -> HermesActorError | None:
        """Begin under our epoch. Returns why not, if not; nothing is executed then."""
        if self.broken is not None:
            return self.stopped()
        refusal = self.faults.refusal()
        if refusal is not None:
            return refusal
        try:
            self.run_startup_recovery(deadline)
            if self._suspect:
                self._trust_again(deadline)
            # Before writing, too: a commit beside a foreign WAL or shared memory harms others.
            # Not again right after the last commit: a replacement needs longer than that.
            if self.env.monotonic() > self._look_again and not self._guard.intact():
                self._files_changed(None)
            retry_busy(
                lambda: self.conn.execute("BEGIN IMMEDIATE"),
                self.env,
                deadline,
                lambda: self.leave_by,
            )
            self._notice_foreign_commits()
            epoch = get_internal(self.conn, "epoch")
            self.env.failpoint("batch.begin")
        except OutcomeUnknown:
            # Of the files: nothing was begun.
            return self.stopped()
        except Exception as error:
            self.roll_back()
            return self.faults.note(self.explain(error))
        if epoch != self.epoch:
            self.roll_back()
            self.break_down(
                ActorBroken(f"another owner has taken over {self.paths.db}"), exit_codes.FENCED
            )
            return self.stopped()
        return None

    def _notice_foreign_commits(self) -> None:
        """Without one the schema is as we left it, and need not be looked at again."""
        version = self._version_of_data()
        if version != self._data_version:
            if self._data_version != -1:
                self.foreign_commits += 1
                self.last_foreign_commit = self.env.monotonic()
            self._data_version = version
            self.conn.layout_checked = False
        features_of(self.conn)

    def _version_of_data(self) -> int:
        return _data_version(self.conn)

    @property
    def state(self) -> str:
        """A name for the present content. Another name: it has changed, or may have.

        Own changes count in ``commit_no``; commits of other programs show in the version of the
        data, which is this connection's, as the epoch is.
        """
        return f"{self.file_id.hex()}.{self.epoch}.{self.commit_no}.{self._version_of_data()}"

    @property
    def somebody_else_wrote(self) -> bool:
        """Whether another program has committed since our last transaction. Takes no lock."""
        return self._data_version != -1 and self._version_of_data() != self._data_version

    def commit(self, commit_no: int | None = None, writes: int = 0) -> None:
        """Commit durably, under a new *commit_no* if the transaction changes the order of changes.

        Raises :class:`TransactionLost` if nothing was executed, and :class:`OutcomeUnknown` if
        nobody can tell; the writer is then broken.
        """
        try:
            if commit_no is not None:
                set_internal(self.conn, "commit_no", commit_no)
            self.env.failpoint("commit.before")
            # Only a rollback journal makes a commit wait, for readers that are inside.
            timeout = self.env.monotonic() + limits.COMMIT_BUSY_SECONDS
            retry_busy(lambda: self.conn.execute("COMMIT"), self.env, timeout)
        except (sqlite3.Error, MemoryError) as error:
            self._commit_failed(error)
        self.env.failpoint("commit.after")
        self.faults.over()
        fresh = 0 if commit_no is None else commit_no - self.commit_no
        self.commit_no += fresh
        try:
            if not self._guard.intact():
                self._files_changed(commit_no)
            self._look_again = self.env.monotonic() + limits.LOOK_AGAIN_SECONDS
            self._unfolded += fresh
            self._note_frames(writes)
        except OSError as error:
            # R3: what nobody has looked at is not acknowledged. It can be asked for again.
            raise OutcomeUnknown(
                f"committed, but the files of {self.paths.db} cannot be looked at: {error}"
            ) from error

    def _note_frames(self, writes: int) -> None:
        frames = self.env.size(self._wal) // _FRAME_BYTES
        self.checkpoints.wrote(writes, self.env.monotonic(), frames)

    def _commit_failed(self, error: BaseException) -> None:
        explained = self.explain(error)
        # A refused constraint, a foreign lock, no room: the transaction is whole, and rolled back
        # means not executed. So is one in which FTS5 finds its pages damaged: it writes them before
        # SQLite writes the WAL. A write or sync that fails is an I/O error.
        if isinstance(explained, ConstraintFailed | Busy | DiskFull | Damaged):
            self.roll_back()
            raise TransactionLost(self.faults.note(explained)) from error
        self._mark_failed_sync()
        self.break_down(explained, exit_codes.FSYNC_FAILED)
        raise OutcomeUnknown(f"{explained}; nobody can tell whether it was kept") from error

    def _fail_with(self, error: sqlite3.Error) -> None:
        """A checkpoint, or what contains one, has failed: if the disk did, nobody can tell what
        of the WAL is in the database."""
        if primary_code(error) == sqlite3.SQLITE_IOERR:
            self._mark_failed_sync()
            self.break_down(self.explain(error), exit_codes.FSYNC_FAILED)

    def _mark_failed_sync(self) -> None:
        """Tell the next owner. If even that fails, the disk will tell it."""
        with contextlib.suppress(OSError):
            self.paths.folder.mkdir(mode=0o700, exist_ok=True)
            self.paths.fsync_failed.touch()

    def roll_back(self) -> None:
        """End the open transaction, if any, without a trace."""
        if self.conn.in_transaction:
            self.conn.execute("ROLLBACK")
        self.conn.layout = None

    def break_down(self, cause: BaseException, exit_code: int) -> None:
        """The first cause sticks. The connection is neither used nor closed any more."""
        if self.broken is None:
            self.broken, self.exit_code = cause, exit_code
            _abandoned.append(self.conn)
            import ctypes  # only for a bad end

            # The interpreter closes what is in modules when it ends; this one it must not.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.conn))
            _log.error("the writer of %s has stopped: %s", self.paths.db, cause)

    def stopped(self) -> ActorBroken:
        """What whoever still comes to a broken writer is told."""
        return ActorBroken(f"the writer has stopped: {self.broken}")

    def explain(self, error: BaseException) -> HermesActorError:
        if isinstance(error, HermesActorError):
            return error
        if isinstance(error, sqlite3.Error):
            # What a full-text table remembers of a transaction that failed so is not to be trusted.
            self._suspect |= primary_code(error) == sqlite3.SQLITE_IOERR
            return from_sqlite(error, self.paths.db)
        if isinstance(error, OSError):
            return cannot_use(self.paths.db, error.filename or self.paths.folder, error)
        _log.error("unexpected error of %s", self.paths.db, exc_info=error)
        return StorageError(f"unexpected error: {type(error).__name__}: {error}")

    # --- the barrier and the guard ---------------------------------------------------------------

    def recover(self, seconds: float = limits.OPEN_BUSY_SECONDS) -> bool:
        """Try to pass the barrier now. False while something is in the way."""
        try:
            self.run_startup_recovery(self.env.monotonic() + seconds)
        except Busy:
            pass
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise self.explain(error) from error
        return self.recovered

    def run_startup_recovery(self, deadline: float) -> None:
        if self.recovered:
            return
        if self._guard.shm_unlinked():
            self.break_down(
                ActorBroken(
                    f"connections of pid {os.getpid()} still use the removed shared memory of"
                    f" {self.paths.db}, which others can no longer see: end this process"
                ),
                exit_codes.FILES_REPLACED,
            )
            raise self.stopped()
        after_failure = self.paths.fsync_failed.exists()
        try:
            self.epoch = run_startup_recovery(
                self.conn,
                self.env,
                deadline,
                self.paths,
                after_failure=after_failure,
                leave_by=lambda: self.leave_by,
            )
        except OSError as error:
            self._mark_failed_sync()
            failed = DiskIOError(f"disk I/O error: {error}", sqlite_message="disk I/O error")
            self.break_down(failed, exit_codes.FSYNC_FAILED)
            raise failed from error
        except sqlite3.Error as error:
            self._fail_with(error)
            raise
        self.paths.fsync_failed.unlink(missing_ok=True)
        self.commit_no = get_internal(self.conn, "commit_no") or 0
        self.file_id = file_id(self.conn)
        self._on_epoch(self.epoch)
        self._guard.remember()
        self._guard.checkpointed()
        self.recovered = True

    def look_at_files(self) -> None:
        """In idle time: stop if somebody has replaced the file. When its whole folder is gone,
        nothing can be saved any more, and the host ends in its own way."""
        if self.recovered and not is_gone(self.paths.db.parent) and not self._guard.intact():
            self._files_changed(None)

    def _files_changed(self, commit_no: int | None) -> None:
        """Somebody has replaced or removed a file under us. Go on only if nothing was written."""
        nobody_wrote = self._guard.nobody_wrote()
        if nobody_wrote and self._fold_back():
            _log.warning("the WAL of %s was removed; all of it is in the file again", self.paths.db)
            if commit_no is None or self.commit_no == commit_no:
                return
        rescued = self._rescue_database()
        if rescued is not None:
            told = f"removed or replaced under its owner; all that it held is in {rescued}"
        else:
            told = f"or its WAL was replaced under its owner; {self._rescue_wal(nobody_wrote)}"
        with contextlib.suppress(OSError):
            self._guard.remove_stale()
        cause = ActorBroken(f"{self.paths.db} {told}")
        self.break_down(cause, exit_codes.FILES_REPLACED)
        raise OutcomeUnknown(str(cause))

    def _rescue_database(self) -> Path | None:
        """Save everything, if the database is not in its place: we still have it open."""
        if not self._rescues or not self._guard.has_lost_database():
            return None
        return save_database(self.paths, self.epoch, self._guard.db, self._guard.wal)

    def _rescue_wal(self, nobody_wrote: bool) -> str:
        """Save what is only in the WAL; where it is, for people."""
        saved = save_wal(self.paths, self.epoch, self._guard.wal, self._columns())
        if nobody_wrote and saved is not None and self._guard.has_its_shared_memory():
            # By now a part of it is in the database, which without the rest would be damaged.
            with contextlib.suppress(OSError):
                saved = put_back_wal(saved, self.paths)
        if saved is None and not self._unfolded:
            return "no acknowledged change was in its WAL only"
        return (
            f"{self._unfolded} acknowledged changes are in {saved or 'no file that we could save'}"
        )

    def _columns(self) -> dict[str, list[str]]:
        """In which order they stand, which differs between files; rows of a log are read by it."""
        with contextlib.suppress(sqlite3.Error):
            return {
                table: [row[1] for row in self.conn.execute(f"PRAGMA table_info({table})")]
                for table in ("sessions", "messages")
            }
        return {}

    def _fold_back(self) -> bool:
        """Move every frame of the removed WAL into the database and open it anew.

        A reader can stop a checkpoint half-way: SQLite then skips every page that has changed
        since, and the database is whole only together with its WAL. So readers are waited for.
        """
        give_up = self.env.monotonic() + limits.FOLD_BACK_SECONDS
        try:
            while not run_checkpoint(self.conn, Action.PASSIVE, self.env, 0).complete:
                if self.env.monotonic() >= give_up:
                    return False
                self.env.sleep(limits.BUSY_RETRY_SECONDS)
        except sqlite3.Error as error:
            # Never passed on: a change that is committed already would be told as not executed.
            _log.error("the removed WAL of %s cannot be folded back: %s", self.paths.db, error)
            self._fail_with(error)
            return False
        self._close_connections()
        self._forget_connection()
        try:
            self.conn = self._open()
            self.run_startup_recovery(self.env.monotonic() + limits.OPEN_BUSY_SECONDS)
        except (sqlite3.Error, HermesActorError) as error:
            self.break_down(self.explain(error), exit_codes.FILES_REPLACED)
            raise OutcomeUnknown(str(self.broken)) from error
        return True

    def _forget_connection(self) -> None:
        self.recovered = False
        self._data_version = -1

    def _trust_again(self, deadline: float) -> None:
        """After an I/O error: go on with a new connection, if there can be one.

        FTS5 keeps wrong totals of what was rolled back for as long as its connection lives, and
        would write them with the next change.
        """
        if not self._guard.intact():
            self._files_changed(None)
        used, anchor = self.conn, self._anchor
        self.conn = self._connect()
        self._suspect = False
        self._forget_connection()
        used.close()
        if anchor is not None:
            anchor.close()
        self.run_startup_recovery(deadline)

    # --- checkpoints and the end -----------------------------------------------------------------

    def checkpoint(self, action: Action, budget: float) -> None:
        self.env.failpoint("checkpoint.before")
        try:
            result = run_checkpoint(self.conn, action, self.env, budget)
            self.env.failpoint("checkpoint.after")
        except sqlite3.Error as error:
            self._fail_with(error)
            raise
        self.checkpoints.ran(action, result, self.env.monotonic(), self._wal_frames())
        if result.complete:
            self._unfolded = 0
        self.file_bytes = self.env.size(str(self.paths.db)) or self.file_bytes
        self._guard.checkpointed()

    def vacuum(self, deadline: float) -> None:
        """Rewrite the file without holes, by the rules of a commit (R2, R3).

        Raises what SQLite raises, after which the file is as it was, unless the writer is broken.
        """
        self.checkpoint(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
        try:
            retry_busy(
                lambda: self.conn.execute("VACUUM"), self.env, deadline, lambda: self.leave_by
            )
        except sqlite3.Error as error:
            self._fail_with(error)
            raise
        if not self._guard.intact():
            self._files_changed(None)
        self.checkpoints.wrote(
            limits.CHECKPOINT_EVERY_WRITES, self.env.monotonic(), self._wal_frames()
        )
        try:
            self.checkpoint(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
        except sqlite3.Error as error:
            # The rewritten content is committed; the next checkpoint moves it.
            _log.warning("the checkpoint after a vacuum of %s failed: %s", self.paths.db, error)

    def _wal_frames(self) -> int:
        return self.env.size(self._wal) // _FRAME_BYTES

    def copy_to(self, target: Path) -> None:
        """Copy everything that is committed to a new, private file."""
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            with contextlib.closing(sqlite3.connect(target)) as copy:
                self.conn.backup(copy)
        except OSError as error:
            raise cannot_use(self.paths.db, target, error) from error
        except sqlite3.Error as error:
            raise self.explain(error) from error

    def replace_content(
        self,
        source: sqlite3.Connection,
        deadline: float,
        expected: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Write every page of *source* into the file, as one transaction; the inode stays.

        *expected* is the only state that may be replaced; without it, any. A foreign lock is waited
        for until *deadline*, and no longer than *is_wanted* says so. Raises a typed error,
        after which the file is as it was, unless the writer is broken. Once it returns, the new
        content is durable; to fold it into the file is upkeep.
        """
        if self.broken is not None:
            raise self.stopped()
        self.run_startup_recovery(deadline)
        if not self._guard.intact():
            self._files_changed(None)
        self.roll_back()
        try:
            with contextlib.closing(self.env.connect_reader(self.paths.db)) as witness:
                seen = _data_version(witness)
                if expected and expected != self.state:
                    raise self._state_changed()

                def tell(status: int, _left: int, _total: int) -> None:
                    if status == sqlite3.SQLITE_OK:
                        # The write lock is ours by now, so what the witness sees is what goes.
                        if expected and _has_changed(witness, seen):
                            raise self._state_changed()
                    elif status != sqlite3.SQLITE_DONE:
                        # The deadline is that of a command, an hour: neither a drain waits for that
                        # nor is the content replaced then for a caller that is gone.
                        late = self.env.monotonic() >= min(deadline, self.leave_by)
                        if late or not is_wanted():
                            raise Busy(f"another program is writing {self.paths.db}")

                # Page by page, so that the witness is asked before the last one, which commits.
                # The first step locks the file until the end, and the source stays as it is.
                source.execute("BEGIN")
                source.execute("SELECT 1 FROM sqlite_master").fetchall()
                source.backup(self.conn, pages=1, progress=tell, sleep=limits.BUSY_RETRY_SECONDS)
        except sqlite3.Error as error:
            self._fail_with(error)
            raise self.explain(error) from error
        self.epoch = get_internal(self.conn, "epoch") or 0
        self._look_ahead()
        self._data_version = -1
        self._unfolded += 1
        self.conn.layout, self.conn.layout_checked = None, False
        self.faults.mended()
        self._on_epoch(self.epoch)
        self._note_frames(writes=1)

    def _state_changed(self) -> StateChanged:
        return StateChanged(
            f"{self.paths.db} has changed since it was copied: it is at change {self.commit_no}"
            f" now, and other programs have written it {self.foreign_commits} times"
        )

    def close(self) -> None:
        """Fold the WAL back as far as readers allow and close. A broken one stays open."""
        if self.broken is not None:
            return
        self.env.failpoint("close.before")
        try:
            self.look_at_files()
            if self.recovered and self._guard.intact():
                self.checkpoint(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
        except OutcomeUnknown:
            return
        except Exception as error:
            _log.warning("the last checkpoint of %s failed: %s", self.paths.db, error)
        self._close_connections()
        self.env.failpoint("close.after")

    def _close_connections(self) -> None:
        self.conn.close()
        if self._anchor is not None:
            # Last, and read-only: it can neither checkpoint nor unlink anything.
            self._anchor.close()
        _log.info("database closed by pid %d at %.6f", os.getpid(), self.env.monotonic())


def _data_version(conn: Connection) -> int:
    ((version,),) = conn.execute("PRAGMA data_version").fetchall()
    return int(version)


def _has_changed(witness: Connection, seen: int) -> bool:
    try:
        return _data_version(witness) != seen
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return False  # without a WAL the lock keeps readers out, too; the look before must do
        raise
