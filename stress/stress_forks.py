"""Clients that fork while they are connected, under load and kills.

A child that inherits a connection and readers becomes a client of its own; neither its parent nor
the actor may notice. Children write histories too.
"""

from __future__ import annotations

import sys
import time

from programme.job import Job, run
from programme.workload import at_work, new_house

HOUSE_SECONDS = 10.0
SHORT_SECONDS = 2.0


def main(job: Job) -> None:
    while job.more():
        house = new_house(job)
        seconds = SHORT_SECONDS if job.form == "short" else HOUSE_SECONDS
        with house.open(), at_work(
            house, job.rng, writers=4, readers=2, depth=4, pause=0.005, forks=0.25
        ) as load:  # fmt: skip
            began = time.monotonic()
            while time.monotonic() - began < seconds and job.left > 0:
                time.sleep(job.rng.uniform(0.2, 2.0))
                if job.rng.random() < 0.5:
                    house.kill(house.serves())
                    job.count("kills")
            load.nothing_more_happens()
            load.goes_on()
            load.judge(job)
            forked = [file for file in (house.folder / "history").iterdir() if "f" in file.name]
            job.count("forks", len(forked))


if __name__ == "__main__":
    sys.exit(run(main, "forks", short=5, usual=500))
