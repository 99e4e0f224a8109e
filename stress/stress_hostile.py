"""Hostile, slow and confused clients beside good ones.

Visits of every kind, from many threads, while some who never read and some who never finish a
frame stay. The actor that was there at the beginning must be there at the end, with as many open
files as before and memory under its bound, and the history of the neighbours must be right.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time

from harness.hostile_clients import VISITS, Say, deaf, silent
from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import new_sandbox, run_clients
from support.actors import descriptors, peak_memory

THREADS = 4
VISITS_PER_SANDBOX = 1500
MEMORY_BYTES = 250 * 1024 * 1024
"""An actor has about 50 MB, and its budgets for requests and answers are 32 MB and 4 MB each."""


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=3, readers=1, depth=4, pause=0.005
        ) as load:  # fmt: skip
            pid = sandbox.serves()
            before = len(descriptors(pid))
            visit_all(job, sandbox)
            load.stop_faults()
            load.goes_on()
            job.demand(sandbox.serves() == pid, "the actor did not survive its visitors")
            settled(job, pid, before)
            peak = peak_memory(pid)
            job.demand(peak < MEMORY_BYTES, f"the actor grew to {peak >> 20} MiB")
            load.judge(job)


def visit_all(job: Job, sandbox: Sandbox) -> None:
    """Visits from several threads, while bad guests stay."""
    left = iter(range(int(min(VISITS_PER_SANDBOX, job.goal - job.done))))
    lock = threading.Lock()
    seeds = [job.rng.random() for _ in range(THREADS)]

    def visitor(seed: float) -> None:
        rng = random.Random(seed)
        while True:
            with lock:
                if next(left, None) is None or not job.more():
                    return
            visit = rng.choice(VISITS)
            try:
                visit(sandbox.path, rng, Say.on(job.kind))
            except (AssertionError, OSError) as error:
                job.violation(f"{visit.__name__}: {type(error).__name__}: {error}")
            with lock:
                job.count("visits")

    with contextlib.ExitStack() as stack:
        for stay in (silent, deaf):
            for _ in range(10):
                stack.enter_context(contextlib.closing(stay(sandbox.path)))
        threads = [threading.Thread(target=visitor, args=(seed,)) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def settled(job: Job, pid: int, before: int) -> None:
    """Nothing of the visitors is left open, a little while after the last has left."""
    give_up = time.monotonic() + 20
    while len(descriptors(pid)) > before + 2:
        if time.monotonic() > give_up:
            job.violation(f"{len(descriptors(pid))} open files, and {before} before the visits")
            return
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(run(main, "visits", short=60, usual=3000))
