"""Processes as cron makes them: open, write one turn, close, hundreds of times.

They must not cost more than they do: one actor serves all of them, nothing of them stays behind in
it, and none of them ever touches the WAL the way a writer does.
"""

import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.actors import actor_pid, actors_of, descriptors, own, wait_for
from support.processes import run_python

from hermes_actor import SessionDB

PROCESSES = 300 if os.environ.get("HERMES_ACTOR_LONG") else 120
AT_A_TIME = 8

TURN = """
import os, sys
from pathlib import Path
from hermes_actor import SessionDB

path, name = Path(sys.argv[1]), sys.argv[2]
db = SessionDB(path, mode="actor")
db.create_session(name, "cron")
db.append_message(name, "user", "question")
db.append_message(name, "assistant", "answer")
db.end_session(name, "done")
rows = [row["content"] for row in db.get_messages(name)]
modes = set()
for entry in os.listdir("/proc/self/fd"):
    try:
        target = os.readlink(f"/proc/self/fd/{entry}")
        with open(f"/proc/self/fdinfo/{entry}") as file:
            flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
    except OSError:
        continue
    if target == str(path):
        modes.add(flags & os.O_ACCMODE)
db.close()
# A checkpoint writes into the database, so whoever has it open for reading only makes none.
assert modes == {os.O_RDONLY}, modes
assert rows == ["question", "answer"], rows
"""


class Watch(threading.Thread):
    """Looks, all the time, which files are behind the names of the WAL."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._names = [f"{path}-wal", f"{path}-shm"]
        self._enough = threading.Event()
        self.seen: Counter[tuple[str, int | None]] = Counter()

    def run(self) -> None:
        while not self._enough.wait(0.002):
            for name in self._names:
                try:
                    inode = os.stat(name).st_ino
                except FileNotFoundError:
                    inode = None
                self.seen[name, inode] += 1

    def end(self) -> None:
        self._enough.set()
        self.join()


def run_turns(path: Path, numbers: range) -> None:
    def run(number: int) -> None:
        subprocess.run([sys.executable, "-c", TURN, str(path), f"turn {number}"], check=True)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        list(pool.map(run, numbers))


@pytest.mark.slow
@pytest.mark.timeout(120 * PROCESSES // 100)
def test_nothing_of_them_stays_behind(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.set_meta("here", "since the beginning")
        watch = Watch(path)
        watch.start()
        try:
            run_turns(path, range(PROCESSES // 3))
            early = alone(db)
            held = Counter(map(kind, descriptors(early["pid"])))
            run_turns(path, range(PROCESSES // 3, PROCESSES))
            late = alone(db)
        finally:
            watch.end()
        assert late["pid"] == early["pid"] == actor_pid(path)
        assert late["epoch"] == early["epoch"] == own(path, "epoch") == 1
        assert actors_of(path) == {late["pid"]}
        assert late["commit_no"] == own(path, "commit_no") == 4 * PROCESSES + 1
        # No process has removed the WAL, or begun another one.
        assert len(watch.seen) == 2
        assert all(inode is not None for _, inode in watch.seen)
        assert late["checkpoints"].get("passive.complete", 0) > 0
        # Nothing is left of those who are gone.
        assert late["queue"]["count"] == late["queue"]["bytes"] == 0
        assert Counter(map(kind, descriptors(late["pid"]))) == held
        wait_for(lambda: receipts(db) == 1)


def alone(db: SessionDB) -> dict[str, Any]:
    """How the actor is, once every other connection is gone."""

    def look() -> dict[str, Any] | None:
        found = db._port.statistics()
        return found if [c["pid"] for c in found["connections"]] == [os.getpid()] else None

    return wait_for(look)


def receipts(db: SessionDB) -> int:
    return db._conn.execute("SELECT COUNT(*) FROM hermes_actor_receipts").fetchone()[0]


def kind(descriptor: str) -> str:
    """What a descriptor leads to, without the number that sockets and pipes have."""
    return descriptor.split(":")[0]


SILENT = """
import os, sys
from pathlib import Path
from support.subprocess_env import tell
from support.concurrent import together
from hermes_actor import SessionDB

path = Path(sys.argv[1])


def work(number):
    db = SessionDB(path, mode="actor")
    db.create_session(f"silent {number}", "cron")
    os.kill(os.getpid(), 9) if number % 2 else os._exit(0)


tell(together(40, work))
"""


def test_those_who_leave_without_a_word_leave_no_connection(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.set_meta("k", "v")
        before = Counter(map(kind, descriptors(actor_pid(path))))
        assert run_python(SILENT, path) == [None] * 40
        alone(db)
        assert Counter(map(kind, descriptors(actor_pid(path)))) == before
        # Their receipts are kept, one each, because they may come back.
        assert receipts(db) == 41
    assert own(path, "epoch") == 1
