"""Actors that do not read: stopped, with large frames under way, with a full backlog, and gone.

Each process of clients has more open files than ``select`` can count. While the actor stands still
every call of every client, also of new ones, comes back in time, and says truthfully whether its
change was executed. Then the actor goes on, or a client starts the next one.
"""

from __future__ import annotations

import contextlib
import socket
import sys

from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import OUT_OF_TIME, Workload, new_sandbox, run_clients
from support.wire import address

STANDSTILLS_PER_SANDBOX = 4
DESCRIPTORS = 1100
DEFAULT_TIMEOUT_SECONDS = 1.0
GIVEN_UP_CONNECTIONS = 5000
"""More than any backlog takes."""


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=3, readers=1, threads=2, depth=8, large=0.2, pause=0.02,
            timeout=DEFAULT_TIMEOUT_SECONDS, descriptors=DESCRIPTORS,
        ) as load:  # fmt: skip
            for turn in range(STANDSTILLS_PER_SANDBOX):
                if job.more():
                    stand_still(job, sandbox, load, turn)
                    job.count("standstills")
            load.everyone_returns()
            found = load.judge(job, excused=(*OUT_OF_TIME, "AlreadyOwned"))
            job.count("refused in time", found["counts"].get("refused", 0))


def stand_still(job: Job, sandbox: Sandbox, load: Workload, turn: int) -> None:
    load.goes_on(5)
    with sandbox.stopped() as pid:
        if turn % 2:
            job.count("given-up connections", fill_backlog(sandbox))
        with run_clients(
            sandbox, job.rng, name=f"n{turn}", writers=0, visitors=2,
            timeout=DEFAULT_TIMEOUT_SECONDS,
        ) as new:  # fmt: skip
            load.everyone_returns(timeout=40)
            new.everyone_returns("v", timeout=40)
            job.demand(new.stop() == 0, f"new clients have failed: {new.last_words()}")
        if turn % 2:
            sandbox.kill(pid)
            job.count("kills")


def fill_backlog(sandbox: Sandbox) -> int:
    """Connect and give up, until the kernel takes no more; how often."""
    with address(sandbox.path) as where:
        for number in range(GIVEN_UP_CONNECTIONS):
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
                sock.setblocking(False)
                try:
                    sock.connect(where)
                except BlockingIOError:
                    return number
    raise AssertionError(f"the backlog takes {GIVEN_UP_CONNECTIONS} connections")


if __name__ == "__main__":
    sys.exit(run(main, "standstills", short=2, usual=12))
