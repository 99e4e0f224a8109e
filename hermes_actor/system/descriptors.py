"""Open files of this process: waiting for them, and opening private ones."""

from __future__ import annotations

import errno
import os
import select
import stat
from io import FileIO
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_readable", "open_private", "read_regular"]


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def is_readable(file: int | _HasDescriptor, seconds: float) -> bool:
    """Wait until there is something to read, or the end of it; false if neither comes in time.

    By ``poll``: ``select`` takes no descriptor above 1023, and a busy program has more.
    """
    # A new object each time: several threads wait here, and a poll object takes one at a time.
    ready = select.poll()
    ready.register(file, select.POLLIN)
    return bool(ready.poll(max(0.0, seconds) * 1000))


def open_private(path: Path) -> FileIO:
    """Open *path* for appending. It is created for this user alone, and never a link of another."""
    return open(path, "ab", buffering=0, opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    # The flags of open() have O_CLOEXEC already: no child inherits the file, and a lock on it.
    # Not blocking: a FIFO in the place of a lock would wait for a reader, for ever.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def read_regular(path: Path) -> bytes:
    """Return the content of a file. Raises ``OSError`` for a FIFO or a device: it may not end."""
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
