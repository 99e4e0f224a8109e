"""What an owner saves when its files are removed or replaced under it: the database, or its WAL.

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
    from hermes_actor.paths import StorePaths

__all__ = ["put_back_wal", "save_database", "save_wal"]

_log = logging.getLogger("hermes_actor.engine")

_HEADER_BYTES = 32
"""A WAL that is not longer holds no change."""


def save_database(paths: StorePaths, epoch: int, db: object, wal: object) -> Path | None:
    """Save a database that is not in its place any more, with all of its WAL, as one file.

    Beside the place, or among the rescued stores if the whole folder is gone. ``None`` if that
    cannot be, or what was saved is not whole.
    """
    sources = {"": descriptor_of(db), "-wal": descriptor_of(wal)}
    found = {suffix: source for suffix, source in sources.items() if source is not None}
    if "" not in found:
        return None
    target: Path | None = None
    try:
        size = sum(os.fstat(source).st_size for source in found.values())
        if not is_gone(paths.db.parent):
            room = os.statvfs(paths.db.parent)
            if room.f_bavail * room.f_frsize < 2 * size:
                raise OSError(f"no room for a copy of {size} bytes")
            target = _new_file(paths, "orphan-db", epoch)
        elif should_rescue(paths, size):
            target = rescue_path(paths)
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        else:
            return None
        for suffix, source in found.items():
            _copy(source, target.with_name(target.name + suffix))
        with contextlib.closing(connect_alone(target)) as conn:
            conn.execute("PRAGMA journal_mode = DELETE").fetchall()  # which folds the WAL
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
    """Save a WAL beside its database, for ``repair --orphans``; ``None`` if there is nothing in it,
    or it cannot be saved."""
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
    # A log without it can still be read, if the next file has the same order of columns.
    with contextlib.suppress(OSError):
        told = columns_of_orphan(target)
        told.touch(0o600)
        told.write_text(json.dumps(columns), "utf-8")
    return target


def put_back_wal(saved: Path, paths: StorePaths) -> Path:
    """Give a saved WAL its own name again, by which the next program finds it."""
    os.replace(saved, paths.wal)
    columns_of_orphan(saved).unlink(missing_ok=True)
    return paths.wal


def _copy(source: int, target: Path) -> None:
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
        offset = 0
        while data := os.pread(source, 1 << 20, offset):
            file.write(data)
            offset += len(data)
        file.flush()
        os.fsync(file.fileno())


def _new_file(paths: StorePaths, kind: str, epoch: int) -> Path:
    """A private file that was not there. An older copy of a store has its epochs once more."""
    for ending in ("", *(f".{n}" for n in range(2, 1000))):
        target = paths.db.with_name(f"{paths.db.name}.{kind}.{epoch}{ending}")
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(target, flags, 0o600))
            return target
    raise FileExistsError(f"{target} and all before it")
