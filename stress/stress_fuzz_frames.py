"""Any bytes may arrive (R4), in process: both halves of the conversation and the operations.

Whatever comes, nothing but a :class:`FrameError`, or a typed error, may come out.
"""

from __future__ import annotations

import sys

from harness.frames import Mutations, hostile_halves
from harness.job import Job, run
from harness.mutations import break_build

AT_ONCE = 1_000
"""Frames between two looks at the clock."""


def main(job: Job) -> None:
    break_build(job.options.get("break", ""))
    mutations = Mutations(job.rng)
    halves = hostile_halves()
    while job.more():
        for _ in range(AT_ONCE):
            data = mutations.draw()
            for name, feed in halves:
                try:
                    feed(data)
                except Exception as error:
                    job.violation(f"{name}: {type(error).__name__}: {error}: {data[:80].hex()}")
                    (job.folder / f"frame-{len(job.violations)}").write_bytes(data)
        job.count("frames", AT_ONCE * len(halves))


if __name__ == "__main__":
    sys.exit(run(main, "frames", short=20_000, usual=2_000_000))
