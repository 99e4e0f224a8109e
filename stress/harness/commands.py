"""Commands of the product that are run beside the clients of a sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.job import Job
from harness.sandbox import Sandbox

__all__ = ["backups", "begun", "keep_all_backups", "run_command"]

COMMAND_SECONDS = 120.0


def keep_all_backups(sandbox: Sandbox) -> None:
    """No copy is removed because there are newer ones: the verdict needs all of them."""
    (sandbox.folder / "config.yaml").write_text("updates:\n  backup_keep: 1000\n")


def backups(sandbox: Sandbox) -> list[Path]:
    """The copies of content that commands have replaced."""
    return sorted((sandbox.folder / "backups").glob("*.db"))


def _heed_signals() -> None:
    """A job that a shell runs in the background ignores Ctrl-C; its commands must not."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def begun(sandbox: Sandbox, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command for the time of a block; it is killed if it outlives that."""
    process = subprocess.Popen(
        [str(sandbox.python), "-m", "hermes_actor", str(words[0]), "--db", str(sandbox.path),
         *map(str, words[1:])],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "HERMES_HOME": str(sandbox.folder)}, preexec_fn=_heed_signals,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)


def run_command(job: Job, sandbox: Sandbox, *words: str | Path) -> dict[str, Any]:
    """A command that nothing disturbs must succeed; what it says."""
    with begun(sandbox, *words, "--json") as process:
        out, errors = process.communicate(timeout=COMMAND_SECONDS)
    if process.returncode:
        job.violation(f"{words[0]} has ended with {process.returncode}: {errors[-300:]}")
        return {}
    document: dict[str, Any] = json.loads(out)
    return document
