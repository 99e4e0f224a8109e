"""Clients at work on a sandbox, and the verdict over what they have seen."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.actors import own
from support.ownership_log import check_owners

from harness import PYTHONPATH, ROOT
from harness.client import WORK, Options
from harness.job import Job
from harness.sandbox import Sandbox
from hermes_actor.testing.writer_pool import WriterPool

__all__ = ["OUT_OF_TIME", "Workload", "judge", "new_sandbox", "run_clients"]

_CHECK = ROOT / "stress" / "check_history.py"

OUT_OF_TIME = (
    "DeadlineExceeded", "LeaseLost", "OutcomeUnknown", "SpawnFailed",
    "OperationalError: database is locked", "OperationalError: outcome unknown",
    "OperationalError: unable to open database file",
)  # fmt: skip
"""What a change may end with while there are faults; each says whether it was executed."""


_ANSWER_SECONDS = 5.0
"""Time after a hand-off in which its clients connect again and have their answers."""


class Workload:
    """Processes of writers and readers. Their records lie in the folder ``history``."""

    def __init__(self, sandbox: Sandbox, seed: int, *, name: str = "", **options: Any) -> None:
        """*options*: numbers of clients by kind, and :class:`~harness.client.Options` of all."""
        self.sandbox = sandbox
        self.calm: float | None = None
        self._name, self._records = name, sandbox.folder / "history"
        counts = {"writers": 1, **options}
        options = {key: value for key, value in options.items() if key not in WORK}
        options["kind"] = sandbox.kind
        Options(**options)  # refuses an option that there is not
        self._pool = WriterPool(
            sandbox.path,
            self._records,
            seed=seed,
            actor_python=sandbox.python,
            environment={"PYTHONPATH": PYTHONPATH},
            setup="harness.client:prepare",
            errors=sandbox.folder / f"clients-{name}.log",
        )
        for kind, (letter, work) in WORK.items():
            if counts.get(kind):
                self._pool.add(counts[kind], work, prefix=f"{name}{letter}", **options)
        self._pool.spawn()

    def ready(self) -> None:
        """Wait until all of them are connected, and let them begin."""
        self._pool.wait_ready()
        self._pool.go()

    def last_words(self) -> str:
        """Return the end of what these processes have written to standard error."""
        return self._pool.last_words()

    def goes_on(self, changes: int = 20, timeout: float = 60.0) -> None:
        """Wait until so many more changes are in the file."""
        give_up, reached = time.monotonic() + timeout, None
        while True:
            # While the files are not what they should be, they cannot be read.
            with contextlib.suppress(sqlite3.Error):
                now = own(self.sandbox.path, "commit_no")
                reached = now + changes if reached is None else reached
                if now >= reached:
                    return
            if time.monotonic() > give_up:
                raise TimeoutError(f"no {changes} changes within {timeout:g} s")
            time.sleep(0.003)

    def everyone_returns(self, kind: str = "w", timeout: float = 60.0) -> None:
        """Wait until every worker of a kind has ended a call, or a look, that begins from now on.

        Raises ``TimeoutError`` if one of them does not.
        """
        now, give_up = time.monotonic(), time.monotonic() + timeout
        files = [*self._records.glob(f"{self._name}{kind}*")]
        while files:
            if returned(files[-1], now):
                files.pop()
                continue
            if time.monotonic() > give_up:
                raise TimeoutError(f"{files[-1].name} has not returned within {timeout:g} s")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal to all of these processes."""
        self._pool.signal(number)

    def stop_faults(self) -> None:
        """The faults are over: from now on every client must be answered in time (rule 16)."""
        self.calm = time.monotonic()

    def stop(self) -> int:
        """Let all of them finish; return the worst of their exit codes."""
        return self._pool.stop()

    def judge(self, job: Job, **options: Any) -> dict[str, Any]:
        """Stop clients and actors, then compare; violations go to the job. What was found.

        *options* are those of :func:`judge`.
        """
        code = self.stop()
        job.demand(code == 0, f"clients have ended with {code}: {self.last_words()[-300:]}")
        self.sandbox.end()
        return judge(job, self.sandbox, calm=self.calm, **options)


