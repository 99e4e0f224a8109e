"""Messages of megabytes are appended, replaced and deleted beside writers of small ones.

Words, images as base64, Chinese. Searches find all of them, and none of them is taken into an index
inside a transaction of the writer, where every other change would wait for it. How long a small
writer had to wait at most is a figure of the report and no verdict: it is the machine's as much as
the product's.
"""

from __future__ import annotations

import sys

from harness.job import Job, run
from harness.workload import new_sandbox, run_clients

from hermes_actor.testing.records import load as load_history

LARGEST_BYTES = 8_000_000
SHORT_BYTES = 2_000_000

LOOKS_PER_SANDBOX = 4

LONGEST_WAIT = "ms of the longest wait"


def main(job: Job) -> None:
    largest = SHORT_BYTES if job.form == "short" else LARGEST_BYTES
    while job.more():
        sandbox = new_sandbox(job)
        inside = sandbox.folder / "inside"
        sandbox.order(HERMES_STRESS_WATCH_ROWS=str(inside))
        with sandbox.open(), run_clients(
            sandbox, job.rng, writers=3, readers=1, keepers=2, largest=largest, depth=2, pause=0.02
        ) as load:  # fmt: skip
            for _ in range(LOOKS_PER_SANDBOX):
                if job.more():
                    load.everyone_returns("k", timeout=300)
                    job.count("looks")
            load.stop_faults()
            load.judge(job)
        job.demand(not inside.exists(), "large texts were indexed inside a transaction")
        writes = load_history(sandbox.folder / "history").writes
        waited = max(write.ended - write.began for write in writes if write.outcome == "ok")
        job.counts[LONGEST_WAIT] = max(job.counts.get(LONGEST_WAIT, 0), round(waited * 1000))


if __name__ == "__main__":
    sys.exit(run(main, "looks", short=2, usual=3))
