"""Many processes that write to one store while something is done to it, and the check afterwards.

::

    with WriterPool(path, folder) as pool:      # no process outlives the block
        pool.add(4).add(1, FOLLOW, prefix="reader-", writers="writer-*")
        pool.start()
        pool.go()
        ...                                     # kill, hand off, restore
        pool.wait_for_more()
    outcome = check(path, pool.recorded)

Every worker records what it sent and how it was answered in a file of its own in *folder*; see
:mod:`hermes_actor.testing.records`. The demonstration, the tests and the verification programme
use this pool; they differ in the work.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Self

from hermes_actor.sqlite import connect_reader
from hermes_actor.system.descriptors import is_readable
from hermes_actor.testing import history
from hermes_actor.testing.history import Write
from hermes_actor.testing.records import Look, Recorded, RecordReader, rows_by_id
from hermes_actor.testing.worker import DIED, WORD_BYTES, Group, Order

__all__ = ["FOLLOW", "WRITE", "History", "Look", "WriterPool", "check"]

WRITE = "hermes_actor.testing.worker:write"
"""Work: append messages, see :func:`~hermes_actor.testing.worker.write`."""
FOLLOW = "hermes_actor.testing.worker:follow"
"""Work: look for every acknowledged message, see :func:`~hermes_actor.testing.worker.follow`."""

_READY_SECONDS = 90.0
"""Ten interpreters that start together on a small machine."""
_STOP_SECONDS = 60.0
"""A worker may be in the middle of a call, which waits for 30 s."""


class WriterPool:
    """Workers of one store, a file or a URL. Their records lie in *folder*.

    *python* runs the workers; *actor_python*, if it is given, the actors that they start.
    *environment* is added to theirs; *path* are folders from which their work is imported, and
    *setup* names a function that is called once before they are forked. A worker that is not
    stopped is ended after *lifetime* seconds, if that is not 0.
    """

    def __init__(
        self,
        store: Path | str,
        folder: Path,
        *,
        seed: object = 0,
        python: Path | str = sys.executable,
        actor_python: Path | str = "",
        environment: Mapping[str, str] | None = None,
        path: tuple[Path | str, ...] = (),
        setup: str = "",
        lifetime: float = 0.0,
        errors: Path | None = None,
    ) -> None:
        self._order = Order(
            str(store),
            str(folder),
            str(seed),
            path=[str(one) for one in path],
            actor_python=str(actor_python),
            setup=setup,
            lifetime=int(lifetime),
        )
        self._python, self._environment = str(python), dict(environment or {})
        self._records = RecordReader(folder)
        self._errors = errors or folder.with_name(f"{folder.name}.stderr")
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = folder

    def add(
        self, count: int = 1, work: str = WRITE, *, prefix: str = "writer-", **options: Any
    ) -> Self:
        """Add *count* workers before :meth:`start`; *options* are those of their work."""
        self._order.groups.append(Group(prefix, count, work, options))
        return self

    @property
    def names(self) -> list[str]:
        """Names of all workers, which are the names of their files and sessions."""
        return [f"{g.prefix}{n}" for g in self._order.groups for n in range(g.count)]

    @property
    def pid(self) -> int:
        """Process id of the parent of the workers, and of their process group."""
        assert self._process is not None, "the pool is not started"
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # --- begin -----------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start the workers without waiting for them: see :meth:`wait_ready`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        order = json.dumps(asdict(self._order))
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [self._python, "-P", "-m", "hermes_actor.testing.worker", order],
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the caller alone
            )

    def wait_ready(self, timeout: float = _READY_SECONDS) -> None:
        """Wait until every worker is ready.

        Raises ``TimeoutError`` with the end of their standard error.
        """
        self._await_reports("does not come up", time.monotonic() + timeout)

    def start(self, timeout: float = _READY_SECONDS) -> None:
        """Start the workers, and wait until all are ready. Raises ``TimeoutError``."""
        self.spawn()
        self.wait_ready(timeout)

    def go(self, word: str = "go") -> None:
        """Let all workers begin; *word* is what :meth:`Worker.ready` returns to them."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(word.encode().ljust(WORD_BYTES))

    def _await_reports(self, fault: str, give_up: float) -> None:
        assert self._process is not None
        stdout = self._process.stdout
        assert stdout is not None
        for _ in self.names:
            if not is_readable(stdout, give_up - time.monotonic()) or stdout.read(1) in (b"", DIED):
                raise TimeoutError(f"a worker {fault}: {self.last_words()}")

    # --- meanwhile -------------------------------------------------------------------------------

    def poll(self) -> list[Write]:
        """Read the records since the last call; return the changes that have ended since."""
        return self._records.poll()

    @property
    def recorded(self) -> Recorded:
        """Everything that was recorded so far."""
        self.poll()
        return self._records.recorded

    @property
    def looks(self) -> list[Look]:
        """Looks of followers, up to the last :meth:`poll`."""
        return list(self._records.recorded.looks)

    def acknowledged(self) -> Counter[str]:
        """Return how many changes of each writer were acknowledged so far."""
        return Counter(write.client for write in self.recorded.writes if write.outcome == "ok")

    def wait_for_more(self, more: int = 3, timeout: float = 90.0) -> None:
        """Wait until every writer has got *more* acknowledgements. Raises ``TimeoutError``."""
        groups = [group for group in self._order.groups if group.work == WRITE]
        writers = [f"{group.prefix}{n}" for group in groups for n in range(group.count)]
        before, give_up = self.acknowledged(), time.monotonic() + timeout
        while any((now := self.acknowledged())[name] < before[name] + more for name in writers):
            if time.monotonic() > give_up:
                raise TimeoutError(f"no {more} more acknowledgements within {timeout:g} s: {now}")
            time.sleep(0.02)

    def wait_done(self, timeout: float) -> None:
        """Wait until every worker has reported :meth:`Worker.done`. Raises ``TimeoutError``."""
        self._await_reports("is not done", time.monotonic() + timeout)

    def signal(self, number: int) -> None:
        """Send a signal to the workers and their parent."""
        os.killpg(self.pid, number)

    def last_words(self) -> str:
        """Return the end of what the workers wrote to standard error."""
        with contextlib.suppress(OSError):
            return self._errors.read_text(errors="replace")[-2000:] or "nothing on standard error"
        return "nothing on standard error"

    # --- end -------------------------------------------------------------------------------------

    def stop(self, timeout: float = _STOP_SECONDS) -> int:
        """Have the workers finish their call and exit; kill them after *timeout* seconds.

        Returns the worst of their exit codes. May be called again.
        """
        if self._process is None:
            return 0
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code


