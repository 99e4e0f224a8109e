"""Other programs open the file beside the actor, write to it, remove its WAL, replace it.

Bystanders at 100 Hz, the released peer with messages of its own, and three accidents: the WAL is
unlinked, the WAL and the shared memory are unlinked, the database is replaced by an older copy.
What was acknowledged stays; after a replacement, everything that was sent after it is in the file
that is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time

from harness import ROOT
from harness.foreign_process import KINDS
from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import new_sandbox, run_clients
from support.peer import FOLDER as PEER
from support.peer import peer

from hermes_actor.testing.records import final_state, load

BESIDE_SECONDS = 3.0
SHORT_SECONDS = 1.0

THEIRS = """
db = SessionDB(path)
db.create_session("theirs", "peer")
ids = [db.append_message("theirs", "user", f"theirs {n}") for n in range(int(sys.argv[2]))]
db.close()
tell(ids)
"""

PEER_MESSAGES = 20
"""In one visit. With an SQLite before 3.51.3 two programs that both checkpoint can meet its
WAL-reset race; few messages do not make the peer checkpoint."""


def main(job: Job) -> None:
    encounters = [bystanders, beside_the_peer, unlinked, unlinked_both, replaced]
    if "only" in job.options:
        encounters = [bystanders]
    while job.more():
        job.rng.shuffle(encounters)
        for encounter in encounters:
            if not job.more():
                break
            sandbox = new_sandbox(job)
            with sandbox.open():
                encounter(job, sandbox)
            job.count("encounters")


def bystanders(job: Job, sandbox: Sandbox) -> None:
    """All kinds at once, or ``--set only=KIND``."""
    kinds = [kind for kind in KINDS if job.options.get("only", kind) == kind]
    readers = int(job.options.get("readers", 2))
    with run_clients(sandbox, job.rng, writers=4, readers=readers, depth=8) as clients:
        others = {kind: start(kind, sandbox) for kind in kinds}
        pid = sandbox.serves()
        time.sleep(SHORT_SECONDS if job.form == "short" else BESIDE_SECONDS)
        for kind, other in others.items():
            told = json.loads(other.communicate(timeout=60)[0])
            job.count("openings", told["times"])
            job.demand(not told["failed"], f"{kind}: {told['errors']}")
        job.demand(sandbox.serves() == pid, f"beside {kinds} the actor has changed")
        clients.stop_faults()
        clients.judge(job)


def start(kind: str, sandbox: Sandbox) -> subprocess.Popen[str]:
    script = ROOT / "stress" / "harness" / "foreign_process.py"
    return subprocess.Popen(
        [sys.executable, str(script), kind, str(sandbox.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def beside_the_peer(job: Job, sandbox: Sandbox) -> None:
    """Both write; both find everything."""
    if not PEER.is_dir():
        raise FileNotFoundError(f"the peer is not in {PEER}; `make stress` puts it there")
    with run_clients(sandbox, job.rng, writers=3, readers=0, depth=4, pause=0.005) as clients:
        sandbox.serves()
        with peer(sandbox.path, THEIRS, PEER_MESSAGES) as running:
            ids = running.hear()
        clients.goes_on()
        clients.stop_faults()
        clients.judge(job)
    found = rows(sandbox, "SELECT id FROM messages WHERE session_id = 'theirs' ORDER BY id")
    job.demand(found == ids, f"the peer has written {ids} and {found} are there")
    job.count("messages of the peer", len(ids))


def rows(sandbox: Sandbox, sql: str) -> list[int]:
    with contextlib.closing(sqlite3.connect(f"file:{sandbox.path}?mode=ro", uri=True)) as conn:
        return [number for (number,) in conn.execute(sql)]


def unlinked_both(job: Job, sandbox: Sandbox) -> None:
    unlinked(job, sandbox, both=True)


def unlinked(job: Job, sandbox: Sandbox, *, both: bool = False) -> None:
    """No process has written to the file meanwhile, so all of it comes back."""
    with run_clients(sandbox, job.rng, writers=4, readers=0, depth=4) as clients:
        for _ in range(3):
            clients.goes_on(job.rng.randrange(1, 150))
            sandbox.serves()
            for file in (sandbox.paths.wal, sandbox.paths.shm)[: 2 if both else 1]:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file)
        clients.goes_on()
        clients.stop_faults()
        clients.judge(job, owners=False)


def replaced(job: Job, sandbox: Sandbox) -> None:
    """An older copy is restored over the file of a running actor."""
    copy = sandbox.folder / "copy.db"
    with run_clients(sandbox, job.rng, writers=4, readers=0, depth=4) as clients:
        clients.goes_on(100)
        with (
            contextlib.closing(sqlite3.connect(f"file:{sandbox.path}?mode=ro", uri=True)) as conn,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            conn.backup(target)
        clients.goes_on(100)
        copy.replace(sandbox.path)
        since = time.monotonic()
        # The numbers of changes begin again where the copy ends.
        sandbox.serves()
        clients.goes_on(50)
        clients.stop()
    sandbox.end()
    recorded = load(sandbox.folder / "history")
    with contextlib.closing(sqlite3.connect(f"file:{sandbox.path}?mode=ro", uri=True)) as conn:
        final = final_state(conn)
    there = [(row.client, row.number) for row in final.rows]
    sent = [write for write in recorded.writes if write.outcome == "ok" and write.began > since]
    lost = {(write.client, write.number) for write in sent} - set(there)
    job.count("acknowledged", len(sent))
    job.demand(not lost, f"{len(lost)} changes acknowledged after the replacement are gone: {lost}")
    job.demand(len(there) == len(set(there)), "changes are doubled after the replacement")
    for text in (*final.structure, *recorded.errors):
        job.violation(f"after the replacement: {text}")


if __name__ == "__main__":
    sys.exit(run(main, "encounters", short=5, usual=30))