def returned(file: Path, since: float) -> bool:
    """Whether a call that began after *since* has ended, by the lines of its history."""
    begun = set()
    for line in file.read_text().splitlines():
        kind, word, *rest = line.split(" ", 3)
        if kind == "k" and float(word) > since:
            return True
        if kind == "i" and float(rest[0]) > since:
            begun.add(word)
        if kind in "ofu" and word in begun:
            return True
    return False


def judge(
    job: Job,
    sandbox: Sandbox,
    *,
    calm: float | None = None,
    gaps: bool = True,
    owners: bool = True,
    saved: bool = False,
    receipts: bool = True,
    copies: Sequence[Path] = (),
    excused: Sequence[str] = OUT_OF_TIME,
) -> dict[str, Any]:
    """Compare the history of a sandbox with its file, in a process and an SQLite of its own.

    *gaps*: the file was changed by these clients alone; *owners*: the log must show one owner
    at a time; *saved*: whether a change may be in a WAL that an owner has saved, instead. Without
    *receipts* the file does not show the order. A change may be in one of *copies* instead of the
    file. *excused* are errors that a change may end with; from *calm* on there is no excuse.
    """
    words = [
        sys.executable,
        str(_CHECK),
        str(sandbox.folder / "history"),
        str(sandbox.path),
        "--json",
    ]
    words += [] if calm is None else ["--calm", str(calm)]
    words += [] if gaps else ["--no-gaps"]
    words += [] if receipts else ["--no-receipts"]
    for copy in copies:
        words += ["--copy", str(copy)]
    if saved:
        for wal in sandbox.folder.glob(f"{sandbox.path.name}.orphan-wal.*"):
            words += ["--saved", str(wal)]
    done = subprocess.run(words, capture_output=True, text=True)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        job.violation(f"the history cannot be checked: {done.stderr[-500:]}")
        return {"counts": {}, "violations": [], "refusals": []}
    for text in _one_of_each_first(found["violations"]):
        job.violation(f"{sandbox.folder.name}: {text}")
    for text in found["refusals"]:
        # A timeout may end, and the caller sees that; nothing else may happen to a good change.
        if not any(word in text for word in excused) and not _was_under_way(sandbox, text):
            job.violation(f"{sandbox.folder.name}: refused: {text}")
    job.count("acknowledged", found["counts"]["acknowledged"])
    job.count("reads", found["counts"]["reads"])
    if owners:
        try:
            check_owners(sandbox.path)
        except AssertionError as error:
            job.violation(f"{sandbox.folder.name}: two owners: {error}")
    return found


def _was_under_way(sandbox: Sandbox, text: str) -> bool:
    """Return True if a change was on its way in a hand-off, and receipts were swept since its
    client had last heard of a commit: no actor knows then whether the old one has made it.

    Here receipts go after a hundred changes; elsewhere a client would have to be quiet for a
    hundred thousand, and then write in that moment.
    """
    found = re.search(r" at (\d+\.\d+) ", text)
    events = sandbox.folder / "events"
    if found is None or "its receipt has been swept" not in text or not events.exists():
        return False
    at = float(found[1])
    noted = map(str.split, events.read_text().splitlines())
    hand_offs = [(float(words[0]), float(words[1])) for words in noted if words[2:] == ["hand_off"]]
    return any(began <= at <= ended + _ANSWER_SECONDS for began, ended in hand_offs)


def _one_of_each_first(texts: list[str]) -> list[str]:
    """So that a hundred of one rule do not hide the one of another."""
    seen: dict[str, int] = {}

    def turn(text: str) -> int:
        rule = text.partition(":")[0]
        seen[rule] = seen.get(rule, 0) + 1
        return seen[rule]

    return [text for _, text in sorted((turn(text), text) for text in texts)]


@contextlib.contextmanager
def run_clients(sandbox: Sandbox, rng: random.Random, **options: Any) -> Iterator[Workload]:
    """Clients for the time of a block. The caller judges, inside or after it."""
    load = Workload(sandbox, rng.randrange(2**32), **options)
    try:
        load.ready()
        yield load
    finally:
        load.stop()


def new_sandbox(job: Job, **orders: str) -> Sandbox:
    """Another sandbox in the scratch folder of a job, of the kind that the job is run for."""
    number = len(list(Path(job.folder).glob("sandbox-*"))) + 1
    return Sandbox(job.folder / f"sandbox-{number}", job.kind, **orders)
