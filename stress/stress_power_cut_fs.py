"""Power cuts of a real file system: ext4 on an image, under the unmodified actor at full load.

The actor is stopped for a moment, the image is copied as the disk has it then, without what is
only in the memory of the kernel, and the copy is mounted as after a power cut: ext4 replays its
journal, SQLite its WAL. Everything that was answered before the actor was stopped must
be there, as a beginning of the one order of changes, and nothing twice.

It needs root and loop devices. Where they are missing nothing is done, and the report says so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import run_clients
from support.actors import wait_for

from hermes_actor.testing.history import NEVER, Write
from hermes_actor.testing.records import final_state, judge, load

IMAGE_MB = 64
CHANGES_PER_CUT = 10
"""At least, before each."""
CUTS_PER_IMAGE = 25
"""Then a new one: the file grows with every change, and so does the time of a verdict."""


def quiet(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


@contextlib.contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    # Its journal is committed by syncs alone, never by the kernel in the middle of a copy.
    quiet("mount", "-o", "loop,commit=600", image, folder)
    try:
        yield folder
    finally:
        quiet("umount", folder)


def missing() -> str | None:
    """What this machine does not have, if anything."""
    if os.geteuid() != 0:
        return "only root can mount an image"
    if not shutil.which("mkfs.ext4", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"):
        return "mkfs.ext4 is not installed"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return None


def main(job: Job) -> None:
    why = missing()
    if why is not None:
        job.cannot(why, goal=0)
        return
    number = 0
    while job.more():
        number += 1
        with tempfile.TemporaryDirectory(prefix="hermes-stress-image-", dir=_memory()) as folder:
            image = Path(folder) / "image"
            with image.open("wb") as file:
                file.truncate(IMAGE_MB << 20)
            quiet("mkfs.ext4", "-q", "-F", image)
            with mounted(image, job.folder / f"disk-{number}") as disk:
                # What the clients write down is not on the disk that fails.
                records = job.folder / f"history-{number}"
                records.mkdir()
                sandbox = Sandbox(disk / "sandbox")
                (sandbox.folder / "history").symlink_to(records)
                cut_often(job, sandbox, image, number)


def _memory() -> str | None:
    """Copies of an image are quick there; what is synced and what is not is the same."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def cut_often(job: Job, sandbox: Sandbox, image: Path, number: int) -> None:
    with sandbox.open(), run_clients(sandbox, job.rng, writers=4, readers=0, depth=4) as clients:
        clients.goes_on(10)
        for cut in range(CUTS_PER_IMAGE):
            if not job.more():
                break
            clients.goes_on(CHANGES_PER_CUT)
            time.sleep(job.rng.random() * 0.08)
            pid = sandbox.serves()
            os.kill(pid, signal.SIGSTOP)
            try:
                wait_for(partial(at_rest, pid))
                stopped = time.monotonic()
                told = job.folder / f"told-{number}-{cut}"
                shutil.copytree(sandbox.folder / "history", told)
                copy = image.with_name("copy")
                quiet("cp", "--sparse=always", image, copy)
                # It stands still until the verdict: or else the disk would fill up meanwhile.
                look(job, copy, told, stopped, f"disk {number}, cut {cut}")
            finally:
                os.kill(pid, signal.SIGCONT)
            job.count("cuts")
        clients.stop_faults()
        clients.judge(job)


def at_rest(pid: int) -> bool:
    """Whether no thread is inside a call to the disk any more."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


def look(job: Job, image: Path, told: Path, stopped: float, where: str) -> None:
    """Compare what is left after the cut with what had been answered before it."""
    before = len(job.violations)
    files = job.folder / "after-the-cut"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir()
    with mounted(image, job.folder / "mounted") as disk:
        for name in ("state.db", "state.db-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(disk / "sandbox" / name, files / name)
    recorded = load(told)
    recorded = recorded._replace(writes=[as_of(write, stopped) for write in recorded.writes])
    try:
        with contextlib.closing(sqlite3.connect(files / "state.db")) as conn:
            final = final_state(conn)
    except sqlite3.Error as error:
        job.violation(f"{where}: {type(error).__name__}: {error}")
        return
    for violation in judge(recorded, final):
        job.violation(f"{where}: {violation}")
    if len(job.violations) == before:
        job.count("replies before a cut", sum(write.outcome == "ok" for write in recorded.writes))
        shutil.rmtree(told)


def as_of(write: Write, stopped: float) -> Write:
    """What was still under way when the power went may be there or not."""
    if write.outcome == "ok" and write.ended <= stopped:
        return write
    return write._replace(outcome="unknown", ended=NEVER, place=None, result=None)


if __name__ == "__main__":
    sys.exit(run(main, "cuts", short=3, usual=100))
