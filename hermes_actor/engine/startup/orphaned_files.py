"""Orphaned files: an owner saves its database or WAL when they are removed or replaced.

Everything is read through the descriptors that SQLite has: opening and closing a file again could
drop locks, and the paths may lead elsewhere by now.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_actor.engine.file_identity import descriptor_of
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import columns_of_orphan, is_gone
from hermes_actor.recovery.backup import verify
from hermes_actor.recovery.rescue import rescue_path, should_rescue
from hermes_actor.recovery.scratch import remove_store
from hermes_actor.sqlite import connect_alone, sqlite3

if TYPE_CHECKING:
    from hermes_actor.engine.file_identity import FileIdentityGuard
    from hermes_actor.paths import StorePaths
    from hermes_actor.sqlite import Connection

__all__ = ["columns_of_rows", "describe_wal", "save_orphans", "save_wal"]

_log = logging.getLogger("hermes_actor.engine")

_HEADER_BYTES = 32
"""A WAL that is not longer holds no change."""


def save_orphans(
    guard: FileIdentityGuard,
    paths: StorePaths,
    conn: Connection,
    epoch: int,
    changes_in_wal: int,
    *,
    rescues: bool,
    wal_fits: bool,
) -> str:
    """Save what only the unlinked files hold; returns what happened and where it is, for people.

    *changes_in_wal*: acknowledged changes that are not in the database. *rescues*: the whole
    database may be saved. *wal_fits*: the database in its place is the one that the WAL belongs to.
    """
    # Asked first: to save something may change what shows it.
    overwritten = guard.is_overwritten()
    # The whole first: database and WAL together are a store, a WAL alone is rows to be salvaged.
    if rescues and guard.has_lost_database():
        saved = _save_database(paths, epoch, guard.db, guard.wal)
        if saved is not None:
            return f"was removed or replaced while its owner had it open; all it held is in {saved}"
    saved = save_wal(paths, epoch, guard.wal, columns_of_rows(conn))
    if wal_fits and saved is not None and guard.has_its_shared_memory():
        # By now a part of it is in the database, which without the rest would be damaged.
        with contextlib.suppress(OSError):
            saved = _put_back_wal(saved, paths)
    if overwritten:
        where = _where(saved, changes_in_wal)
        return f"was overwritten in place while its owner had it open; {where}"
    return describe_wal(saved, changes_in_wal)


def describe_wal(saved: Path | None, changes_in_wal: int) -> str:
    """Say for people that a WAL was replaced, and in which file *changes_in_wal* changes are."""
    where = _where(saved, changes_in_wal)
    return f"or its WAL was replaced while its owner had it open; {where}"


def _where(saved: Path | None, changes_in_wal: int) -> str:
    if saved is None and not changes_in_wal:
        return "no acknowledged change was in its WAL only"
    return f"{changes_in_wal} acknowledged changes are in {saved or 'no file: none was saved'}"


def columns_of_rows(conn: Connection) -> dict[str, list[str]]:
    """Return the order of columns, which differs between files; rows of a WAL are read by it."""
    with contextlib.suppress(sqlite3.Error):
        return {
            table: [row[1] for row in conn.execute(f"PRAGMA table_info({table})")]
            for table in ("sessions", "messages")
        }
    return {}


def _save_database(paths: StorePaths, epoch: int, db: object, wal: object) -> Path | None:
    """Save a database that has lost its path, with all of its WAL, as one file.

    Returns its path: beside the old one, or among the rescued stores if the whole folder is gone.
    ``None`` if that is impossible, or what was saved is not whole.
    """
    sources = {"": descriptor_of(db), "-wal": descriptor_of(wal)}
    open_files = {suffix: source for suffix, source in sources.items() if source is not None}
    if "" not in open_files:
        return None
    target: Path | None = None
    try:
        size = sum(os.fstat(source).st_size for source in open_files.values())
        if not is_gone(paths.db.parent):
            room = os.statvfs(paths.db.parent)
            if room.f_bavail * room.f_frsize < 2 * size:
                # Twice: the WAL is moved into the copy, which may grow by its size.
                raise OSError(f"no room for a copy of {size} bytes in {paths.db.parent}")
            target = _new_file(paths, "orphan-db", epoch)
        elif should_rescue(paths, size):
            target = rescue_path(paths)
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        else:
            return None
        for suffix, source in open_files.items():
            _copy(source, target.with_name(target.name + suffix))
        with contextlib.closing(connect_alone(target)) as conn:
            # Leaving WAL mode checkpoints the copy: one file is harder to lose than two.
            conn.execute("PRAGMA journal_mode = DELETE").fetchall()
        # Before the path is reported: people will rely on it.
        verify(target)
    except (OSError, sqlite3.Error, HermesActorError) as error:
        _log.error("the removed database of %s could not be saved: %r", paths.db, error)
        if target is not None:
            with contextlib.suppress(OSError):
                remove_store(target)
        return None
    return target


def save_wal(
    paths: StorePaths, epoch: int, wal: object, columns: dict[str, list[str]]
) -> Path | None:
    """Save the WAL with the identity *wal* beside its database, for ``repair --orphans``.

    *columns* are those of :func:`columns_of_rows`. Returns its path; ``None`` if it holds nothing,
    or cannot be saved.
    """
    source = descriptor_of(wal)
    if source is None or is_gone(paths.db.parent):
        return None
    target: Path | None = None
    try:
        if os.fstat(source).st_size <= _HEADER_BYTES:
            return None
        target = _new_file(paths, "orphan-wal", epoch)
        _copy(source, target)
    except OSError as error:
        _log.error("the orphaned WAL of %s could not be saved whole: %r", paths.db, error)
        if target is not None:
            with contextlib.suppress(OSError):
                target.unlink()
        return None
    # A WAL without it can still be read, if the next file has the same order of columns.
    with contextlib.suppress(OSError):
        columns_file = columns_of_orphan(target)
        columns_file.touch(0o600)
        columns_file.write_text(json.dumps(columns), "utf-8")
    return target


def _put_back_wal(saved: Path, paths: StorePaths) -> Path:
    """Rename a saved WAL to its own name, by which the next program finds it."""
    os.replace(saved, paths.wal)
    columns_of_orphan(saved).unlink(missing_ok=True)
    return paths.wal


def _copy(source: int, target: Path) -> None:
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
        offset = 0
        # By pread, which leaves the offset of the descriptor alone: it is SQLite's.
        while data := os.pread(source, 1 << 20, offset):
            file.write(data)
            offset += len(data)
        file.flush()
        # The files that it was copied from are gone when this process ends.
        os.fsync(file.fileno())


def _new_file(paths: StorePaths, kind: str, epoch: int) -> Path:
    """Create a private file under a free name: a restored copy has earlier epochs once more."""
    # Never over a file that is there: it may hold the changes of another accident (G15).
    for ending in ("", *(f".{n}" for n in range(2, 1000))):
        target = paths.db.with_name(f"{paths.db.name}.{kind}.{epoch}{ending}")
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(target, flags, 0o600))
            return target
    raise FileExistsError(f"{target} and all names before it")
