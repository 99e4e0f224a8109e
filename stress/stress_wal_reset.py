"""The WAL-reset race of SQLite before 3.51.3: one owner does not meet it, whatever SQLite it has.

The race needs two connections that both checkpoint: one commit begins the WAL again while the other
connection still believes in the old one. The window is made wide: the second process has a large
mapping of the file, which SQLite takes down inside the call. Every round puts a commit of the
owner that begins the WAL again into that window, and checks that all acknowledged is there.

Half of the rounds are the product: its engine on the standard ``sqlite3``, and beside it a reader
of the product that tries to checkpoint as well and is refused. The other half are two plain
writing connections of an SQLite that has the repair, which must hold too. Two of an SQLite without
it lose their rows in the first rounds: that is the control, ``--set break=writing-readers``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import sqlite3
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import apsw
from harness.job import Job, run

from hermes_actor.engine.checkpoint import Action
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import connect_reader, connect_writer, wal_reset_safe
from hermes_protocol.operations import MessageAppend, MessageRow, SessionCreate

MAPPED_MB = 150
"""Of the file that the second process has mapped; taking that down is the width of the window."""

MOST_DELAY_SECONDS = 1e-3
"""By up to this the commit comes after the beginning of the window."""

WANTED_INSIDE = 0.75
"""The share of rounds whose commit must lie in the window: 150 of 200."""

GO, READY, BEGAN, ENDED, DONE = range(5)
"""What the two processes tell each other: numbers of rounds, and two times."""

Shown = Callable[[], Any]


class Board:
    """Numbers that two processes share."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)

    def __getitem__(self, what: int) -> float:
        number: float = struct.unpack_from("d", self._memory, what * 8)[0]
        return number

    def __setitem__(self, what: int, number: float) -> None:
        struct.pack_into("d", self._memory, what * 8, number)

    def wait(self, what: int, number: float) -> None:
        """Wait for the report. If the other one ends instead, it is infinity."""
        while self[what] < number:
            time.sleep(0)
        if self[what] == float("inf"):
            raise EOFError("the second process has ended")


class Owner(Protocol):
    """Who writes and checkpoints."""

    def write(self, changes: int) -> list[int]:
        """Commit so many changes; what was acknowledged."""

    def checkpoint(self) -> None: ...

    def close(self) -> None: ...


class ProductOwner:
    """The engine, as an actor uses it."""

    beside = "one owner"

    def __init__(self, path: Path) -> None:
        self._writer = Writer(resolve_paths(path))
        self._acknowledged(SessionCreate(id="s", source="cli", started_at=1.0))

    def _acknowledged(self, *operations: Any) -> list[int]:
        outcomes = self._writer.run_batch([Request(operation) for operation in operations])
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return [outcome.result for outcome in outcomes]

    def write(self, changes: int) -> list[int]:
        row = MessageRow(role="user", timestamp=1.0, content="x" * 900)
        return self._acknowledged(*[MessageAppend(session_id="s", message=row)] * changes)

    def checkpoint(self) -> None:
        self._writer.checkpointer.run(Action.PASSIVE, 1.0)

    def close(self) -> None:
        self._writer.close()

    ROWS = "SELECT id FROM messages"

    @staticmethod
    def second(path: Path) -> Any:
        """A reader of the product; in the control one that may write."""
        broken = os.environ.get("HERMES_STRESS_BREAK") == "writing-readers"
        return connect_writer(path) if broken else connect_reader(path)


class PlainOwner:
    """A connection that writes and another that checkpoints, of an SQLite with the repair."""

    beside = "two writers with the repair"

    def __init__(self, path: Path) -> None:
        self._writer, self._folder = self.second(path), self.second(path)
        self._writer.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, content)")
        self._next = 0

    def write(self, changes: int) -> list[int]:
        first = self._next + 1
        for self._next in range(first, first + changes):
            self._writer.execute("INSERT INTO messages VALUES (?, randomblob(900))", (self._next,))
        return list(range(first, first + changes))

    def checkpoint(self) -> None:
        self._folder.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        self._writer.close()
        self._folder.close()

    ROWS = "SELECT id FROM messages"

    @staticmethod
    def second(path: Path) -> Any:
        conn = apsw.Connection(str(path))
        conn.set_busy_timeout(5000)
        conn.execute("PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 0").fetchall()
        return conn


