"""Processes that write while something happens, and remember what was acknowledged."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hermes_actor.sqlite import connect_reader
from support.actors import folder_of, own, wait_for

_CODE = """
import json, os, select, sys
from pathlib import Path
from hermes_actor import SessionDB

path, folder, count, who = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


def write(name):
    told = {"acknowledged": [], "error": None}
    try:
        db = SessionDB(path, mode="actor")
        db.create_session(name, "cli")
        os.write(1, b".")
        # Until the other end of our input is closed.
        while not select.select([0], [], [], 0.002)[0]:
            told["acknowledged"].append(
                db.append_message(name, "user", str(len(told["acknowledged"])))
            )
            # What was acknowledged can be read.
            assert db.get_session(name)["message_count"] == len(told["acknowledged"])
        db.close()
    except BaseException as error:
        told["error"] = repr(error)
    folder.joinpath(name).write_text(json.dumps(told))


for number in range(count):
    if not os.fork():
        write(f"{who} {number}")
        os._exit(0)
for _ in range(count):
    os.wait()
"""


class Load:
    """Writers at work."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._path = path
        self._process = process
        self._folder = folder
        self.told: dict[str, Any] = {}

    def goes_on(self, changes: int = 30) -> None:
        """Wait until so many more changes are in the store."""
        reached = own(self._path, "commit_no") + changes
        wait_for(lambda: own(self._path, "commit_no") >= reached)

    def end(self) -> None:
        """Let all of them finish."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
            assert self._process.wait(100) == 0
            files = sorted(self._folder.iterdir())
            self.told = {file.name: json.loads(file.read_text()) for file in files}

    def check(self) -> None:
        """Nobody saw an error; what was acknowledged is there, once, in order, and nothing else."""
        self.end()
        assert {name: told["error"] for name, told in self.told.items()} == dict.fromkeys(self.told)
        sql = "SELECT id, content FROM messages WHERE session_id = ? ORDER BY id"
        with closing(connect_reader(self._path)) as conn:
            for name, told in self.told.items():
                expected = [(number, str(n)) for n, number in enumerate(told["acknowledged"])]
                assert conn.execute(sql, (name,)).fetchall() == expected, name
            assert conn.execute("PRAGMA quick_check").fetchall() == [("ok",)]


@contextmanager
def load(
    path: Path, writers: int = 3, python: str | Path = sys.executable, name: str = "writer"
) -> Iterator[Load]:
    """Processes that write for the time of the block; at its end all of it must be right.

    Their sessions are ``name 0``, ``name 1``, and so on.
    """
    with tempfile.TemporaryDirectory(prefix="hermes-actor-load-") as folder:
        process = subprocess.Popen(
            [str(python), "-P", "-c", _CODE, str(path), folder, str(writers), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with process:
            running = Load(path, process, Path(folder))
            try:
                assert process.stdout is not None
                for _ in range(writers):
                    assert process.stdout.read(1), "a writer has ended without a word"
                yield running
                running.check()
            finally:
                running.end()


def kill(path: Path, pid: int) -> None:
    """Kill a process that may have the store open, which cannot tell the end of that itself."""
    with (folder_of(path) / "log").open("a") as log:
        log.write(f"killed pid {pid}\n")
    os.kill(pid, signal.SIGKILL)


def owners(path: Path) -> list[tuple[str, int, float]]:
    """What the log says about the file: who opened and closed it, and who was gone when."""
    told = []
    for line in (folder_of(path) / "log").read_text().splitlines():
        if found := re.search(r"database (opened|closed) by pid (\d+) at ([\d.]+)$", line):
            told.append((found[1], int(found[2]), float(found[3])))
        elif found := re.search(r"killed pid (\d+)$", line):
            told.append(("killed", int(found[1]), 0.0))
        elif found := re.search(r"successor pid (\d+) has ended with", line):
            told.append(("ended", int(found[1]), 0.0))
    return told


def check_owners(path: Path) -> list[int]:
    """At no time did two processes have the file open; who had it, in order.

    A line is written before each opening and after each closing, all into one file.
    """
    owner, latest, order, killed = None, 0.0, [], set()
    for what, pid, at in owners(path):
        if what == "opened":
            assert owner is None or owner in killed, f"{pid} opened what {owner} had open"
            assert at > latest
            owner, latest = pid, at
            order.append(pid)
        elif what == "closed":
            assert owner == pid
            assert at > latest
            owner, latest = None, at
        else:
            killed.add(pid)
    return order
