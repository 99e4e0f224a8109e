"""Backups of a store in use: complete, verified, and without blocking writers.

The copy is made by a read-only connection inside one snapshot. Without the snapshot SQLite restarts
the copy after every commit, so a paced copy of a busy store would never end.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hermes_actor.errors import Damaged, HermesActorError, NotADatabase, cannot_use, from_sqlite
from hermes_actor.sqlite import Connection, connect_alone, connect_reader, sqlite3
from hermes_actor.system.fork import inside, outside

__all__ = [
    "EXPORT_SUFFIX", "backup_path", "create_backup", "list_backups", "prune_backups", "stamp",
    "verify",
]  # fmt: skip

_PAGES = 512
"""Copied between two pauses: 2 MiB."""

_PAUSE_SECONDS = 0.002
"""A pause leaves the disk to writers; it makes the copy of a large store a few percent slower."""

_SUFFIX = ".backup.db"

EXPORT_SUFFIX = ".backup.jsonl"
"""End of the name of a backup of a store on a server, which is an export."""


def backup_path(db: Path, now: datetime | None = None, *, suffix: str = _SUFFIX) -> Path:
    """Return the path of the next backup of *db*: in ``backups`` beside it, sorted by time.

    The time is UTC: the end of daylight saving time must not change the order.
    """
    return db.parent / "backups" / f"{db.stem}-{stamp(now)}{suffix}"


def stamp(now: datetime | None = None) -> str:
    """Return the time as a part of a file name, in microseconds so that names are unique."""
    return (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S-%f")


def create_backup(
    db: Path,
    target: Path,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    *,
    damaged: bool = False,
) -> None:
    """Copy *db* to *target*, which appears once it is complete, verified and fsynced.

    *progress* gets the pages that are copied, and their total. With *damaged* the copy is kept as
    evidence and not verified. Raises a :class:`StorageError`, :class:`NotADatabase` for an empty
    file, or :class:`Damaged`; no partial file is left behind.
    """
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        _copy(db, part, progress)
        if not damaged:
            verify(part)
        _sync(part)
        part.replace(target)
        _sync(target.parent)
    except HermesActorError:
        raise
    except OSError as error:
        raise cannot_use(db, target, error) from error
    except sqlite3.Error as error:
        raise from_sqlite(error, db) from error
    finally:
        for leftover in (part, part.with_name(f"{part.name}-journal")):
            with contextlib.suppress(OSError):
                leftover.unlink(missing_ok=True)


def _copy(db: Path, part: Path, progress: Callable[[int, int], None]) -> None:
    def on_step(left: int, total: int) -> None:
        progress(total - left, total)
        time.sleep(_PAUSE_SECONDS)

    with (
        contextlib.closing(connect_reader(db)) as source,
        contextlib.closing(connect_alone(part)) as copy,
    ):
        if not inside(_copy_pages, source, copy, on_step):
            # An empty backup would count as one when older ones are pruned.
            words = "file is not a database"
            raise NotADatabase(
                f"{words}: {db} is empty, there is nothing to copy", sqlite_message=words
            )


def _copy_pages(source: Connection, copy: Connection, on_step: Callable[[int, int], None]) -> bool:
    """Copy all pages; return False if there are none."""
    source.execute("BEGIN")
    source.execute("SELECT 1 FROM sqlite_master").fetchone()
    if source.execute("PRAGMA page_count").fetchall() == [(0,)]:
        return False
    source.backup(
        copy, pages=_PAGES, progress=lambda _status, left, total: outside(on_step, left, total)
    )
    # A backup is one file, without a WAL beside it.
    copy.execute("PRAGMA journal_mode = DELETE")
    return True


def verify(copy: Path) -> None:
    """Run SQLite's quick check on *copy*. Raises :class:`Damaged` if it finds anything."""
    with contextlib.closing(connect_reader(copy)) as conn:
        found = inside(_findings, conn, "quick_check")
        if found != ["ok"]:
            # Not believed alone: SQLite 3.40 finds NULLs in every row of a WITHOUT ROWID table
            # whose key names its columns in another order.
            found = inside(_findings, conn, "integrity_check")
    if found != ["ok"]:
        raise Damaged(f"the copy {copy} is damaged: {'; '.join(found)}")


def _findings(conn: Connection, pragma: str) -> list[str]:
    return [text for (text,) in conn.execute(f"PRAGMA {pragma}(3)")]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def list_backups(db: Path, *, suffix: str = _SUFFIX) -> list[Path]:
    """Return the backups of *db* in ``backups`` beside it, oldest first."""
    # Only names that backup_path() gives: there may be state-2.db, and files of the user.
    name = re.compile(rf"{re.escape(db.stem)}-\d{{8}}-\d{{6}}-\d{{6}}{re.escape(suffix)}")
    found = db.parent.joinpath("backups").glob(f"*{suffix}")
    return sorted(copy for copy in found if name.fullmatch(copy.name))


def prune_backups(db: Path, keep: int, *, suffix: str = _SUFFIX) -> list[Path]:
    """Remove all but the newest *keep* backups of *db*, and return the removed ones."""
    copies = list_backups(db, suffix=suffix)
    gone = copies[: max(0, len(copies) - keep)]
    for copy in gone:
        copy.unlink(missing_ok=True)
    return gone
