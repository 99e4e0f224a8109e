"""The environment of the engine: clock, files, connections, threads, in one object.

Simulation and crash replay put their own clock, files and connections here and run the very code
that serves users.
"""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hermes_actor import failpoints
from hermes_actor.engine.index.build_process import start_builder
from hermes_actor.sqlite import Connection, connect_reader, connect_writer
from hermes_actor.system.fork import inside, outside

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Builder", "Environment", "Look"]


class Builder(Protocol):
    """Indexes the texts of a folder, in a process of its own or not."""

    def wait(self) -> None:
        """Return when all is built. Raises the error that ended it."""
        ...

    def kill(self) -> None:
        """End it now; harmless if it has ended."""
        ...


class Look(NamedTuple):
    """One look at a file, with one system call."""

    identity: tuple[int, int]
    """Device and inode."""
    stamp: tuple[int, int]
    """Size and time of the last change: identity does not show a write in place."""


def _look(path: str) -> Look | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        # Only a missing file is an answer. Any other error leaves the question open, and the commit
        # that asked it is not acknowledged (R3).
        return None
    return Look((status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns))


def _size(path: str) -> int:
    found = _look(path)
    return 0 if found is None else found.stamp[0]


def _sleep(seconds: float) -> None:
    # A fork need not wait for this: SQLite is not being called.
    outside(time.sleep, seconds)


_CHUNK_BYTES = 1 << 20


def _write_again(path: str) -> None:
    """Write what a file shows once more and sync it.

    After a failed sync the kernel takes its pages for clean, and no later sync would write them.
    Only for the WAL: on it SQLite holds no locks that closing a descriptor could drop.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        offset = 0
        while data := os.pread(descriptor, _CHUNK_BYTES, offset):
            # The same bytes at the same place: for SQLite nothing changes, for the kernel the pages
            # are dirty again.
            offset += os.pwrite(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_sync: Callable[[int], None] | None = getattr(os, "fdatasync", None)


def _start(work: Callable[[], None]) -> None:
    """Run *work*, which calls SQLite, in a thread that keeps no process alive."""
    # Not by way of threading, which waits until the thread runs: on a busy machine that takes as
    # long as many changes do (G13). No exit waits for such a thread, as FTS5 cannot be interrupted.
    # Inside, so that no fork copies a mutex of SQLite that it holds.
    _thread.start_new_thread(inside, (work,))


@dataclass(frozen=True, slots=True)
class Environment:
    """Clock, sleep, files, connections, threads, processes and failpoints of one engine."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = _sleep
    look: Callable[[str], Look | None] = _look
    size: Callable[[str], int] = _size
    write_again: Callable[[str], None] = _write_again
    sync: Callable[[int], None] | None = _sync
    """``None``: a sync of the kernel alone is not enough here, as on macOS."""
    connect_writer: Callable[[Path], Connection] = connect_writer
    connect_reader: Callable[[Path], Connection] = connect_reader
    start: Callable[[Callable[[], None]], None] = _start
    start_builder: Callable[[Path, int], Builder] = start_builder
    failpoint: Callable[[str], None] = failpoints.hit
