"""Finding and ending the actor of a store, by what its lock file says."""

import contextlib
import json
import os
import signal
import time
from pathlib import Path


def actor_pid(path: Path) -> int | None:
    """The process that says it owns the store, if it lives."""
    lock = path.with_name(f".{path.name}.actor") / "owner.lock"
    with contextlib.suppress(OSError, ValueError):
        pid = json.loads(lock.read_text())["pid"]
        os.kill(pid, 0)
        return pid
    return None


def end_actor(path: Path, number: int = signal.SIGTERM, patience: float = 20.0) -> int | None:
    """End the actor and wait until it is gone; its pid."""
    pid = actor_pid(path)
    if pid is not None and pid != os.getpid():
        os.kill(pid, number)
        wait_gone(pid, patience)
    return pid


def wait_gone(pid: int, patience: float = 20.0) -> None:
    give_up = time.monotonic() + patience
    while _lives(pid):
        assert time.monotonic() < give_up, f"process {pid} does not end"
        time.sleep(0.005)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
