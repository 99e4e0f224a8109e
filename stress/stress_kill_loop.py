"""``kill -9`` of the actor at random moments under load, again and again.

Eight writers, of which some send several changes at once, and two readers. Every actor that comes
after is started by a client that found nobody; the wall clocks of half of the houses jump. In the
end the whole history is checked.
"""

from __future__ import annotations

import sys
import time

from programme.job import Job, run
from programme.workload import at_work, new_house

KILLS_PER_HOUSE = 50
"""Then the history is checked and another one begins: evidence stays small."""


def main(job: Job) -> None:
    while job.more():
        clock = {"HERMES_STRESS_CLOCK": str(job.rng.random())} if job.rng.random() < 0.5 else {}
        house = new_house(job, **clock)
        with house.open(), at_work(
            house, job.rng, writers=8, readers=2, depth=job.rng.choice([1, 4, 32]), large=0.002,
            pause=0.01,
        ) as load:  # fmt: skip
            kills = 0
            while kills < int(job.options.get("house", KILLS_PER_HOUSE)) and job.more():
                # From the middle of the opening to far into the service.
                pid = house.serves() if job.rng.random() < 0.7 else house.pid
                time.sleep(job.rng.choice([0.0, 0.01, 0.1, 0.3]) * job.rng.random())
                if pid is not None:
                    house.kill(pid)
                    kills += 1
                    job.count("kills")
            load.nothing_more_happens()
            load.goes_on()
            load.judge(job)


if __name__ == "__main__":
    sys.exit(run(main, "kills", short=5, usual=300))
