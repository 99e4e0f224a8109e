"""Clients that keep the writer to themselves, and vanish or are stopped while they do.

Statements that never end run inside transactions and alone, beside writers, drains and hand-offs.
The writers go on without an error, every call comes back, and what a holder learns about its
change is true.
"""

from __future__ import annotations

import signal
import sys

from harness.job import Job, run
from harness.nemesis import Nemesis
from harness.sandbox import Sandbox
from harness.workload import Workload, new_sandbox, run_clients
from support.actors import actors_of

TURNS_PER_SANDBOX = 6

KINDS = ("vanish", "stop", "hand_off", "term", "leave", "stop")
"""What happens to holders or to the actor, one after the other."""


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=3, readers=1, depth=4, pause=0.02
        ) as load:  # fmt: skip
            for turn in range(TURNS_PER_SANDBOX):
                if job.more():
                    one_turn(job, sandbox, load, turn)
                    job.count("turns")
            load.stop_faults()
            load.everyone_returns()
            load.judge(job, excused=())


def one_turn(job: Job, sandbox: Sandbox, load: Workload, turn: int) -> None:
    """Holders come, something happens to them or to the actor, and writers go on."""
    kind = KINDS[turn % len(KINDS)]
    with run_clients(sandbox, job.rng, name=f"t{turn}", writers=0, holders=3) as holders:
        if not writers_go_on(job, load, holders):
            return
        if kind == "vanish":
            holders.signal(signal.SIGKILL)
        elif kind == "stop":
            holders.signal(signal.SIGSTOP)
        elif kind in ("hand_off", "term"):
            Nemesis(sandbox, job.rng).strike(kind)
        if not writers_go_on(job, load, holders):
            return
        if kind == "stop":
            holders.signal(signal.SIGCONT)
        if kind != "vanish":
            holders.everyone_returns("h")
            code = holders.stop()
            job.demand(code == 0, f"holders have ended with {code}: {holders.last_words()}")


def writers_go_on(job: Job, load: Workload, holders: Workload) -> bool:
    """Whether they do. Otherwise holders and actor are killed: it may be unable to drain."""
    try:
        load.goes_on(20, timeout=30)
    except TimeoutError as error:
        job.violation(f"writers do not go on: {error}")
        holders.signal(signal.SIGKILL)
        for pid in actors_of(load.sandbox.path):
            load.sandbox.kill(pid)
        return False
    return True


if __name__ == "__main__":
    sys.exit(run(main, "turns", short=3, usual=12))
