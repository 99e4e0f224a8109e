"""Clients that fork while they are connected, under load and kills.

A child that inherits a connection and readers becomes a client of its own; neither its parent nor
the actor may notice. Children write histories too.
"""

from __future__ import annotations

import sys
import time

from harness.job import Job, run
from harness.workload import new_sandbox, run_clients

HOUSE_SECONDS = 10.0
SHORT_SECONDS = 2.0


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        seconds = SHORT_SECONDS if job.form == "short" else HOUSE_SECONDS
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=4, readers=2, depth=4, pause=0.005, forks=0.25
        ) as load:  # fmt: skip
            began = time.monotonic()
            while time.monotonic() - began < seconds and job.left > 0:
                time.sleep(job.rng.uniform(0.2, 2.0))
                if job.rng.random() < 0.5:
                    sandbox.kill(sandbox.serves())
                    job.count("kills")
            load.stop_faults()
            load.goes_on()
            load.judge(job)
            forked = [file for file in (sandbox.folder / "history").iterdir() if "f" in file.name]
            job.count("forks", len(forked))


if __name__ == "__main__":
    sys.exit(run(main, "forks", short=5, usual=500))
