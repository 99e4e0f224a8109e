"""The owner lock: a ``flock`` on a side file decides who owns a database.

Rules. (1) The lock is taken before the database is opened and given up after it is closed.
(2) The file is never unlinked: a second file would be a second lock. (3) A lock that may be handed
on is given up by closing it: LOCK_UN would free every copy, the successor's too. Only a lock that
never leaves its process is unlocked, see :meth:`OwnerLock.unlock`. (4) The content of the file
names the holder for people; the lock itself is the only truth.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from typing import TYPE_CHECKING

from hermes_actor._version import __version__
from hermes_actor.errors import cannot_use
from hermes_actor.paths import check_not_hijacked
from hermes_actor.system.lock_inspection import already_owned, read_owner

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["OwnerLock"]


class OwnerLock:
    """A held lock. Create it with :meth:`acquire`."""

    def __init__(self, descriptor: int, mode: str = "actor") -> None:
        self._descriptor = descriptor
        self._mode = mode

    @classmethod
    def acquire(cls, paths: StorePaths, mode: str = "actor") -> OwnerLock:
        """Take the lock at once or raise :class:`AlreadyOwned`, which names the holder.

        *mode* says what the holder is: ``actor``, ``embedded``, or ``command`` for one that works
        on a file without an actor.
        """
        descriptor = _open_lock_file(paths)
        try:
            # flock, not fcntl locks: it belongs to the open file description, so that it survives
            # a hand-off of the descriptor and is not dropped by closing another one.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = read_owner(descriptor)
            os.close(descriptor)
            raise already_owned(paths, owner) from None
        lock = cls(descriptor, mode)
        lock.describe(0)
        return lock

    @classmethod
    def adopt(cls, descriptor: int) -> OwnerLock:
        """Return the lock behind a *descriptor* that the previous holder has handed on."""
        return cls(descriptor)

    def fileno(self) -> int:
        """Return the descriptor, to be passed on; -1 after the release."""
        return self._descriptor

    def describe(self, epoch: int) -> None:
        """Write who holds the lock, for people and for :class:`AlreadyOwned`."""
        owner = {"pid": os.getpid(), "started": time.time(), "build": __version__}
        text = json.dumps({**owner, "epoch": epoch, "mode": self._mode}).encode()
        # A full disk must not cost the ownership: the content is only information.
        with contextlib.suppress(OSError):
            # In place, never by a new file with a rename: that would be a second lock (rule 2).
            os.pwrite(self._descriptor, text.ljust(128), 0)
            os.ftruncate(self._descriptor, max(len(text), 128))

    def unlock(self) -> None:
        """Give the lock up for all copies of it, those of forked children included.

        A child may live on without having closed its copy, which would keep the lock. Never for
        a lock that was handed on, or will be.
        """
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.release()

    def release(self) -> None:
        """Give the lock up by closing it. Calling it again is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _open_lock_file(paths: StorePaths) -> int:
    check_not_hijacked(paths)
    try:
        paths.folder.mkdir(mode=0o700, exist_ok=True)
        # O_NOFOLLOW: the name of the holder must not be written to where a link leads (G15).
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(paths.owner_lock, flags, 0o600)
    except OSError as error:
        raise cannot_use(paths.db, paths.folder, error) from error
