"""Everything at once: random misfortunes of the actor while many clients work at full speed.

Kills, drains, stops, hand-offs with and without stops, syncs that take long, syncs that fail, and
wall clocks that jump all the time. In the end the whole history is checked.
"""

from __future__ import annotations

import sys
import time

from harness.job import Job, run
from harness.nemesis import KINDS, Nemesis
from harness.workload import new_sandbox, run_clients

HOUSE_SECONDS = 20.0
"""Then the history is checked and another one begins."""

SHORT_SECONDS = 4.0


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job, HERMES_STRESS_CLOCK=str(job.rng.random()))
        nemesis = Nemesis(sandbox, job.rng)
        seconds = SHORT_SECONDS if job.form == "short" else HOUSE_SECONDS
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=8, readers=2, depth=job.rng.choice([24, 60]), large=0.0005
        ) as load:  # fmt: skip
            began = time.monotonic()
            while time.monotonic() - began < seconds and job.left > 0:
                time.sleep(job.rng.uniform(0.3, 1.5))
                nemesis.strike(job.rng.choice(KINDS))
                job.count("misfortunes")
            load.stop_faults()
            try:
                load.goes_on()
            except TimeoutError as error:
                job.violation(f"clients do not get on any more: {error}")
            load.judge(job, owners=not nemesis.failed_syncs)


if __name__ == "__main__":
    sys.exit(run(main, "acknowledged", short=200, usual=100_000))
