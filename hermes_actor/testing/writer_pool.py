"""The crew of the demonstration: what writers and readers do and record, and the check of it all.

A worker is a process of its own (``python -m hermes_actor.testing.writer_pool ORDER``). It says
"ready", begins with the first byte of its standard input and ends with the end of it, so also when
whoever started it dies. A writer records every answer in a file of its own, after it has got it. A
reader follows these files: what it finds there was acknowledged before its next read begins, so
that read must see it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from hermes_actor.client.reader import Reader
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths
from hermes_actor.session_db import SessionDB
from hermes_actor.sqlite import connect_reader
from hermes_actor.system.descriptors import is_readable
from hermes_actor.testing import history

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["History", "Look", "Record", "WriterPool", "check"]

_LOOK_SECONDS = 0.02
"""Between two looks of a reader."""
_PAUSE_SECONDS = 0.004
"""Mean pause of a writer between two writes: they are many, and none of them is a benchmark."""
_READY_SECONDS = 60.0
"""Ten interpreters that start together on a small machine."""
_STOP_SECONDS = 35.0
"""A worker may be in the middle of a call, which waits for 30 s."""

_WORDS = (
    "actor",
    "batch",
    "commit",
    "drain",
    "epoch",
    "frame",
    "index",
    "mailbox",
    "owner",
    "page",
)


@dataclass(frozen=True, slots=True)
class _Order:
    """What one worker is told."""

    kind: str
    """``write`` or ``read``."""
    name: str
    """A writer's session; also the name of the file that it leaves in *folder*."""
    db: str
    folder: str
    seed: str
    pause: float
    """Mean seconds between two writes, as a person or a model takes them; 0: none."""
    at_most: int
    """Seconds after which it is ended, whatever happens."""


class Record(NamedTuple):
    """One write, as its writer saw it. Times are of ``time.monotonic``."""

    number: int
    """Counts the writes of one writer."""
    ident: int | None
    """The id of the message; ``None`` if the write has failed."""
    text: str
    """What was written; why, if it has failed."""
    began: float
    ended: float


class Look(NamedTuple):
    """One read: how many acknowledged messages it looked for, and which it did not see."""

    compared: int
    missing: list[str]
    began: float
    ended: float


class _Tail:
    """What somebody else appends to a file, line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> list[Any]:
        """Every whole line since the last call, decoded."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


# --- in a worker ---------------------------------------------------------------------------------


def _ended(seconds: float) -> bool:
    """Pause. True if it is time to end: whoever started us has closed our standard input."""
    return is_readable(sys.stdin, seconds)


def _write(order: _Order, tell: Callable[[tuple[Any, ...]], None]) -> Iterator[None]:
    rng = random.Random(order.seed)
    db = SessionDB(Path(order.db))
    db.create_session(order.name, "cli")
    yield
    number = 0
    while not _ended(rng.expovariate(1 / order.pause) if order.pause else 0.0):
        text = f"{number} {' '.join(rng.choices(_WORDS, k=rng.randint(2, 12)))}"
        began = time.monotonic()
        try:
            ident: int | None = db.append_message(order.name, "user", text)
        except HermesActorError as error:
            ident, text = None, f"{type(error).__name__}: {error}"
        tell(Record(number, ident, text, began, time.monotonic()))
        number += 1
    db.close()


def _read(order: _Order, tell: Callable[[tuple[Any, ...]], None]) -> Iterator[None]:
    tails: dict[Path, _Tail] = {}
    reader = Reader(resolve_paths(Path(order.db)))
    yield
    while not _ended(_LOOK_SECONDS):
        for path in Path(order.folder).glob("writer-*"):
            tails.setdefault(path, _Tail(path))
        told = {
            record.ident: (path.name, record.text)
            for path, tail in tails.items()
            for record in (Record(*line) for line in tail.lines())
            if record.ident is not None
        }
        if told:
            began = time.monotonic()
            seen = reader.query(_messages, min(told), max(told))
            missing = [f"{told[n][0]} {told[n][1]}" for n in told if seen.get(n) != told[n]]
            tell(Look(len(told), missing, began, time.monotonic()))
    reader.close()


def _messages(conn: Connection, first: int, last: int) -> dict[int, tuple[str, str]]:
    sql = "SELECT id, session_id, content FROM messages WHERE id BETWEEN ? AND ?"
    return {ident: (session, text) for ident, session, text in conn.execute(sql, (first, last))}


def _recorder(file: TextIO) -> Callable[[tuple[Any, ...]], None]:
    def tell(record: tuple[Any, ...]) -> None:
        # In one piece, and at once: a reader may look for it from now on.
        file.write(json.dumps(record) + "\n")
        file.flush()

    return tell


def main() -> int:
    """Obey one order."""
    order = _Order(**json.loads(sys.argv[1]))
    signal.alarm(order.at_most)
    work = _write if order.kind == "write" else _read
    with (Path(order.folder) / order.name).open("w", encoding="utf-8") as file:
        steps = work(order, _recorder(file))
        next(steps)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        # One byte, and not through a buffer: the end of the pipe is waited for with poll.
        if os.read(sys.stdin.fileno(), 1):
            for _ in steps:
                pass
    return 0


# --- their parent ---------------------------------------------------------------------------------


