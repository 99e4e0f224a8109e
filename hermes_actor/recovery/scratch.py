"""Temporary stores that a command prepares in the side folder.

A command that is killed leaves its file behind, which may be as large as the store. Each command
holds a shared ``flock`` on the folder while it works, so files may be removed when no lock is held.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_actor.errors import cannot_use
from hermes_actor.recovery.backup import stamp

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["remove_leftovers", "remove_store", "scratch"]

_PREFIX = "restore-"


@contextlib.contextmanager
def scratch(paths: StorePaths) -> Iterator[Path]:
    """Give an unused path in the side folder for the block, and remove the store there after it.

    Raises :class:`CannotOpen` or :class:`ReadOnly` if the folder cannot be used.
    """
    try:
        paths.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_leftovers(paths)
        held = _open_folder(paths)
    except OSError as error:
        raise cannot_use(paths.db, paths.folder, error) from error
    path = paths.folder / f"{_PREFIX}{stamp()}-{os.getpid()}.db"
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        yield path
    finally:
        remove_store(path)
        os.close(held)


def remove_leftovers(paths: StorePaths) -> None:
    """Remove files that killed commands left behind, unless a command is at work now."""
    with contextlib.suppress(OSError):
        held = _open_folder(paths)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in paths.folder.glob(f"{_PREFIX}*"):
                left.unlink(missing_ok=True)
        finally:
            os.close(held)


def remove_store(db: Path) -> None:
    """Remove a database that no process uses, with its journal files."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        db.with_name(db.name + suffix).unlink(missing_ok=True)


def _open_folder(paths: StorePaths) -> int:
    return os.open(paths.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
