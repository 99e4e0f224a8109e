"""The locks of a folder of derived files: one process at a time writes each kind of them."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_actor.system.descriptors import open_private

__all__ = ["folder_lock"]

_LOCK_SECONDS = 5.0
"""Longest wait for another process, which writes a file meanwhile. One that stands still must not
hold up the answer of a chat: the files follow later."""

_PAUSE_SECONDS = 0.01


@contextmanager
def folder_lock(path: Path) -> Iterator[None]:
    """Hold the lock file *path*, for the block; make its folder if there is none.

    Raises ``TimeoutError`` if another process holds it for too long, and ``OSError``.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open_private(path) as lock:
        # Tried again and again: a flock that blocks has no time limit. Closing the file ends it.
        give_up = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise TimeoutError(f"another process holds {path}") from None
                time.sleep(_PAUSE_SECONDS)
        yield