class WriterPool:
    """Writers and readers of one store. Their records lie in *folder*."""

    def __init__(self, db: Path, folder: Path, seed: object, at_most: float) -> None:
        self._db, self._folder, self._seed, self._at_most = db, folder, seed, int(at_most) + 1
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._tails: dict[str, _Tail] = {}
        self.records: dict[str, list[Record]] = {}
        self.looks: list[Look] = []
        self.faults: list[str] = []

    def start(self, writers: int, readers: int = 0, pause: float = _PAUSE_SECONDS) -> None:
        """Start them, and wait until all are ready. Raises ``TimeoutError``."""
        self._folder.mkdir(parents=True, exist_ok=True)
        names = [f"writer-{n + 1}" for n in range(writers)]
        self.records = {name: [] for name in names}
        for name in (*names, *(f"reader-{n + 1}" for n in range(readers))):
            kind, seed = ("write" if name in names else "read"), f"{self._seed}-{name}"
            self._start(
                _Order(
                    kind, name, str(self._db), str(self._folder), seed, pause,
                    int(_READY_SECONDS + _STOP_SECONDS) + self._at_most,
                )
            )  # fmt: skip
        give_up = time.monotonic() + _READY_SECONDS
        for name, worker in self._workers.items():
            assert worker.stdout is not None
            ready = is_readable(worker.stdout, give_up - time.monotonic())
            if not ready or not worker.stdout.read(6):
                raise TimeoutError(f"{name} does not come up: {self._last_words(name)}")

    def _start(self, order: _Order) -> None:
        self._tails[order.name] = _Tail(self._folder / order.name)
        environment = {**os.environ, "HERMES_HOME": str(self._db.parent)}
        # An actor that nobody ends ends by itself.
        environment.setdefault("HERMES_ACTOR_IDLE_EXIT", "10")
        with (self._folder / f"stderr-{order.name}").open("wb") as errors:
            self._workers[order.name] = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, json.dumps(asdict(order))],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours alone
            )  # fmt: skip

    def go(self) -> None:
        """Let all of them begin."""
        for worker in self._workers.values():
            assert worker.stdin is not None
            with contextlib.suppress(OSError):
                worker.stdin.write(b"g")

    def poll(self) -> list[Record]:
        """Read what they have recorded since the last call; the new records of writers."""
        new = []
        for name, tail in self._tails.items():
            if name in self.records:
                found = [Record(*line) for line in tail.lines()]
                self.records[name] += found
                new += found
            else:
                self.looks += [Look(*line) for line in tail.lines()]
        return new

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Have all of them finish what they do and end; insist after *timeout* seconds."""
        for worker in self._workers.values():
            assert worker.stdin is not None
            worker.stdin.close()
        give_up = time.monotonic() + timeout
        for name, worker in self._workers.items():
            assert worker.stdout is not None
            try:
                code = worker.wait(max(0.0, give_up - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                code = worker.wait()
            worker.stdout.close()
            if code:
                self.faults.append(f"{name} has ended with {code}: {self._last_words(name)}")
        self._workers = {}

    def _last_words(self, name: str) -> str:
        with contextlib.suppress(OSError, IndexError):
            return (self._folder / f"stderr-{name}").read_text().splitlines()[-1]
        return "nothing"


class History(NamedTuple):
    """What the writers were told, and what the file says."""

    acknowledged: int
    present: int
    lost: int
    doubled: int
    out_of_order: int
    failed: int
    faults: list[str]
    """Whatever else is wrong with the file."""


def check(db: Path, records: dict[str, list[Record]]) -> History:
    """Compare the file with the records of the writers, by the rules of every history.

    The ids of messages are the order of changes here: receipts are gone once they are answered.
    """
    rows, faults = _look(db, list(records))
    writes = [_as_write(session, record) for session, told in records.items() for record in told]
    broken = Counter(
        violation.rule for violation in history.check(writes, rows, has_receipts=False)
    )
    if broken["phantom"]:
        faults.append(f"{broken['phantom']} messages are there that no writer has an answer for")
    failed = [record.text for told in records.values() for record in told if record.ident is None]
    faults += [f"a write has failed: {text}" for text in failed[:3]]
    return History(
        acknowledged=len(writes) - len(failed),
        present=len(rows),
        lost=broken["lost"] + broken["altered"] + broken["mismatch"],
        doubled=broken["doubled"],
        out_of_order=broken["client-order"] + broken["real-time"],
        failed=len(failed),
        faults=faults,
    )


def _look(db: Path, sessions: list[str]) -> tuple[list[history.Row], list[str]]:
    """Every message of the writers, and what else is wrong with the file."""
    rows, faults = [], []
    with contextlib.closing(connect_reader(db)) as conn:
        for session in sessions:
            found = conn.execute(
                "SELECT id, content FROM messages WHERE session_id = ?", (session,)
            ).fetchall()
            rows += [
                history.Row(ident, session, int(text.partition(" ")[0]), _hash(text), ident)
                for ident, text in found
            ]
            counted = conn.execute("SELECT message_count FROM sessions WHERE id = ?", (session,))
            if counted.fetchall() != [(len(found),)]:
                faults.append(f"the counter of {session} does not fit its {len(found)} messages")
        verdict = conn.execute("PRAGMA quick_check").fetchone()[0]
    if verdict != "ok":
        faults.append(f"quick_check: {verdict}")
    return rows, faults


def _as_write(session: str, record: Record) -> history.Write:
    number, ident, text, began, ended = record
    if ident is None:
        return history.Write(session, number, None, began, ended, "unknown")
    return history.Write(session, number, _hash(text), began, ended, "ok", ident, ident)


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())


if __name__ == "__main__":
    sys.exit(main())
