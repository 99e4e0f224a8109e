"""Clients at work on a sandbox, and the verdict over what they have seen."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.actors import own
from support.load import check_owners

from harness import PYTHONPATH, ROOT
from harness.client import Order
from harness.job import Job
from harness.sandbox import Sandbox

__all__ = ["OUT_OF_TIME", "Workload", "judge", "new_sandbox", "run_clients"]

_CLIENT = ROOT / "stress" / "harness" / "client.py"
_CHECK = ROOT / "stress" / "check_history.py"

OUT_OF_TIME = ("DeadlineExceeded", "OutcomeUnknown", "SpawnFailed")
"""What a change may end with while there are faults; each says whether it was executed."""

_READY_SECONDS = 90.0
_STOP_SECONDS = 60.0
"""A worker may be in the middle of a call, whose timeout is 30 s."""


class Workload:
    """Processes of writers and readers. Their records lie in the folder ``history``."""

    def __init__(self, sandbox: Sandbox, seed: int, **options: Any) -> None:
        """*options* are those of :class:`~harness.client.Order`."""
        self.sandbox = sandbox
        self.calm: float | None = None
        self._records = sandbox.folder / "history"
        self._records.mkdir(exist_ok=True)
        self._errors = sandbox.folder / f"clients-{options.get('name', '')}.log"
        order = Order(
            str(sandbox.path), str(self._records), str(sandbox.python),
            **{"name": "", "seed": seed, **options},
        )  # fmt: skip
        self._name = order.name
        self._workers = sum(
            (order.writers, order.readers, order.keepers, order.holders, order.visitors)
        )
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_CLIENT), json.dumps(order._asdict())],
                env={**os.environ, "PYTHONPATH": PYTHONPATH},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
                start_new_session=True,
            )  # fmt: skip

    def ready(self) -> None:
        """Wait until all of them work."""
        give_up = time.monotonic() + _READY_SECONDS
        assert self._process.stdout is not None
        for _ in range(self._workers):
            timeout = max(0.0, give_up - time.monotonic())
            if not select.select([self._process.stdout], [], [], timeout)[0] or (
                not self._process.stdout.read(1)
            ):
                raise TimeoutError(f"a client does not come up: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what these processes have said on standard error."""
        return self._errors.read_text()[-2000:] or "it has said nothing"

    def goes_on(self, changes: int = 20, timeout: float = 60.0) -> None:
        """Wait until so many more changes are in the file."""
        give_up, reached = time.monotonic() + timeout, None
        while True:
            # While the files are not what they should be, nobody can look.
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
        os.killpg(self._process.pid, number)

    def stop_faults(self) -> None:
        """The faults are over: from now on everybody must be answered in time (rule 16)."""
        self.calm = time.monotonic()

    def stop(self) -> int:
        """Let all of them finish; the worst of their exit codes."""
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            return self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            return self._process.wait()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()

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

    *gaps*: whether nobody else has changed the file; *owners*: whether the log must show one owner
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
        # Patience may end, and then the caller is told; nothing else may happen to a good change.
        if not any(word in text for word in excused):
            job.violation(f"{sandbox.folder.name}: refused: {text}")
    job.count("acknowledged", found["counts"]["acknowledged"])
    job.count("reads", found["counts"]["reads"])
    if owners:
        try:
            check_owners(sandbox.path)
        except AssertionError as error:
            job.violation(f"{sandbox.folder.name}: two owners: {error}")
    return found


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
    """Another sandbox in the scratch folder of a job."""
    number = len(list(Path(job.folder).glob("sandbox-*"))) + 1
    return Sandbox(job.folder / f"sandbox-{number}", **orders)
