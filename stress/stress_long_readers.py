"""Readers that hold a snapshot for long while many write.

Writes go on, the status names who pins the WAL, and when the reader leaves the WAL becomes short
again by itself.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time

from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import Workload, new_sandbox, run_clients

from hermes_actor import limits
from hermes_actor.client.control import ask_status
from hermes_protocol.status import Status

HOLD_CHANGES = 1500
SHORT_CHANGES = 300
HOLDS_PER_SANDBOX = 5


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        with (
            sandbox.open(),
            run_clients(sandbox, job.rng, writers=4, readers=2, depth=16) as clients,
        ):
            for _ in range(HOLDS_PER_SANDBOX):
                if job.more():
                    hold(job, sandbox, clients)
                    job.count("holds")
            clients.stop_faults()
            clients.stop()
            becomes_short(job, sandbox)
            clients.judge(job)


def hold(job: Job, sandbox: Sandbox, clients: Workload) -> None:
    pid, changes = sandbox.serves(), SHORT_CHANGES if job.form == "short" else HOLD_CHANGES
    with contextlib.closing(sqlite3.connect(f"file:{sandbox.path}?mode=ro", uri=True)) as conn:
        conn.isolation_level = None
        conn.execute("BEGIN")
        ((seen,),) = conn.execute("SELECT COUNT(*) FROM messages")
        clients.goes_on(changes)
        status = named(sandbox)
        job.demand(status is not None, "no status names the process that pins the WAL")
        job.demand(
            status is not None and status.pid == pid, "the actor has changed while a reader held it"
        )
        again = conn.execute("SELECT COUNT(*) FROM messages").fetchone()
        job.demand(again == (seen,), "a snapshot has changed")
        job.count("frames pinned", 0 if status is None else status.wal.frames)
        conn.execute("ROLLBACK")


def named(sandbox: Sandbox) -> Status | None:
    """The status that names us; the next checkpoint finds out who is in its way."""
    give_up = time.monotonic() + 15
    while time.monotonic() < give_up:
        status = ask_status(sandbox.paths)
        if status and any(str(os.getpid()) in text for text in status.degraded):
            return status
        time.sleep(0.05)
    return None


def becomes_short(job: Job, sandbox: Sandbox) -> None:
    """The quiet file of an actor that still serves gets a short WAL."""
    sandbox.serves()
    give_up = time.monotonic() + 30
    while sandbox.paths.wal.exists() and (size := sandbox.paths.wal.stat().st_size) > 0:
        if time.monotonic() > give_up:
            job.violation(f"the WAL still has {size} bytes, long after the last reader has left")
            return
        time.sleep(0.05)
    assert limits.TRUNCATE_AFTER_IDLE_SECONDS < 30


if __name__ == "__main__":
    sys.exit(run(main, "holds", short=1, usual=20))
