"""The jobs against twelve deliberately broken builds: each must be found.

A programme that cannot fail proves nothing. Every line names a mistake, the job that must find it,
and what that job must say. The same jobs run against the product as it is, with other seeds, in
the programme itself, and must find nothing there.
"""

from __future__ import annotations

import sys

from harness.job import Job, run
from harness.mutation_runner import Fault, find_all

CUT, SYNC, FIRST = "crash_replay", "fsync_policy", ("workload=first commit",)

FAULTS = [
    Fault("only the decoder's own errors are expected", "fuzz_frames", "decode-errors-only",
          "UnicodeDecodeError"),
    Fault("a reader keeps its snapshot", "kill_loop", "kept-snapshot", "stale|backward",
          ("sandbox=1",)),
    Fault("commits are not synced at all", CUT, "synchronous-off", "cut after", FIRST),
    Fault("there is no start-up barrier", SYNC, "no-barrier", "lost"),
    Fault("commits are synced with synchronous=NORMAL", CUT, "synchronous-normal", "lost", FIRST),
    Fault("receipts are written in a transaction of their own", CUT, "receipt-apart",
          "cut after", FIRST),
    Fault("the barrier has no commit of its own", SYNC, "no-boot-commit", "lost|altered"),
    Fault("a commit whose sync has failed is acknowledged", SYNC, "go-on-after-failed-sync",
          "lost|gap"),
    Fault("answers leave before the commit", "kill_loop", "reply-before-commit",
          "lost|stale|no-prefix", ("sandbox=4",)),
    Fault("receipts go by the wall clock", "kill_loop", "receipts-by-the-clock", "doubled|torn",
          ("sandbox=6",)),
    Fault("no inode guard, and a stray open in the actor", "foreign", "no-guard",
          "lost|malformed|cannot be read", ("only=opener", "readers=0")),
    Fault("a successor opens before the old actor has closed", "handoff_loop", "two-owners",
          "two owners", ("sandbox=2",)),
]  # fmt: skip
"""Those that are found soonest come first: the short form takes the beginning."""


def main(job: Job) -> None:
    find_all(job, FAULTS)


if __name__ == "__main__":
    sys.exit(run(main, "faults found", short=2, usual=len(FAULTS)))
