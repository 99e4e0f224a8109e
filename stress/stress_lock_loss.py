"""Locks that are lost and files that go away, and whether the inode guard sees it in time (R3).

Closing any descriptor of a file drops the locks of its process. So a stray open in the actor, or a
second copy of SQLite there, lets the next program that comes and goes remove the WAL under it.
Seven cases are of this kind: four in which changes would be lost, and three that only look like
them. The others are files that are taken away. Clients write all the while, and in the end the
owner is killed, as it would else checkpoint a WAL that it alone can see. Whatever happens,
every acknowledged change is there in the end, once and in order; where nothing was lost, the owner
must not be disturbed.

One thing no guard can prevent: once the locks are gone, what was committed and acknowledged between
the last page that the other program checkpoints and its removal of the WAL is not in the database.
Such a change must be in the WAL that the owner has saved, and the owner must have said so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import new_sandbox, run_clients

VISITS = 5
"""How often the other program opens and closes; the owner may be just committing."""

GO_ON_SECONDS = 15.0
"""Within which clients get on by themselves, with the next owner if need be."""

VISITOR = """
import contextlib, sqlite3, sys
for _ in range(int(sys.argv[2])):
    with contextlib.closing(sqlite3.connect(sys.argv[1], uri=True, timeout=5)) as conn:
        with contextlib.suppress(sqlite3.Error):
            conn.execute("SELECT COUNT(*) FROM messages").fetchall()
"""


def read_write(sandbox: Sandbox) -> None:
    """Another program opens for reading and writing, reads, and closes."""
    _visit(f"file:{sandbox.path}")


def read_only(sandbox: Sandbox) -> None:
    _visit(f"file:{sandbox.path}?mode=ro")


def _visit(uri: str) -> None:
    subprocess.run([sys.executable, "-c", VISITOR, uri, str(VISITS)], check=True, timeout=60)


def raw(sandbox: Sandbox) -> None:
    """Another process opens and closes all three files without SQLite."""
    for file in (sandbox.path, sandbox.paths.wal, sandbox.paths.shm):
        for _ in range(VISITS):
            with contextlib.suppress(FileNotFoundError):
                os.close(os.open(file, os.O_RDWR))


def unlink_shm(sandbox: Sandbox) -> None:
    sandbox.paths.shm.unlink(missing_ok=True)


def move_shm(sandbox: Sandbox) -> None:
    with contextlib.suppress(FileNotFoundError):
        sandbox.paths.shm.rename(sandbox.folder / "moved-shm")


def move_wal(sandbox: Sandbox) -> None:
    with contextlib.suppress(FileNotFoundError):
        sandbox.paths.wal.rename(sandbox.folder / "moved-wal")


def unlink_lock(sandbox: Sandbox) -> None:
    sandbox.paths.owner_lock.unlink(missing_ok=True)


class Case(NamedTuple):
    """A mistake in the actor, if any, and what others do then."""

    stray: str
    others: Callable[[Sandbox], None]
    disturbs: bool
    """Whether the files are not the same any more afterwards, so that the guard must see it."""


CASES = {
    "nothing; another opens to write": Case("", read_write, False),
    "a stray open and close; another opens to write": Case("raw", read_write, True),
    "a stray open and close; another reads": Case("raw", read_only, False),
    "a second SQLite; another opens to write": Case("second-copy", read_write, True),
    "a second SQLite that reads; another opens to write": Case("second-copy-ro", read_write, True),
    "a second SQLite; another reads": Case("second-copy", read_only, True),
    "a second connection; another opens to write": Case("same-copy", read_write, False),
    "a stray open of the WAL; another opens to write": Case("raw-wal", read_write, False),
    "a stray open of the shared memory; another opens to write": Case("raw-shm", read_write, True),
    "another opens and closes every file": Case("", raw, False),
    "the shared memory is removed": Case("", unlink_shm, True),
    "the shared memory is moved away": Case("", move_shm, True),
    "the WAL is moved away": Case("", move_wal, True),
    "the lock file is removed": Case("", unlink_lock, True),
}


def main(job: Job) -> None:
    names = [name for name in CASES if job.options.get("only", name) == name]
    if job.form == "short":
        names = names[:2]
    while job.more():
        job.rng.shuffle(names)
        for name in names:
            if job.more():
                sandbox = new_sandbox(job)
                sandbox.order(HERMES_STRESS_STRAY=str(sandbox.folder / "stray"))
                with sandbox.open():
                    play(job, sandbox, name, CASES[name])
                job.count("cases")


def play(job: Job, sandbox: Sandbox, name: str, case: Case) -> None:
    """Before and after it, clients write. No reader: its locks would keep the WAL in its place."""
    before = len(job.violations)
    with run_clients(sandbox, job.rng, writers=3, readers=0, depth=4) as clients:
        clients.goes_on(job.rng.randrange(20, 120))
        pid = sandbox.serves()
        files = known(sandbox)
        if case.stray:
            sign = sandbox.folder / "stray"
            _put(sign, case.stray)
            clients.goes_on(1)
            while sign.exists():
                time.sleep(0.002)
        case.others(sandbox)
        try:
            clients.goes_on(timeout=GO_ON_SECONDS)
        except TimeoutError:
            job.violation("what clients write is not in the file that others see")
        same = known(sandbox) == files and sandbox.serves() == pid
        job.demand(
            case.disturbs or same,
            f"{name}: the files or the owner are not the same any more",
        )
        if not same:
            job.count("noticed")
        elif case.disturbs:
            job.count("no harm done")
        # What is only in a WAL that no other process can see goes with its owner.
        sandbox.kill(sandbox.serves())
        clients.stop_faults()
        with contextlib.suppress(TimeoutError):
            clients.goes_on(1, timeout=GO_ON_SECONDS)
        found = clients.judge(job, owners=False, saved=bool(case.stray))
        saved = found["counts"].get("saved", 0)
        job.count("in a saved WAL", saved)
        told = sandbox.log_count("acknowledged changes are in")
        job.demand(told > 0 or not saved, f"nobody tells of {saved} changes in a saved WAL")
    for at in range(before, len(job.violations)):
        job.violations[at] = f"{name}: {job.violations[at]}"


def known(sandbox: Sandbox) -> list[tuple[int, int] | None]:
    """Which files are there. Looked at by path only: this process has none of them open."""
    found: list[tuple[int, int] | None] = []
    for file in (sandbox.path, sandbox.paths.wal, sandbox.paths.shm, sandbox.paths.owner_lock):
        try:
            stat = file.stat()
            found.append((stat.st_dev, stat.st_ino))
        except FileNotFoundError:
            found.append(None)
    return found


def _put(file: os.PathLike[str], text: str) -> None:
    """At once: the process that sees it reads all of it."""
    new = f"{file}.new"
    with open(new, "w") as written:
        written.write(text)
    os.replace(new, file)


if __name__ == "__main__":
    sys.exit(run(main, "cases", short=2, usual=len(CASES)))
