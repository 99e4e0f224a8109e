"""The real actor on a disk without room, with a limit on its files, and out of descriptors.

A small tmpfs that fills up and grows again, ``RLIMIT_FSIZE`` and ``RLIMIT_NOFILE`` that are set and
lifted while the actor runs. Clients must get typed errors that tell the truth, go on when the fault
has ended, and lose nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from disks.raw_client import Hand, History
from disks.verdict import Broken, Judge
from harness.job import Job, run
from support.actor_process import served
from support.wire import Wire

SMALL, LARGE = 2 << 20, 64 << 20
"""Bytes of the tmpfs before and after it has grown."""

MANY = 40
"""Clients that come when there are no descriptors left."""

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


@contextlib.contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[Path]:
    """A file system of so many bytes, for the time of the block."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "x", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


def grow(folder: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)


def full_disk(job: Job, history: History, path: Path, chance: random.Random) -> None:
    """Write until there is no room; when there is some again, everything goes on by itself."""
    with served(path) as actor, Hand(path, history, "ann") as ann:
        ann.begin()
        ann.write_until_refused(chance, 4000)
        codes = history.codes - {"disk-full"}
        job.demand(not codes, f"a full disk shows as {codes}")
        job.demand(actor.lives, f"a full disk has ended the actor: {actor.last_words()[-300:]}")
        with Hand(path, history, "bob") as bob:
            # Another client learns the same, and none waits for ever.
            bob.try_to_begin()
        grow(path.parent, LARGE)
        with Hand(path, history, "cyd") as cyd:
            cyd.begin()
            cyd.must_write("there is room again")
        ann.must_write("here, too")


def file_size(job: Job, history: History, path: Path, chance: random.Random) -> None:
    """Files may not grow: the actor refuses, or stops as after any failed write (R2)."""
    with served(path) as actor:
        with Hand(path, history, "ann") as ann:
            ann.begin()
            for _ in range(chance.randrange(40)):
                ann.must_write("walrus " * chance.randrange(300))
            wal = path.with_name(f"{path.name}-wal")
            limit = max(path.stat().st_size, wal.stat().st_size) + chance.randrange(20_000)
            resource.prlimit(actor.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            ann.write_until_refused(chance, 4000)
        if actor.lives and not ann.cut_off:
            resource.prlimit(actor.pid, resource.RLIMIT_FSIZE, UNLIMITED)
            _goes_on(history, path)
            return
        job.demand(actor.exit_code() in (6, 71), f"it has ended with {actor.exit_code()}")
    job.count("stopped")
    with served(path):
        _goes_on(history, path)


def _goes_on(history: History, path: Path) -> None:
    with Hand(path, history, "ann") as ann:
        ann.send_again()
        ann.must_write("the limit is gone")


def descriptors(job: Job, history: History, path: Path, chance: random.Random) -> None:
    """No descriptor is left for newcomers: clients already here are served, and they are, later."""
    with served(path) as actor, Hand(path, history, "ann") as ann:
        ann.begin()
        ann.must_write("walrus")
        used = len(os.listdir(f"/proc/{actor.pid}/fd"))
        before = resource.prlimit(actor.pid, resource.RLIMIT_NOFILE)
        limit = (used + chance.randrange(5), before[1])
        resource.prlimit(actor.pid, resource.RLIMIT_NOFILE, limit)
        with contextlib.ExitStack() as stack:
            many = [stack.enter_context(Wire(path, greet=False)) for _ in range(MANY)]
            for _ in range(20):
                ann.must_write("salt " * chance.randrange(200))
            resource.prlimit(actor.pid, resource.RLIMIT_NOFILE, before)
            for wire in many:
                wire.sock.settimeout(30)
                wire.send({**_HELLO, "client_id": os.urandom(16)})
                wire.expect_welcome()
        job.demand(actor.lives, "the actor has ended")
        ann.must_write("pepper")


_HELLO = {
    "t": "hello", "magic": "hermes-actor", "oldest": 1, "newest": 1, "features": [],
    "name": "late", "pid": 1, "build": "0",
}  # fmt: skip

Case = Callable[[Job, History, Path, random.Random], None]

CASES: dict[str, Case] = {
    "full disk": full_disk,
    "file size": file_size,
    "descriptors": descriptors,
}


def main(job: Job) -> None:
    turn = 0
    while job.more():
        for name, case in CASES.items():
            chance = random.Random(f"{job.seed} {turn} {name}")
            with contextlib.ExitStack() as stack:
                home = job.folder / f"{turn}-{name.replace(' ', '-')}"
                if case is full_disk:
                    stack.enter_context(tmpfs(home, SMALL))
                else:
                    home.mkdir()
                _one(job, name, case, home / "state.db", chance)
            job.count("cases")
        turn += 1


def _one(job: Job, name: str, case: Case, path: Path, chance: random.Random) -> None:
    history = History()
    try:
        case(job, history, path, chance)
        Judge(path.parent).judge_files(path, history.promises())
    except (Broken, AssertionError, subprocess.SubprocessError, OSError) as error:
        job.violation(f"{name}: {type(error).__name__}: {error}")
    job.count("acknowledged", len(history.acks))
    job.count("refused", history.refusals)


def in_namespace() -> None:
    """Mounting needs privileges; a namespace of our own has them."""
    if os.geteuid() != 0 and "HERMES_STRESS_MOUNTS" not in os.environ:
        os.environ["HERMES_STRESS_MOUNTS"] = "1"
        words = ["unshare", "--map-root-user", "--mount", sys.executable, *sys.argv]
        os.execvp(words[0], words)


if __name__ == "__main__":
    in_namespace()
    sys.exit(run(main, "cases", short=3, usual=18))
