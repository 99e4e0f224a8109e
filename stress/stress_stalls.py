"""A writer whose syncs take seconds, and stopped processes: no call hangs, no answer is false.

Clients are impatient: their calls end in time, with an error that says whether the change was
executed, and what was said not to be executed is not in the file. The actor answers questions all
the while, says that its writer is stalled, and does not grow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import new_sandbox, run_clients
from support.actors import peak_memory

from hermes_actor.client.control import ask_status

DEFAULT_TIMEOUT_SECONDS = 1.0
STALL_SECONDS = 2.5
"""Longer than the timeout of the clients, and than it takes to call a writer stalled."""

STALLS_PER_SANDBOX = 4
MEMORY_BYTES = 250 * 1024 * 1024


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=8, readers=1, depth=30, timeout=DEFAULT_TIMEOUT_SECONDS
        ) as clients:  # fmt: skip
            for _ in range(STALLS_PER_SANDBOX):
                if job.more():
                    (stuck_sync if job.done % 2 == 0 else stopped)(job, sandbox)
                    job.count("stalls")
                    clients.goes_on()
            found = clients.judge(job)
            job.count("refused in time", found["counts"].get("refused", 0))


def stuck_sync(job: Job, sandbox: Sandbox) -> None:
    """The next actor's commits take long, one after the other."""
    start = job.rng.randint(5, 40)
    order = f"commit.before:{start}:sleep={STALL_SECONDS}"
    pid = sandbox.serves_under(HERMES_ACTOR_FAILPOINT=order)
    give_up = time.monotonic() + 30
    while not any("stalled" in text for text in degraded(sandbox)):
        if time.monotonic() > give_up:
            job.violation("nobody says that the writer is stalled")
            break
        time.sleep(0.05)
    # Half of them live on: what was refused meanwhile must not be in one of the next commits.
    time.sleep(job.rng.choice((0.0, 2.2 * STALL_SECONDS)))
    peak = peak_memory(pid)
    job.demand(peak < MEMORY_BYTES, f"the actor grew to {peak >> 20} MiB behind a stuck sync")
    sandbox.kill(pid)


def degraded(sandbox: Sandbox) -> list[str]:
    status = ask_status(sandbox.paths)
    return [] if status is None else list(status.degraded)


def stopped(job: Job, sandbox: Sandbox) -> None:
    """SIGSTOP for longer than any timeout."""
    pid = sandbox.serves()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(DEFAULT_TIMEOUT_SECONDS + job.rng.uniform(0.2, 1.5))
        os.kill(pid, signal.SIGCONT)
    job.demand(sandbox.serves() == pid, "a stopped actor has lost its place")


if __name__ == "__main__":
    sys.exit(run(main, "stalls", short=2, usual=16))
