"""The log of an actor shows who had the file open, and when: never two processes at a time."""

import os
import re
import signal
from pathlib import Path

from support.actors import folder_of


def kill(path: Path, pid: int) -> None:
    """Kill a process that may have the store open, and note it: the victim logs no closing."""
    with (folder_of(path) / "log").open("a") as log:
        log.write(f"killed pid {pid}\n")
    os.kill(pid, signal.SIGKILL)


def owners(path: Path) -> list[tuple[str, int, float]]:
    """Return the lines of the log about the file: opened, closed, killed or ended, in order."""
    events = []
    for line in (folder_of(path) / "log").read_text().splitlines():
        if found := re.search(r"database (opened|closed) by pid (\d+) at ([\d.]+)$", line):
            events.append((found[1], int(found[2]), float(found[3])))
        elif found := re.search(r"killed pid (\d+)$", line):
            events.append(("killed", int(found[1]), 0.0))
        elif found := re.search(r"successor pid (\d+) has ended with", line):
            events.append(("ended", int(found[1]), 0.0))
    return events


def check_owners(path: Path) -> list[int]:
    """Assert that no two processes had the file open at a time; return who had it, in order.

    A line is written before each opening and after each closing, all into one file.
    """
    owner, latest, order, killed = None, 0.0, [], set()
    for what, pid, at in owners(path):
        if what == "opened":
            assert owner is None or owner in killed, f"{pid} opened what {owner} had open"
            assert at > latest
            owner, latest = pid, at
            order.append(pid)
        elif what == "closed":
            assert owner == pid
            assert at > latest
            owner, latest = None, at
        else:
            killed.add(pid)
    return order