def fill(path: Path, megabytes: int) -> None:
    """A file that is large to map."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as conn:
        for setting in ("journal_mode = WAL", "synchronous = OFF"):
            conn.execute(f"PRAGMA {setting}").fetchall()
        conn.execute("BEGIN")
        conn.execute("CREATE TABLE filler (id INTEGER PRIMARY KEY, v BLOB)")
        for number in range(megabytes):
            conn.execute("INSERT INTO filler VALUES (?, zeroblob(1000000))", (number,))
        conn.execute("COMMIT")


def stand_beside(board: Board, connect: Shown) -> None:
    """The second process: in every round it tries to checkpoint, then it reads."""
    conn = connect()
    conn.execute(f"PRAGMA mmap_size = {2 << 30}").fetchall()
    turn = 0
    while True:
        turn += 1
        conn.execute("SELECT MAX(substr(v, 999999)) FROM filler").fetchall()
        board[READY] = turn
        while board[GO] < turn:
            time.sleep(0)
        if board[GO] == float("inf"):
            return
        board[BEGAN] = time.perf_counter()
        with contextlib.suppress(sqlite3.Error, apsw.Error):
            conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        conn.execute("SELECT COUNT(*) FROM sqlite_master").fetchall()
        board[ENDED] = time.perf_counter()
        board[DONE] = turn


@contextlib.contextmanager
def second_process(connect: Shown) -> Iterator[Board]:
    """Beside this one, which has no connection open yet: SQLite must not be carried over a fork."""
    board = Board()
    child = os.fork()
    if not child:
        try:
            stand_beside(board, connect)
        finally:
            board[READY] = board[DONE] = float("inf")
            os._exit(0)
    try:
        yield board
    finally:
        board[GO] = float("inf")
        os.waitpid(child, 0)


@contextlib.contextmanager
def quick_folder(job: Job) -> Iterator[Path]:
    """In memory where that is possible, or else syncs would take longer than the window is open."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hermes-stress-wal_reset-", dir=memory) as folder:
        yield Path(folder)
        if job.violations:
            shutil.copytree(folder, job.folder / "files", dirs_exist_ok=True)


def play(job: Job, kind: type[ProductOwner | PlainOwner], rounds: int) -> None:
    with quick_folder(job) as folder:
        _play(job, kind, rounds, folder / "state.db")


def _play(job: Job, kind: type[ProductOwner | PlainOwner], rounds: int, path: Path) -> None:
    fill(path, MAPPED_MB)
    inside = done = 0
    with second_process(lambda: kind.second(path)) as board:
        owner = kind(path)
        with contextlib.closing(owner), contextlib.closing(kind.second(path)) as reader:
            acknowledged: set[int] = set()
            for done in range(1, rounds + 1):
                if not job.more():
                    break
                try:
                    delay = job.rng.random() * MOST_DELAY_SECONDS
                    inside += one_round(board, owner, done, acknowledged, delay)
                    lost = acknowledged - {ident for (ident,) in reader.execute(kind.ROWS)}
                except (sqlite3.Error, apsw.Error, EOFError) as error:
                    job.violation(f"{kind.beside}: round {done}: {type(error).__name__}: {error}")
                    break
                if lost:
                    job.violation(f"{kind.beside}: round {done}: {len(lost)} changes are lost")
                    break
                job.count("rounds")
            job.count("acknowledged", len(acknowledged))
    job.count("commits in the window", inside)
    if job.form != "short" and done == rounds:
        enough = inside >= WANTED_INSIDE * rounds
        job.demand(enough, f"{kind.beside}: only {inside} of {rounds} commits in the window")
    look_again(job, kind, path, acknowledged)


def one_round(board: Board, owner: Owner, turn: int, acknowledged: set[int], delay: float) -> bool:
    """Whether the commit that begins the WAL again lay in the window."""
    board.wait(READY, turn)
    acknowledged.update(owner.write(20))
    owner.checkpoint()
    asked = time.perf_counter()
    board[GO] = turn
    while board[BEGAN] < asked and board[DONE] < turn:
        pass
    until = time.perf_counter() + delay
    while time.perf_counter() < until:
        pass
    began = time.perf_counter()
    acknowledged.update(owner.write(1))
    ended = time.perf_counter()
    acknowledged.update(owner.write(1))
    board.wait(DONE, turn)
    was_inside = board[BEGAN] < began and ended < board[ENDED]
    acknowledged.update(owner.write(6))
    owner.checkpoint()
    acknowledged.update(owner.write(1))
    return was_inside


def look_again(
    job: Job, kind: type[ProductOwner | PlainOwner], path: Path, acknowledged: set[int]
) -> None:
    """When all are gone, with the SQLite that has the repair."""
    try:
        with contextlib.closing(apsw.Connection(str(path))) as conn:
            lost = acknowledged - {ident for (ident,) in conn.execute(kind.ROWS)}
            ((found,),) = conn.execute("PRAGMA integrity_check(1)")
    except apsw.Error as error:
        job.violation(f"{kind.beside}: {type(error).__name__}: {error}")
        return
    job.demand(not lost, f"{kind.beside}: {len(lost)} changes are lost in the end")
    job.demand(found == "ok", f"{kind.beside}: integrity_check: {found}")


def main(job: Job) -> None:
    kinds: list[type[ProductOwner | PlainOwner]] = [ProductOwner]
    repaired = tuple(map(int, apsw.sqlite_lib_version().split(".")))
    if wal_reset_safe(repaired) and "break" not in job.options:
        kinds.append(PlainOwner)
    while job.more():
        for kind in kinds:
            play(job, kind, 1000 if job.long else int(job.goal) // len(kinds))


if __name__ == "__main__":
    sys.exit(run(main, "rounds", short=8, usual=400))
