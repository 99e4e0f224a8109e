"""Every job that has no part in the selftest, against broken builds that it must refuse.

A job that never fails proves nothing; here each of them fails once.
"""

from __future__ import annotations

import os
import sys

from harness.job import Job, run
from harness.mutation_runner import Fault, find_all

from hermes_actor.sqlite import wal_reset_safe

FAULTS = [
    Fault("a child goes on with the connection of its parent", "forks", "shared-connection",
          "refused|lost|doubled|mismatch|phantom|clients have ended|stuck"),
    Fault("a number that was used for something else is answered", "hostile", "no-digest",
          "number_used_twice"),
    Fault("only the decoder's own errors are expected", "fuzz_socket", "decode-errors-only",
          "utf-8|survive|answered|unexpected error"),
    Fault("who waits is told that its change was not executed, and it is", "stalls",
          "late-execution", "resurrected"),
    Fault("anybody may own the store", "double_start", "no-owner-lock",
          "owners|lost its place|lost|ended with"),
    Fault("nobody asks who pins the WAL", "long_readers", "no-holders", "pins the WAL"),
    Fault("receipts are forgotten when an actor ends", "failpoints", "forgetful", "doubled|torn",
          ("sandbox=10",)),
    Fault("answers leave before the commit", "soak", "reply-before-commit",
          "lost|stale|no-prefix"),
    Fault("leases that share a sync are answered before it", "strace_replay",
          "answered-before-sync", "lost", ("enough=1",)),
    Fault("no inode guard, and a stray open in the actor", "lock_loss", "no-guard",
          "lost|structure|malformed",
          ("only=a stray open and close; another opens to write",)),
    Fault("files are open to others", "security", "open-doors", "private_files"),
    Fault("a server acknowledges before its log is written", "providers", "relaxed-commits",
          "lost", ("kind=postgresql", "sandbox=6")),
    Fault("a broken-off pipeline is told no, and its changes are made", "client_faults",
          "told-no", "resurrected", ("only=vanish", "sandbox=3")),
    Fault("a reader that an exception has ended is waited for", "client_faults", "lost-reader",
          "stuck|has not returned", ("only=stop", "sandbox=2")),
    Fault("a damaged index stays as it is", "index_damage", "never-rebuilt",
          "searches do not find|has not returned", ("only=short leaves", "sandbox=1")),
    Fault("nobody looks whether an index was emptied", "index_damage", "trusted-watermark",
          "searches do not find|has not returned", ("only=made again", "sandbox=1")),
    Fault("a quiet client is taken for one that comes back", "quiet_clients", "old-floor",
          "OutcomeUnknown|swept"),
    Fault("large texts are indexed inside a transaction", "large_rows", "indexed-inside",
          "inside a transaction"),
    Fault("a statement may run for ever", "endless_statements", "endless",
          "do not go on|DeadlineExceeded"),
    Fault("whoever sends waits for the kernel", "backlogs", "blocking-sends",
          "has not returned", (), 120.0),
    Fault("who starts an actor waits with select", "backlogs", "few-descriptors",
          "filedescriptor out of range"),
    Fault("content is replaced in whatever state it is", "restores", "any-state", "lost",
          ("only=nothing",)),
    Fault("a restore that was given up is made later", "restores", "late-maintenance",
          "made later", ("only=given up",)),
    Fault("a reset leaves the old session open", "gateway", "reset-without-end",
          "open without a chat"),
    Fault("a turn that was lost still writes", "gateway", "token-not-compared",
          "a turn was entered", (), 120.0),
    Fault("a message is stored as often as it comes", "gateway", "doubled-deliveries",
          "a message is doubled"),
    Fault("a follower notes what it has not written", "gateway", "marked-before-written",
          "no prefix|differs from its rows", (), 120.0),
    Fault("a killed follower notes what it has not written", "transcripts", "marked-before-written",
          "no prefix|differs"),
    Fault("an expired session is finished by every watcher", "watchers", "claimed-by-all",
          "said twice"),
    Fault("an older index file replaces a newer one", "gateway", "index-without-lock",
          "differs from the routes", (), 120.0),
    Fault("commits of an agent store are not synced one by one", "crash_replay",
          "synchronous-normal", "lost", ("workload=agents",)),
    Fault("receipts of an agent store are written apart", "crash_replay", "receipt-apart",
          "cut after", ("workload=agents",)),
    Fault("answers to programs leave before the commit", "kill_loop", "reply-before-commit",
          "lost|stale|no-prefix", ("kind=plain", "sandbox=4")),
    Fault("receipts of a plain file are forgotten when an actor ends", "failpoints", "forgetful",
          "doubled|torn", ("kind=plain", "sandbox=10")),
    Fault("a plain file has two owners in a hand-off", "handoff_loop", "two-owners",
          "two owners", ("kind=plain", "sandbox=2")),
    Fault("commits of a plain file are not synced one by one", "crash_replay",
          "synchronous-normal", "lost", ("workload=plain",)),
    Fault("receipts of a plain file are written apart", "crash_replay", "receipt-apart",
          "cut after", ("workload=plain",)),
    Fault("an error of the disk of a plain file is passed over", "io_errors",
          "go-on-after-failed-sync", "lost|gap", ("kind=plain",)),
    Fault("the index file is written in place", "gateway", "index-in-place", "cannot be read"),
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
