"""R3, the file identity guard: the files that are written are the files that readers open.

Before anything is acknowledged, database, WAL, shared memory and owner lock must be the very files
that were there at the start. If one is not, another program has replaced or unlinked it, and a
commit went into a file that no reader will open.
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
    """Remembers device and inode of the files that the writer opened."""

    def __init__(self, paths: StorePaths, env: Environment) -> None:
        self._paths = paths
        self._env = env
        # Strings: converting a Path for every commit costs more than the stat itself.
        self._watched = tuple(map(str, (paths.db, paths.wal, paths.shm, paths.owner_lock)))
        self._known: tuple[object, ...] | None = None
        self._after_checkpoint: object = None

    def remember(self) -> None:
        """Take the present files as the right ones, after recovery, when all of them exist."""
        self._known = self._identities()

    def _identities(self) -> tuple[object, ...]:
        return tuple(map(self._env.identity, self._watched))

    def intact(self) -> bool:
        """Return True if no file was replaced. Opens nothing: closing it would drop locks (G6)."""
        # Before recovery there is nothing to compare: WAL and shared memory may not exist yet.
        return self._known is None or self._identities() == self._known

    @property
    def db(self) -> object:
        """Identity of the database that was opened, wherever it may be by now."""
        return self._known and self._known[0]

    @property
    def wal(self) -> object:
        """Identity of the WAL that was opened, wherever it may be by now."""
        return self._known and self._known[1]

    def has_lost_database(self) -> bool:
        """Return True if another file, or none, has the path of the database."""
        return self._known is not None and self._identities()[0] != self._known[0]

    def has_its_shared_memory(self) -> bool:
        """Return True if the shared memory that describes the WAL still has its path."""
        return self._known is not None and self._identities()[2] == self._known[2]

    def shm_unlinked(self) -> bool:
        """Return True if this process still has an unlinked shared memory open.

        SQLite gives all connections of a process to one database the same shared memory. While a
        reader in this process keeps the unlinked one, a new connection would write the WAL by it,
        and every other program by another: neither would see the locks or frames of the other.
        """
        shm = self._watched[2]
        here = self._env.identity(shm)
        if here is not None and any(_is(name, here) for name in _descriptors()):
            return False  # the one in its place is open; an unlinked one is of another file
        removed = f"{os.path.realpath(shm)} (deleted)"
        known = self._known and self._known[2]
        if known == here:
            known = None  # it has its path
        return any(
            _leads_to(name, removed) or (known is not None and _is(name, known))
            for name in _descriptors()
        )

    def unlink_stale_wal(self) -> None:
        """Unlink WAL and shared memory if they lie beside a database that they do not belong to.

        A program that opened the two together would put the old pages into the new database.
        """
        db, wal, shm, _ = self._identities()
        known = self._known
        # Only the very files that were opened here: a WAL that the new database has by now is its
        # own, and stays (G15).
        if known is not None and db not in (None, known[0]) and (wal, shm) == known[1:3]:
            os.unlink(self._watched[1])
            os.unlink(self._watched[2])

    def checkpointed(self) -> None:
        """Remember how a checkpoint of the writer has left the database."""
        self._after_checkpoint = self._fingerprint()

    def unchanged_since_checkpoint(self) -> bool:
        """Return True if only the WAL is missing and no other program has written the database."""
        db, _, _, lock = self._identities()
        return (
            self._known is not None
            and (db, lock) == (self._known[0], self._known[3])
            # A program that opens a database without a WAL creates an empty one; so do readers.
            and self._env.size(self._watched[1]) == 0
            and self._after_checkpoint is not None
            and self._fingerprint() == self._after_checkpoint
        )

    def _fingerprint(self) -> object:
        with contextlib.suppress(OSError):
            # Size and time as well: a program that writes in place keeps device and inode.
            status = os.stat(self._paths.db)
            return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        return None


def descriptor_of(identity: object) -> int | None:
    """Return a descriptor of this process for the file *identity*, where ``/proc`` shows it."""
    # By search: SQLite does not give out its descriptors, and to open the file again is no way:
    # closing it would drop SQLite's locks (G6).
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
        status = os.stat(f"/proc/self/fd/{descriptor}")
        return (status.st_dev, status.st_ino) == wanted
    return False
