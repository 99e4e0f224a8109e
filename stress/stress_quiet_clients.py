"""Clients that are connected and quiet while others write, and receipts are swept, and then write.

Some of them have never written before. Receipts go after a few hundred changes here, as they go
after a hundred thousand elsewhere. In every other sandbox the store is restored meanwhile, and
handed off. A change that is sent for the first time is applied exactly once; its outcome is never
unknown.
"""

from __future__ import annotations

import contextlib
import sys

from harness.commands import backups, keep_all_backups, run_command
from harness.job import Job, run
from harness.nemesis import Nemesis
from harness.sandbox import Sandbox
from harness.workload import Workload, new_sandbox, run_clients
from support.actors import own

SWEEP_AFTER_COMMITS = 100

ROUNDS_PER_SANDBOX = 4

QUIET_SECONDS = 0.5
"""Mean time between two changes of a quiet client. The others make some hundreds meanwhile, with
pauses: an idle moment is when a writer sweeps."""


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job, HERMES_STRESS_SWEEP=str(SWEEP_AFTER_COMMITS))
        keep_all_backups(sandbox)
        with sandbox.open(), run_clients(
            sandbox, job.rng, name="b", writers=2, depth=60, pause=0.15
        ) as busy, run_clients(
            sandbox, job.rng, name="q", writers=6, pause=QUIET_SECONDS
        ) as known:  # fmt: skip
            run_command(job, sandbox, "backup", "--to", sandbox.folder / "early.db")
            for turn in range(ROUNDS_PER_SANDBOX):
                if not job.more():
                    break
                with contextlib.ExitStack() as stack:
                    # A session that is created before the store is restored would be gone.
                    disturbed = sandbox.folder / "disturbed"
                    disturbed.touch()
                    fresh = Workload(
                        sandbox, job.rng.randrange(2**32), name=f"n{turn}", writers=4,
                        quiet=2 * QUIET_SECONDS, quiet_while=str(disturbed), pause=QUIET_SECONDS,
                    )  # fmt: skip
                    stack.callback(fresh.stop)
                    disturb(job, sandbox, turn)
                    disturbed.unlink()
                    if not sweeps(job, sandbox):
                        break
                    fresh.ready()
                    known.everyone_returns()
                    code = fresh.stop()
                    job.demand(code == 0, f"fresh clients have ended with {code}")
                job.count("rounds")
            busy.stop_faults()
            busy.everyone_returns()
            job.demand(known.stop() == 0, "quiet clients have failed")
            busy.judge(job, receipts=False, copies=backups(sandbox), excused=())


def disturb(job: Job, sandbox: Sandbox, turn: int) -> None:
    """A restore of the beginning, a hand-off, or only the changes of others."""
    if turn % 3 == 0:
        run_command(job, sandbox, "restore", sandbox.folder / "early.db", "--yes")
        job.count("restores")
    elif turn % 3 == 1:
        Nemesis(sandbox, job.rng).strike("hand_off")


def sweeps(job: Job, sandbox: Sandbox) -> bool:
    """Wait until receipts have been swept, whatever has been swept before."""
    before = own(sandbox.path, "swept_through")
    try:
        sandbox.wait_for(lambda: own(sandbox.path, "swept_through") > before, timeout=30)
    except TimeoutError:
        job.violation("nothing is swept any more: nobody can write")
        return False
    job.count("sweeps")
    return True


if __name__ == "__main__":
    sys.exit(run(main, "rounds", short=2, usual=12))
