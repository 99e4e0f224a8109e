"""Finding and ending the actor of a store, by what its lock file says."""

import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def actor_pid(path: Path) -> int | None:
    """The process that says it owns the store, if it lives."""
    lock = path.with_name(f".{path.name}.actor") / "owner.lock"
    with contextlib.suppress(OSError, ValueError):
        pid = int(json.loads(lock.read_text())["pid"])
        return pid if _lives(pid) else None
    return None


def stop_actor(path: Path, number: int = signal.SIGTERM, timeout: float = 20.0) -> int | None:
    """End the actor and wait until it is gone; its pid."""
    pid = actor_pid(path)
    if pid is not None and pid != os.getpid():
        os.kill(pid, number)
        wait_gone(pid, timeout)
    return pid


def pause(pid: int) -> None:
    """Stop a process, and wait until each of its threads stands still: until then it can answer."""
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: _thread_states(pid) == {"T"})


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    """A process stands still for the time of a block."""
    pause(pid)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _thread_states(pid: int) -> set[str]:
    found = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            found.add(stat.read_text().rpartition(")")[2].split()[0])
    return found


def wait_gone(pid: int, timeout: float = 60.0) -> None:
    give_up = time.monotonic() + timeout
    while _lives(pid):
        assert time.monotonic() < give_up, f"process {pid} does not end"
        time.sleep(0.005)


def _lives(pid: int) -> bool:
    """Whether it still holds anything: a killed process does until its last thread is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        return state != "Z" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def folder_of(path: Path) -> Path:
    """The folder of side files of a store."""
    return path.with_name(f".{path.name}.actor")


def socket_of(path: Path) -> Path:
    """Where the actor of a store listens, or has listened last."""
    try:
        text = (folder_of(path) / "address").read_bytes()
    except FileNotFoundError:
        return folder_of(path) / "sock"
    return Path(os.fsdecode(text.split(b"\n")[0]))


def actors_of(path: Path) -> set[int]:
    """Every process of this host that was started to serve the store."""
    # One look can miss a process that forks and ends meanwhile, and its child too; two cannot.
    return _actors_of(path) or _actors_of(path)


def _actors_of(path: Path) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"serve" in words and os.fsencode(path) in words and _lives(int(entry.name)):
                found.add(int(entry.name))
    return found


def wait_for(fact: Callable[[], T], timeout: float = 60.0) -> T:
    """Look again and again until something is true; what it was."""
    give_up = time.monotonic() + timeout
    while not (found := fact()):
        assert time.monotonic() < give_up, "it does not come true"
        time.sleep(0.005)
    return found


def wait_no_actor(path: Path) -> None:
    """Wait until no actor of the store is left."""
    wait_for(lambda: not actors_of(path))


def end_actors(path: Path) -> None:
    """End every actor of the store, also those that its lock file does not name."""
    for pid in actors_of(path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_no_actor(path)


def own(path: Path, key: str) -> int:
    """A number that the store keeps for itself, such as its epoch."""
    sql = "SELECT value FROM hermes_actor_meta WHERE key = ?"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        return int(conn.execute(sql, (key,)).fetchone()[0])


def contents(path: Path, session: str) -> list[str]:
    """The texts of a session in the order of their ids, read by a connection of its own."""
    sql = "SELECT content FROM messages WHERE session_id = ? ORDER BY id"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        return [content for (content,) in conn.execute(sql, (session,))]


def peak_memory(pid: int) -> int:
    """The most bytes of memory that a process has ever had (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def descriptors(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(entry))
    return found
