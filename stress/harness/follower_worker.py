"""A follower of transcripts under test: each is a child of this process, which may be killed.

    python -m harness.follower_worker DATABASE PYTHON

Each line on the standard input is a step. A child brings the transcripts up to date and kills
itself at that step of its own; the answer is ``killed`` or ``done``. The steps are before and after
each write of a file, in the middle of it, and before and after the mark of how far it has come.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.mutations import break_client
from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionStore, transcripts

STEPS = 12
"""More than one file and its mark have; later steps are those of the next files."""


class Steps:
    """Counts the steps of one process, and ends it at the last one."""

    def __init__(self, last: int) -> None:
        self._left = last

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, change: Callable[..., None]) -> Callable[..., None]:
        """Return *change* with a step before and after it."""

        def changed(*words: Any) -> None:
            self()
            change(*words)
            self()

        return changed


def follow(database: Path, last: int) -> None:
    """Bring the transcripts up to date, and be killed at step *last*."""
    step = Steps(last)
    append, replace = transcripts._append, transcripts._replace

    def append_in_parts(path: Path, size: int, data: bytes) -> None:
        step()
        append(path, size, data[: len(data) // 2])  # ends in the middle of a line
        step.around(append)(path, size, data)

    def replace_after_a_part(path: Path, data: bytes) -> None:
        step()
        path.with_suffix(".jsonl.tmp").write_bytes(data[: len(data) // 2])
        step.around(replace)(path, data)

    changed: Any = transcripts
    changed._append, changed._replace = append_in_parts, replace_after_a_part
    changed.Transcripts._mark = step.around(changed.Transcripts._mark)
    with SessionDB(database, timeout=60) as db:
        store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
        store.transcripts.catch_up()
        store.close()


def main() -> None:
    database, sys.executable = Path(sys.argv[1]), sys.argv[2]
    break_client()
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            follow(database, int(line))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: "done", -signal.SIGKILL: "killed"}.get(code, f"ended with {code}"), flush=True)


if __name__ == "__main__":
    main()
