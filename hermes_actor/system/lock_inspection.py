"""Processes that hold a file or a lock: read from ``/proc``, empty where there is none.

Only for people: nothing is ever decided by a pid. What the owner lock says of its holder decides
no more than whether a client waits or tries to start an actor that would find the lock taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes_actor.errors import AlreadyOwned
from hermes_actor.system.processes import is_alive

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = [
    "LockOwner", "already_owned", "lock_holder", "lock_owner", "owners", "processes_with_fd",
    "processes_with_write_fd", "read_owner", "wal_read_lock_pids", "write_lock_holders",
]  # fmt: skip

_READ_MARKS = range(123, 128)
"""Bytes of the shared memory that SQLite locks for a reader's snapshot (WAL_READ_LOCK(0..4))."""


_WRITE_LOCK = range(120, 121)
"""The byte that SQLite locks for a write transaction (WAL_WRITE_LOCK)."""


def wal_read_lock_pids(shm: Path) -> list[int]:
    """Return the other processes that hold a snapshot of the WAL."""
    return _lock_holders(shm, _READ_MARKS)


def write_lock_holders(shm: Path) -> list[int]:
    """Return the other process that is inside a write transaction, if there is one."""
    return _lock_holders(shm, _WRITE_LOCK)


def _lock_holders(shm: Path, marks: range) -> list[int]:
    try:
        found = os.stat(shm)
        text = Path("/proc/locks").read_text()
    except OSError:
        return []
    where = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    pids = set()
    for line in text.splitlines():
        fields = line.split()
        # "7: POSIX ADVISORY READ 4711 fe:00:2318448 124 124"; a waiting one has "->" second.
        if len(fields) == 8 and fields[1] == "POSIX" and fields[5] == where:
            first = int(fields[6])
            last = first if fields[7] == "EOF" else int(fields[7])
            if any(first <= mark <= last for mark in marks):
                pids.add(int(fields[4]))
    # 0 and -1 are no processes: the kernel has no number for the holder here, for example because
    # it is in another container.
    return sorted(pids - {os.getpid(), 0, -1})


def processes_with_write_fd(db: Path) -> dict[int, str]:
    """Return the other processes that have *db* open for writing, with their names."""
    return {pid: name for pid, (name, writes) in processes_with_fd(db).items() if writes}


def processes_with_fd(db: Path) -> dict[int, tuple[str, bool]]:
    """Return the other processes that have *db* open: their names, and if it is for writing."""
    found = {}
    with contextlib.suppress(OSError):
        wanted = os.stat(db)
        for entry in os.scandir("/proc"):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                modes = set(_modes(entry.path, (wanted.st_dev, wanted.st_ino)))
                if modes:
                    found[int(entry.name)] = (_name_of(entry), modes != {os.O_RDONLY})
    return found


def _modes(process: str, wanted: tuple[int, int]) -> Iterator[int]:
    """Yield the access mode of each descriptor that leads to the file *wanted*."""
    with contextlib.suppress(OSError, ValueError):
        for descriptor in os.listdir(f"{process}/fd"):
            with contextlib.suppress(OSError):
                # Through the link of the descriptor, so nothing is opened.
                found = os.stat(f"{process}/fd/{descriptor}")
                if (found.st_dev, found.st_ino) == wanted:
                    yield _access_mode(process, descriptor)


