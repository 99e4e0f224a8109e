"""``kill -9`` of the actor at random moments under load, again and again.

Eight writers, of which some send several changes at once, and two readers. Every actor that comes
after is started by a client that found none; the wall clocks of half of the sandboxes jump. In
the end the whole history is checked.
"""

from __future__ import annotations

import sys
import time

from harness.job import Job, run
from harness.workload import new_sandbox, run_clients

KILLS_PER_SANDBOX = 50
"""Then the history is checked and another one begins: evidence stays small."""


def main(job: Job) -> None:
    while job.more():
        clock = {"HERMES_STRESS_CLOCK": str(job.rng.random())} if job.rng.random() < 0.5 else {}
        sandbox = new_sandbox(job, **clock)
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=8, readers=2, depth=job.rng.choice([1, 4, 32]), large=0.002,
            pause=0.01,
        ) as load:  # fmt: skip
            kills = 0
            while kills < int(job.options.get("sandbox", KILLS_PER_SANDBOX)) and job.more():
                # From the middle of the opening to far into the service.
                pid = sandbox.serves() if job.rng.random() < 0.7 else sandbox.pid
                time.sleep(job.rng.choice([0.0, 0.01, 0.1, 0.3]) * job.rng.random())
                if pid is not None:
                    sandbox.kill(pid)
                    kills += 1
                    job.count("kills")
            load.stop_faults()
            load.goes_on()
            load.judge(job)


if __name__ == "__main__":
    sys.exit(run(main, "kills", short=5, usual=300))
