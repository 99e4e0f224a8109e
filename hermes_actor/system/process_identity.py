"""Identity of a process beyond its number: when it started, and where its number means something.

A number is given again after the end of a process, and inside a container it names another one.
"""

from __future__ import annotations

import os
import socket

from hermes_actor.system.processes import is_alive

__all__ = ["has_ended", "own_place", "start_of"]


def own_place() -> str:
    """Return the host and the namespace that numbers of processes belong to."""
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}/{namespace}"


def start_of(pid: int) -> float:
    """Return the start of a process in ticks since boot; 0 if it has ended or cannot be known."""
    fields = _fields(pid)
    return 0.0 if fields is None or fields[0] == "Z" else float(fields[19])


def has_ended(pid: int, started: float, place: str) -> bool:
    """Return True if the process that was *pid* has ended for certain."""
    if place != own_place():
        return False
    if not is_alive(pid):
        return True
    # A zombie has ended: only its parent has not asked for its exit code.
    return started != 0.0 and start_of(pid) != started


def _fields(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` after the name, which may hold blanks."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None
