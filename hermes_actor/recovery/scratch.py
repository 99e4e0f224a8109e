"""Stores that a command prepares among the side files, and what is left of those given up.

A command that is killed leaves its file behind, which may be as large as the store. Each holds a
shared ``flock`` on the folder while it works, so what lies there while nobody holds it may go.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hermes_actor.errors import cannot_use
from hermes_actor.recovery.backup import stamp

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.paths import Place

__all__ = ["remove_leftovers", "remove_store", "scratch"]

_PREFIX = "restore-"


@contextlib.contextmanager
def scratch(place: Place) -> Iterator[Path]:
    """A new name in the folder of the side files; what is there at the end of the block goes."""
    try:
        place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_leftovers(place)
        held = _open_folder(place)
    except OSError as error:
        raise cannot_use(place.db, place.folder, error) from error
    path = place.folder / f"{_PREFIX}{stamp()}-{os.getpid()}.db"
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        yield path
    finally:
        remove_store(path)
        os.close(held)


def remove_leftovers(place: Place) -> None:
    """Remove what commands that were killed have left, unless one is at work now."""
    with contextlib.suppress(OSError):
        held = _open_folder(place)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in place.folder.glob(f"{_PREFIX}*"):
                left.unlink(missing_ok=True)
        finally:
            os.close(held)


def remove_store(db: Path) -> None:
    """Remove a database that nobody uses, with its side files."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        db.with_name(db.name + suffix).unlink(missing_ok=True)


def _open_folder(place: Place) -> int:
    return os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