class History(NamedTuple):
    """The acknowledgements of writers compared with the file, in numbers."""

    acknowledged: int
    present: int
    lost: int
    doubled: int
    out_of_order: int
    failed: int
    faults: list[str]
    """Everything else that is wrong."""


def check(db: Path, recorded: Recorded, *, sessions_of: str = "") -> History:
    """Compare the file with the records of its writers, by the rules of every history.

    Ids of messages are the order of changes here: receipts are gone once they are answered. With
    *sessions_of*, a prefix of their ids, sessions of other pools are left out.
    """
    with contextlib.closing(connect_reader(db)) as conn:
        conn.execute("BEGIN")  # one state: other pools may still write
        final = rows_by_id(conn, sessions_of)
    broken = Counter(
        violation.rule
        for violation in history.check(recorded.writes, final.rows, has_receipts=False)
    )
    faults = [*final.structure, *recorded.errors]
    if broken["phantom"]:
        faults.append(f"{broken['phantom']} messages are there that no writer has an answer for")
    faults += [f"a write has failed: {text}" for text in recorded.refusals[:3]]
    return History(
        acknowledged=sum(write.outcome == "ok" for write in recorded.writes),
        present=len(final.rows),
        lost=broken["lost"] + broken["altered"] + broken["mismatch"],
        doubled=broken["doubled"],
        out_of_order=broken["client-order"] + broken["real-time"],
        failed=len(recorded.refusals),
        faults=faults,
    )
