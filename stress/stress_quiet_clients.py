"""Clients that are connected and quiet while others write, and receipts are swept, and then write.

Some of them have never written before. Receipts go after a few hundred changes here, as they go
after a hundred thousand elsewhere. In every other house the store is restored meanwhile, and handed
off. A change that is sent for the first time is applied exactly once; its outcome is never unknown.
"""

from __future__ import annotations

import contextlib
import sys

from programme.commands import backups, keep_all_backups, run_command
from programme.house import House
from programme.job import Job, run
from programme.nemesis import Nemesis
from programme.workload import Workload, at_work, new_house
from support.actors import own

SWEEP_AFTER_COMMITS = 100

ROUNDS_PER_HOUSE = 4

QUIET_SECONDS = 0.5
"""Mean time between two changes of a quiet client. The others make some hundreds meanwhile, with
pauses: an idle moment is when a writer sweeps."""


def main(job: Job) -> None:
    while job.more():
        house = new_house(job, HERMES_STRESS_SWEEP=str(SWEEP_AFTER_COMMITS))
        keep_all_backups(house)
        with house.open(), at_work(
            house, job.rng, name="b", writers=2, depth=60, pause=0.15
        ) as busy, at_work(
            house, job.rng, name="q", writers=6, pause=QUIET_SECONDS
        ) as known:  # fmt: skip
            run_command(job, house, "backup", "--to", house.folder / "early.db")
            for turn in range(ROUNDS_PER_HOUSE):
                if not job.more():
                    break
                with contextlib.ExitStack() as stack:
                    fresh = Workload(
                        house, job.rng.randrange(2**32), name=f"n{turn}", writers=4,
                        quiet=2 * QUIET_SECONDS, pause=QUIET_SECONDS,
                    )  # fmt: skip
                    stack.callback(fresh.stop)
                    disturb(job, house, turn)
                    if not sweeps(job, house):
                        break
                    fresh.ready()
                    known.everyone_returns()
                    code = fresh.stop()
                    job.demand(code == 0, f"fresh clients have ended with {code}")
                job.count("rounds")
            busy.nothing_more_happens()
            busy.everyone_returns()
            job.demand(known.stop() == 0, "quiet clients have failed")
            busy.judge(job, receipts=False, copies=backups(house), excused=())


def disturb(job: Job, house: House, turn: int) -> None:
    """A restore of the beginning, a hand-off, or only the changes of others."""
    if turn % 3 == 0:
        run_command(job, house, "restore", house.folder / "early.db", "--yes")
        job.count("restores")
    elif turn % 3 == 1:
        Nemesis(house, job.rng).strike("hand_off")


def sweeps(job: Job, house: House) -> bool:
    """Wait until receipts have been swept, whatever has been swept before."""
    before = own(house.path, "swept_through")
    try:
        house.wait_for(lambda: own(house.path, "swept_through") > before, timeout=30)
    except TimeoutError:
        job.violation("nothing is swept any more: nobody can write")
        return False
    job.count("sweeps")
    return True


if __name__ == "__main__":
    sys.exit(run(main, "rounds", short=2, usual=12))
