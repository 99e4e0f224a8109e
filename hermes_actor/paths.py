"""Where things lie: the home, the database, and the side files that belong to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Place", "address_of", "default_db_path", "default_home", "place_of"]


def default_home() -> Path:
    """``HERMES_HOME`` if it is set and not blank, else ``~/.hermes``."""
    home = os.environ.get("HERMES_HOME", "").strip()
    return Path(home) if home else Path.home() / ".hermes"


def default_db_path() -> Path:
    """The database that every process of one agent shares."""
    return default_home() / "state.db"


class Place(NamedTuple):
    """A database file and the folder of side files that derives from its resolved path.

    Two spellings of one path meet at one place; two files in one folder have two.
    """

    db: Path

    @property
    def wal(self) -> Path:
        return self.db.with_name(self.db.name + "-wal")

    @property
    def shm(self) -> Path:
        return self.db.with_name(self.db.name + "-shm")

    @property
    def folder(self) -> Path:
        """Mode 0700, created by the first owner."""
        return self.db.with_name(f".{self.db.name}.actor")

    @property
    def owner_lock(self) -> Path:
        """Whoever holds its ``flock`` owns the database. Never unlinked."""
        return self.folder / "owner.lock"

    @property
    def sock(self) -> Path:
        return self.folder / "sock"

    @property
    def start_lock(self) -> Path:
        """Held by the one client that is starting an actor."""
        return self.folder / "start.lock"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def fsync_failed(self) -> Path:
        """Left behind by an owner that saw an fsync fail; the next one then opens with care."""
        return self.folder / "fsync-failed"


def place_of(db_path: Path) -> Place:
    """The place of *db_path* with every symbolic link resolved."""
    return Place(db_path.resolve())


_MAX_PATH_BYTES = 100
"""The kernel allows a few more; macOS has 104."""


@contextlib.contextmanager
def address_of(place: Place) -> Iterator[str]:
    """An address for ``bind`` or ``connect`` that is valid inside the block."""
    path = str(place.sock)
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield path
        return
    folder = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/sock"
    finally:
        os.close(folder)
