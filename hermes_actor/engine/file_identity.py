"""R3, the file identity guard: the files that are written are the files that readers open.

Before anything is acknowledged, database, WAL, shared memory and owner lock must be the very files
that were there at the start. If one is not, another program has replaced or unlinked it, and a
commit went into a file that no reader will open. And the database must hold what SQLite has put
there: a program that copies other bytes over it keeps its inode, and what the writer has in memory
would damage them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment, Look
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
        self._moved: _Moves | None = None
        self._shared_memory: int | None = None
        self._seen: tuple[object, _Moves] | None = None
        self.wal_bytes = 0
        """Length of the WAL when the files were found intact."""

    def remember(self) -> None:
        """Take the present files as the right ones, after recovery, when all of them exist."""
        self._known = self._identities()
        # Kept: a search for each commit would cost more than the commit.
        self._shared_memory = descriptor_of(self._known[2])
        self._seen = None

    def _looks(self) -> list[Look | None]:
        return list(map(self._env.look, self._watched))

    def _identities(self) -> tuple[object, ...]:
        return tuple(look and look.identity for look in self._looks())

    def intact(self) -> bool:
        """Return True if no file was replaced. Opens nothing: closing it would drop locks (G6)."""
        if self._known is None:
            # Before recovery there is nothing to compare: WAL and shared memory may not exist yet.
            return True
        # In this order: a move of pages that begins after the look at the database is not in it.
        moves, looks = self._moves(), self._looks()
        db, wal, *_ = looks
        self.wal_bytes = 0 if wal is None else wal.stamp[0]
        return tuple(look and look.identity for look in looks) == self._known and not (
            self._shows_overwriting(moves, db and db.stamp)
            # Twice: a WAL that begins again between the two numbers shows the same for a moment.
            or (_is_counted_late(moves) and _is_counted_late(self._moves()))
        )

    def is_overwritten(self) -> bool:
        """Return True if another program has written the database in place, without SQLite.

        SQLite writes it to move pages from the WAL, and says so in the shared memory before the
        first one and after the last. A database that changes without that was written by something
        else.
        """
        moves = self._moves()
        return self._shows_overwriting(moves, _stamp(self._watched[0]))

    def _shows_overwriting(self, moves: _Moves | None, stamp: object) -> bool:
        if moves is None or moves.attempted != moves.done:
            return False  # unknown, or a checkpoint of another program is at work
        if self._seen is not None and moves == self._seen[1] and stamp != self._seen[0]:
            # Once more: one may have begun between the two looks.
            return self._moves() == moves
        self._seen = stamp, moves
        return False

    def _moves(self) -> _Moves | None:
        with contextlib.suppress(OSError):
            if self._shared_memory is not None:
                # Of the descriptor that SQLite has open: to open and close the file is no way (G6).
                index = os.pread(self._shared_memory, _INDEX_HEADER_BYTES, 0)
                return _Moves(index[32:40], index[128:132], index[96:100])
        return None

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
        found = self._env.look(shm)
        here = found and found.identity
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
        if known is None or db is None or (wal, shm) != known[1:3]:
            return
        if db != known[0] or self.is_overwritten():
            os.unlink(self._watched[1])
            os.unlink(self._watched[2])

    def checkpointed(self) -> None:
        """Remember how a checkpoint of the writer has left the database."""
        self._after_checkpoint = _stamp(self._watched[0])
        moves = self._moves()
        self._seen = moves and (self._after_checkpoint, moves)
        self._moved = moves

    def unchanged_since_checkpoint(self) -> bool:
        """Return True if only the WAL is missing and no other program has written the database."""
        db, _, _, lock = self._identities()
        return (
            self._known is not None
            and (db, lock) == (self._known[0], self._known[3])
            # A program that opens a database without a WAL creates an empty one; so do readers.
            and self._env.size(self._watched[1]) == 0
            and self._after_checkpoint is not None
            and _stamp(self._watched[0]) == self._after_checkpoint
            and self._only_own_moves()
        )

    def _only_own_moves(self) -> bool:
        """Return True if no other program says that it has moved frames of the WAL.

        One that closes the file takes it for its own, without locks in the shared memory, if the
        locks of this process are lost. It may then count the frames of a WAL that has begun again
        since, and a checkpoint would skip as many of the new ones.
        """
        moved, now = self._moved, self._moves()
        if moved is None or now is None or now.done == bytes(4):
            return True
        return (now.salt, now.done) == (moved.salt, moved.done)

    @contextlib.contextmanager
    def keep(self, identity: object) -> Iterator[None]:
        """Keep an unlinked WAL for the time of a block, though SQLite closes it."""
        source = descriptor_of(identity)
        # SQLite locks no bytes of a WAL, so there are none that closing this could drop (G6).
        kept = None if source is None else os.dup(source)
        try:
            yield
        finally:
            if kept is not None:
                os.close(kept)


_INDEX_HEADER_BYTES = 136


class _Moves(NamedTuple):
    """Facts about checkpoints in the shared memory of a WAL."""

    salt: bytes
    """Another one each time the WAL begins again."""
    attempted: bytes
    """The last frame that a checkpoint was going to move."""
    done: bytes
    """The last frame that was moved."""


def _is_counted_late(moves: _Moves | None) -> bool:
    """Return True if frames count as moved that no checkpoint of this WAL was going to move.

    A checkpoint notes how far it goes before it moves the first frame, and both numbers begin at 0
    with the WAL. So the count came from a program that saw no lock of this process, and that was
    still moving frames of what the WAL held before. The next checkpoint would skip as many new
    ones, and its own notes would hide that.
    """
    if moves is None:
        return False
    attempted, done = (int.from_bytes(one, sys.byteorder) for one in (moves.attempted, moves.done))
    return attempted < done


def _stamp(path: str) -> tuple[int, int] | None:
    """Size and time of the last change, or ``None``: identity does not show a write in place."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    return None


def descriptor_of(identity: object) -> int | None:
    """Return a descriptor of this process for the file *identity*."""
    # By search: SQLite does not give out its descriptors, and to open the file again is no way:
    # closing it would drop SQLite's locks (G6).
    return next((int(name) for name in _descriptors() if _is(name, identity)), None)


def _descriptors() -> list[str]:
    for folder in ("/proc/self/fd", "/dev/fd"):  # macOS has the second
        with contextlib.suppress(OSError):
            return os.listdir(folder)
    return []


def _leads_to(descriptor: str, path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}") == path
    return False


def _is(descriptor: str, wanted: object) -> bool:
    with contextlib.suppress(OSError):
        status = os.fstat(int(descriptor))
        return (status.st_dev, status.st_ino) == wanted
    return False
