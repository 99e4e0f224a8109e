"""Opening the write connection: read first, change only what must change, never lower anything.

A file that is not a database, or is damaged, is recognised before a single byte is written. Its
:class:`~hermes_actor.engine.kinds.Kind` then brings it up to date. Start-up recovery (R1) follows,
before the first acknowledgement: see :mod:`hermes_actor.engine.startup.recovery`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hermes_actor import limits
from hermes_actor.engine.kinds import Kind, kind_of
from hermes_actor.engine.retry import is_busy, retry_busy
from hermes_actor.errors import (
    CannotOpen,
    DiskFull,
    DiskIOError,
    HermesActorError,
    from_sqlite,
    is_no_room,
)
from hermes_actor.journal_mode import apply_wal_with_fallback
from hermes_actor.sqlite import Connection, sqlite3
from hermes_actor.store.rows import scalar
from hermes_protocol.features import SESSIONS
from hermes_protocol.status import Phase, PhaseReport

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.paths import StorePaths

__all__ = ["OpenedDatabase", "Opening", "open_database"]

R = TypeVar("R")


class OpenedDatabase(NamedTuple):
    """The write connection of a file, and the kind of the file."""

    conn: Connection
    kind: Kind


def open_database(
    paths: StorePaths,
    env: Environment,
    on_phase: Callable[[PhaseReport], None] = lambda _phase: None,
    timeout: float = limits.OPEN_BUSY_SECONDS,
    kind: str = SESSIONS,
) -> OpenedDatabase:
    """Open the database for its owner and bring its schema up to date; *on_phase* gets progress.

    *kind* is that of a file that does not say its own. A foreign lock that is in the way is waited
    for, for *timeout* seconds. Raises a :class:`StorageError` that says what is wrong, or
    :class:`IncompatibleFormat`; the file is then as it was.
    """
    if paths.db.is_dir():
        words = "unable to open database file"
        raise CannotOpen(f"{words}: {paths.db} is a folder", sqlite_message=words)
    created = _create_file(paths)
    try:
        conn = env.connect_writer(paths.db)
    except sqlite3.Error as error:
        raise _explain(error, paths) from error
    try:
        opening = Opening(conn, paths, env, on_phase, env.monotonic() + timeout)
        return OpenedDatabase(conn, _prepare(opening, kind))
    except BaseException as error:
        conn.close()
        if created:
            _remove_failed(paths)
        if isinstance(error, sqlite3.Error) and not isinstance(error, HermesActorError):
            raise _explain(error, paths) from error
        raise


def _create_file(paths: StorePaths) -> bool:
    """Create the file with mode 0600 before SQLite does it with the umask's."""
    try:
        paths.db.parent.mkdir(parents=True, exist_ok=True)
        # O_EXCL: only a file that was created here is removed again if it cannot be filled (G15).
        # Closed before SQLite opens it: later, that would drop its locks (G6).
        os.close(os.open(paths.db, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except OSError as error:
        words = "unable to open database file"
        kind = DiskFull if is_no_room(error) else CannotOpen
        raise kind(f"{words}: {paths.db} ({error.strerror})", sqlite_message=words) from error
    # A new name is durable when its folder is: without this a power cut could take the whole file
    # with everything that was acknowledged.
    _sync_folder(paths)
    return True


def _sync_folder(paths: StorePaths) -> None:
    descriptor = os.open(paths.db.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_failed(paths: StorePaths) -> None:
    """Remove a file that was created here and could not be filled.

    It stays if another program has found the empty file and written to it.
    """
    if not paths.wal.exists() and paths.db.stat().st_size == 0:
        paths.db.unlink(missing_ok=True)


def _explain(error: sqlite3.Error, paths: StorePaths) -> HermesActorError:
    """Return the typed error. On a full disk, a side file that cannot grow is an I/O error."""
    explained = from_sqlite(error, paths.db)
    if isinstance(explained, DiskIOError):
        # Growing the shared memory fails with IOERR on a full disk. Reported as such, it would send
        # people to look for a broken disk.
        room = os.statvfs(paths.db.parent)
        if room.f_bavail == 0:
            return DiskFull(
                f"{explained.sqlite_message}: no room left for {paths.db}",
                sqlite_message=explained.sqlite_message,
            )
    return explained


class Opening(NamedTuple):
    """A file that is being opened: its connection, and waiting for foreign locks."""

    conn: Connection
    paths: StorePaths
    env: Environment
    on_phase: Callable[[PhaseReport], None]
    deadline: float

    def wait(self, call: Callable[[], R]) -> R:
        """Return the result of *call*, repeated until the deadline while a lock is in its way."""
        try:
            return call()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
        self.on_phase(PhaseReport(Phase.WAITING_FOR_LOCK))
        return retry_busy(call, self.env, self.deadline)

    def in_transaction(self, work: Callable[[Connection], None]) -> None:
        """Do *work* in one transaction, whole or not at all."""
        # Waited for before the work, which then meets no foreign lock half-way.
        self.wait(lambda: self.conn.execute("BEGIN IMMEDIATE"))
        try:
            work(self.conn)
            self.env.failpoint("migration.commit")
            self.conn.execute("COMMIT")
        except BaseException:
            if self.conn.in_transaction:
                self.conn.execute("ROLLBACK")
            raise

    def ensure_wal(self) -> None:
        """Set WAL mode, or settle for less where it cannot work."""
        _ensure_wal(self.conn, self.wait)


def _prepare(opening: Opening, asked: str) -> Kind:
    conn = opening.conn
    # The first read tells a database from anything else and replays a hot journal. It comes before
    # the journal mode, which writes: a file that is refused stays as it was.
    kind = opening.wait(lambda: kind_of(conn, asked, opening.paths.db))
    _configure(conn)
    for name, value in kind.settings.items():
        conn.execute(f"PRAGMA {name} = {value}")
    kind.prepare(opening)
    return kind


def _ensure_wal(conn: Connection, wait: Callable[[Callable[[], str]], str]) -> None:
    mode = scalar(conn, "PRAGMA journal_mode")
    if mode != "wal":
        mode = wait(lambda: apply_wal_with_fallback(conn))
    if mode != "wal":
        # Here a commit is the removal of a journal: it counts when the folder is synced, too.
        conn.execute("PRAGMA synchronous = EXTRA")


def _configure(conn: Connection) -> None:
    """Set the pragmas of the write connection."""
    for pragma in (
        # G1: NORMAL would acknowledge commits that a power cut takes back.
        "synchronous = FULL",
        # On macOS fsync() leaves data in the cache of the drive.
        "fullfsync = ON",
        "checkpoint_fullfsync = ON",
        # The engine decides: an automatic checkpoint would run inside a commit that clients await.
        "wal_autocheckpoint = 0",
        # Otherwise the WAL keeps the size of its largest burst for good.
        f"journal_size_limit = {limits.JOURNAL_SIZE_LIMIT_BYTES}",
        f"cache_size = -{limits.CACHE_KIB}",
        # Memory mapping turns a stray write of this process into a damaged file.
        "mmap_size = 0",
    ):
        conn.execute(f"PRAGMA {pragma}")
