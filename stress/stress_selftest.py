"""The jobs against twelve deliberately broken builds: each must be found.

A programme that cannot fail proves nothing. Every line names a mistake, the job that must find it,
and what that job must say. The same jobs run against the product as it is, with other seeds, in
the programme itself, and must find nothing there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import NamedTuple

from programme import ROOT
from programme.job import Job, run


class Fault(NamedTuple):
    """A deliberate fault of the product."""

    what: str
    job: str
    name: str
    finds: str
    """A pattern of what the job must say."""
    options: tuple[str, ...] = ()
    budget: float = 60.0


CUT, SYNC, FIRST = "crash_replay", "fsync_policy", ("workload=first commit",)

FAULTS = [
    Fault("only the decoder's own errors are expected", "fuzz_frames", "decode-errors-only",
          "UnicodeDecodeError"),
    Fault("a reader keeps its snapshot", "kill_loop", "kept-snapshot", "stale|backward",
          ("house=1",)),
    Fault("commits are not synced at all", CUT, "synchronous-off", ".", FIRST),
    Fault("there is no start-up barrier", SYNC, "no-barrier", "lost"),
    Fault("commits are synced with synchronous=NORMAL", CUT, "synchronous-normal", "lost", FIRST),
    Fault("receipts are written in a transaction of their own", CUT, "receipt-apart", ".", FIRST),
    Fault("the barrier has no commit of its own", SYNC, "no-boot-commit", "lost|altered"),
    Fault("a commit whose sync has failed is acknowledged", SYNC, "go-on-after-failed-sync",
          "lost|gap"),
    Fault("answers leave before the commit", "kill_loop", "reply-before-commit",
          "lost|stale|no-prefix", ("house=4",)),
    Fault("receipts go by the wall clock", "kill_loop", "receipts-by-the-clock", "doubled|torn",
          ("house=6",)),
    Fault("no inode guard, and a stray open in the actor", "foreign", "no-guard",
          "lost|malformed|cannot be read", ("only=opener", "readers=0")),
    Fault("a successor opens before the old actor has closed", "handoff_loop", "two-owners",
          "two owners", ("house=2",)),
]  # fmt: skip
"""Those that are found soonest come first: the short form takes the beginning."""


def main(job: Job) -> None:
    turn = 0
    while job.more():
        for fault in FAULTS:
            if not job.more() or (job.form == "short" and job.violations):
                return
            if find(job, fault, job.seed + turn):
                job.count("faults found")
        turn += 1
        if job.violations:
            return


def find(job: Job, fault: Fault, seed: int) -> bool:
    """Run a job against a broken build; whether it says what is wrong."""
    words = [
        sys.executable, str(ROOT / "stress" / f"stress_{fault.job}.py"), "--seed", str(seed),
        "--budget", str(min(fault.budget, max(1.0, job.left))), "--set", f"break={fault.name}",
        "--set", "enough=1", "--evidence", str(job.folder / "evidence"),
    ]  # fmt: skip
    for option in fault.options:
        words += ["--set", option]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        report = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        job.violation(f"{fault.job} gives no report against {fault.name}")
        return False
    said = [text for text in report["examples"] if re.search(fault.finds, text)]
    if said and not said[0].startswith("the job itself has failed"):
        with (job.folder / "found.txt").open("a") as file:
            file.write(f"{fault.what}: {fault.job}: {said[0][:200]}\n")
        return True
    job.violation(
        f"{fault.what}: {fault.job} has not found it; done {report['done']} {report['unit']},"
        f" said {report['examples'][:2]}"
    )
    return False


if __name__ == "__main__":
    sys.exit(run(main, "faults found", short=2, usual=len(FAULTS)))
