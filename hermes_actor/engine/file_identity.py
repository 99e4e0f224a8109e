"""R3, the inode guard: is the file that we write still the file that everybody sees?

Before anything is acknowledged, database, WAL, shared memory and our lock file must be the very
files that were there when we opened. If one is not, somebody has replaced or removed it under us,
and a commit went where nobody will look.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.paths import StorePaths

__all__ = ["FileIdentityGuard", "descriptor_of"]


class FileIdentityGuard:
    """Remembers what was there when the writer opened."""

    def __init__(self, paths: StorePaths, env: Environment) -> None:
        self._paths = paths
        self._env = env
        # Texts, because making a path anew for every commit costs more than looking at it.
        self._watched = tuple(map(str, (paths.db, paths.wal, paths.shm, paths.owner_lock)))
        self._known: tuple[object, ...] | None = None
        self._after_checkpoint: object = None

    def remember(self) -> None:
        """Take what is there now as ours. Called after the barrier, when all files exist."""
        self._known = self._look()

    def _look(self) -> tuple[object, ...]:
        return tuple(map(self._env.identity, self._watched))

    def intact(self) -> bool:
        return self._known is None or self._look() == self._known

    @property
    def db(self) -> object:
        """The identity of our database, wherever it may be by now."""
        return self._known and self._known[0]

    @property
    def wal(self) -> object:
        """The identity of our WAL, wherever it may be by now."""
        return self._known and self._known[1]

    def has_lost_database(self) -> bool:
        """Whether our database is not in its place any more."""
        return self._known is not None and self._look()[0] != self._known[0]

    def has_its_shared_memory(self) -> bool:
        """Whether the shared memory that describes our WAL is still in its place."""
        return self._known is not None and self._look()[2] == self._known[2]

    def shm_unlinked(self) -> bool:
        """Whether this process still has open a shared memory that is not in its place any more.

        SQLite gives all connections of a process to one database the same shared memory. While a
        reader of ours keeps the removed one, a new connection would write the WAL by it, and every
        other program by another: neither would see the locks or the frames of the other.
        """
        shm = self._watched[2]
        here = self._env.identity(shm)
        if here is not None and any(_is(name, here) for name in _descriptors()):
            return False  # ours is the right one; the removed one is of another file
        removed = f"{os.path.realpath(shm)} (deleted)"
        known = self._known and self._known[2]
        if known == here:
            known = None  # it is where it belongs
        return any(
            _leads_to(name, removed) or (known is not None and _is(name, known))
            for name in _descriptors()
        )

    def remove_stale(self) -> None:
        """Another database is in the place of ours, and our WAL still lies beside it.

        Whoever opened the two together would put our pages into somebody else's file.
        """
        db, wal, shm, _ = self._look()
        known = self._known
        if known is not None and db not in (None, known[0]) and (wal, shm) == known[1:3]:
            os.unlink(self._watched[1])
            os.unlink(self._watched[2])

    def checkpointed(self) -> None:
        """Remember how our own checkpoint has left the database."""
        self._after_checkpoint = self._fingerprint()

    def nobody_wrote(self) -> bool:
        """Only the WAL is missing, and the database is as our last checkpoint left it."""
        db, _, _, lock = self._look()
        return (
            self._known is not None
            and (db, lock) == (self._known[0], self._known[3])
            # Whoever opens a database without a WAL makes an empty one: readers of ours, too.
            and self._env.size(self._watched[1]) == 0
            and self._after_checkpoint is not None
            and self._fingerprint() == self._after_checkpoint
        )

    def _fingerprint(self) -> object:
        with contextlib.suppress(OSError):
            found = os.stat(self._paths.db)
            return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
        return None


def descriptor_of(identity: object) -> int | None:
    """A descriptor of this process that leads to the file *identity*; where the system tells."""
    return next((int(name) for name in _descriptors() if _is(name, identity)), None)


def _descriptors() -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir("/proc/self/fd")
    return []


def _leads_to(descriptor: str, path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}") == path
    return False


def _is(descriptor: str, wanted: object) -> bool:
    with contextlib.suppress(OSError):
        found = os.stat(f"/proc/self/fd/{descriptor}")
        return (found.st_dev, found.st_ino) == wanted
    return False
