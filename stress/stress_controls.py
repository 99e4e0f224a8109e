"""Every job that has no part in the selftest, against one broken build that it must refuse.

A job that never fails proves nothing; here each of them fails once.
"""

from __future__ import annotations

import os
import sys

from programme.finding import Fault, find_all
from programme.job import Job, run

from hermes_actor.sqlite import wal_reset_safe

FAULTS = [
    Fault("a child goes on with the connection of its parent", "forks", "shared-connection",
          "refused|lost|doubled|mismatch|phantom|clients have ended"),
    Fault("a number that was used for something else is answered", "hostile", "no-digest",
          "number_used_twice"),
    Fault("only the decoder's own errors are expected", "fuzz_socket", "decode-errors-only",
          "utf-8|survive|answered"),
    Fault("who waits is told that its change was not executed, and it is", "stalls",
          "late-execution", "resurrected"),
    Fault("anybody may own the store", "double_start", "no-owner-lock",
          "owners|lost its place|lost|ended with"),
    Fault("nobody asks who pins the WAL", "long_readers", "no-holders", "pins the WAL"),
    Fault("receipts are forgotten when an actor ends", "failpoints", "forgetful", "doubled|torn",
          ("house=10",)),
    Fault("answers leave before the commit", "soak", "reply-before-commit",
          "lost|stale|no-prefix"),
    Fault("no inode guard, and a stray open in the actor", "lock_loss", "no-guard",
          "lost|structure|malformed",
          ("only=a stray open and close; another opens to write",)),
    Fault("files are open to others", "security", "open-doors", "private_files"),
    Fault("a server acknowledges before its log is written", "providers", "relaxed-commits",
          "lost", ("kind=postgresql", "house=6")),
]  # fmt: skip

if not wal_reset_safe():
    FAULTS.append(
        Fault("readers may write and checkpoint, on an SQLite without the repair", "wal_reset",
              "writing-readers", "lost|malformed|integrity")
    )  # fmt: skip
if os.geteuid() == 0:
    FAULTS.append(
        Fault("commits are left to the kernel", "power_cut_fs", "not-synced",
              "lost|no such table|malformed")
    )  # fmt: skip


def main(job: Job) -> None:
    find_all(job, FAULTS)


if __name__ == "__main__":
    sys.exit(run(main, "faults found", short=1, usual=len(FAULTS)))