def _access_mode(process: str, descriptor: str) -> int:
    for line in Path(f"{process}/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE
    return os.O_RDONLY


def _name_of(process: os.DirEntry[str]) -> str:
    with contextlib.suppress(OSError):
        return Path(process.path, "comm").read_text(errors="backslashreplace").strip()
    return "?"


class LockOwner(NamedTuple):
    """The holder of an owner lock, as it has described itself."""

    pid: int | None = None
    mode: str = ""
    """``actor``, ``embedded`` or ``command``; empty in the lock of an older build."""
    build: str = "?"
    since: time.struct_time | None = None


def read_owner(descriptor: int) -> LockOwner:
    """Return what the owner lock at *descriptor* says of its holder, as far as it can be read."""
    with contextlib.suppress(OSError, ValueError, OverflowError):
        said = json.loads(os.pread(descriptor, 4096, 0))
        if isinstance(said, dict):
            return _described(said)
    return LockOwner()


def _described(said: dict[str, Any]) -> LockOwner:
    pid, started = said.get("pid"), said.get("started")
    return LockOwner(
        pid if isinstance(pid, int) else None,
        str(said.get("mode", "")),
        str(said.get("build", "?")),
        time.localtime(started) if isinstance(started, int | float) else None,
    )


def lock_owner(paths: StorePaths) -> LockOwner | None:
    """Return the process that the owner lock of *paths* names, if it lives and the lock is held.

    ``None`` also if the lock file cannot be read. Never waits.
    """
    with contextlib.suppress(OSError), paths.owner_lock.open("rb") as lock:
        owner = read_owner(lock.fileno())
        # A process that lives may have given the lock up long ago. To try it is to hold it for
        # a moment, so it is tried only then, and a process that meets it retries.
        if owner.pid is not None and is_alive(owner.pid) and _is_held(lock.fileno()):
            return owner
    return None


def lock_holder(paths: StorePaths) -> int | None:
    """Return the pid of :func:`lock_owner`."""
    owner = lock_owner(paths)
    return owner and owner.pid


_ADVICE = {
    "actor": "it is the actor, whose clients share the file; to end it: hermes-actor stop",
    "embedded": (
        "it uses the file in embedded mode, which shares with no other process: end that program,"
        " or open the file there without mode='embedded'"
    ),
    "command": "it is a command, which ends by itself: retry then",
}


def already_owned(paths: StorePaths, owner: LockOwner) -> AlreadyOwned:
    """Return the error that names the *owner* of a store, since when it is, and what to do."""
    since = "" if owner.since is None else time.strftime(" since %Y-%m-%d %H:%M:%S", owner.since)
    error = AlreadyOwned(
        f"{paths.db} is owned by process {owner.pid or 'unknown'} (hermes-actor {owner.build})"
        f"{since}: {_ADVICE.get(owner.mode, 'to see what it is: hermes-actor status')}"
    )
    error.pid = owner.pid
    return error


def _is_held(descriptor: int) -> bool:
    try:
        # Shared: two processes that inspect at once do not take each other for the owner.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def owners() -> list[tuple[int, Path]]:
    """Return (pid, database) of every process of this user that has an owner lock open."""
    found = set(_lock_openers() if Path("/proc/self/fd").exists() else _listed_actors())
    return sorted(found, key=lambda one: (one[1], one[0]))


def _lock_openers() -> Iterator[tuple[int, Path]]:
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if not entry.name.isdigit() or entry.stat().st_uid != os.getuid():
                continue
            for descriptor in os.listdir(f"{entry.path}/fd"):
                # Some descriptors come and go while we look.
                with contextlib.suppress(OSError):
                    target = os.readlink(f"{entry.path}/fd/{descriptor}")
                    db = _database_of(Path(target.removesuffix(" (deleted)")))
                    if db is not None:
                        yield int(entry.name), db


def _database_of(lock: Path) -> Path | None:
    """The database whose owner lock *lock* is."""
    name = lock.parent.name
    if lock.name != "owner.lock" or not (name.startswith(".") and name.endswith(".actor")):
        return None
    return lock.parent.with_name(name[1 : -len(".actor")])


def _listed_actors() -> Iterator[tuple[int, Path]]:
    """By the command lines that ``ps`` shows; programs in embedded mode are not among them."""
    listed = subprocess.run(
        ["ps", "-U", str(os.getuid()), "-o", "pid=,command="], capture_output=True, text=True
    )
    for line in listed.stdout.splitlines():
        pid, _, command = line.strip().partition(" ")
        before, serve, options = command.partition(" serve ")
        # Without /proc, on macOS. A path with " --" in it is cut short: this list is for people.
        if serve and "hermes" in before and "--db " in options:
            path = options.partition("--db ")[2].partition(" --")[0]
            yield int(pid), Path(path)
