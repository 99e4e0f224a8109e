"""``restore`` and ``repair --swap`` in a loop, beside writers, with kills of either side.

Every change that was acknowledged is in the store, or in a copy of the content before that one of
the commands has made. A command that was given up while the actor stood still is never carried out
later.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness.commands import COMMAND_SECONDS, backups, begun, keep_all_backups, run_command
from harness.job import Job, run
from harness.nemesis import Nemesis
from harness.sandbox import Sandbox
from harness.workload import OUT_OF_TIME, Workload, new_sandbox, run_clients
from support.files import query

COMMANDS_PER_SANDBOX = 12

DISTURBANCES = ("given up", "nothing", "the command", "kill", "hand_off", "nothing")

ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        keep_all_backups(sandbox)
        with sandbox.open(), run_clients(sandbox, job.rng, writers=3, depth=8, pause=0.01) as load:
            load.goes_on(100)
            early = sandbox.folder / "early.db"
            run_command(job, sandbox, "backup", "--to", early)
            for _ in range(COMMANDS_PER_SANDBOX):
                if job.more():
                    load.goes_on(20)
                    one_command(job, sandbox, load, early)
                    job.count("commands")
            load.stop_faults()
            load.everyone_returns()
            load.judge(
                job, receipts=False, copies=backups(sandbox), excused=(*OUT_OF_TIME, "AlreadyOwned")
            )


def one_command(job: Job, sandbox: Sandbox, load: Workload, early: Path) -> None:
    kind = job.options.get("only", DISTURBANCES[job.done % len(DISTURBANCES)])
    words = ["restore", early] if job.rng.random() < 0.6 else ["repair", "--salvage", "--swap"]
    if kind == "given up":
        given_up(job, sandbox, load, early)
    elif kind == "nothing":
        run_command(job, sandbox, *words, "--yes")
    else:
        disturbed(job, sandbox, kind, [*words, "--yes"])


def disturbed(job: Job, sandbox: Sandbox, kind: str, words: list[str | Path]) -> None:
    """Whatever becomes of the command, it comes back; nothing is lost either way."""
    with begun(sandbox, *words) as process:
        time.sleep(job.rng.uniform(0.2, 1.5))
        if kind == "the command":
            process.send_signal(job.rng.choice(ENDS))
        else:
            Nemesis(sandbox, job.rng).strike(kind)
        try:
            process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            job.violation(f"{words[0]} does not come back after {kind}")
    job.count("disturbed")


def given_up(job: Job, sandbox: Sandbox, load: Workload, early: Path) -> None:
    """The actor stands still, the command says that it waits, and is ended."""
    before = identity(sandbox)
    with sandbox.stopped(), begun(sandbox, "restore", early, "--yes", "--no-backup") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "does not answer" in line:
                break
        process.send_signal(job.rng.choice(ENDS))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(COMMAND_SECONDS)
        job.demand(process.poll() is not None, "a restore that was ended does not end")
    # Whatever the actor has found in its sockets, it has dealt with it by then.
    load.goes_on(20)
    job.demand(identity(sandbox) == before, "a restore that was given up has been made later")
    job.count("given up")


def identity(sandbox: Sandbox) -> object:
    """Which content it is: every replacement gives it another name."""
    return query(sandbox.path, "SELECT value FROM hermes_actor_meta WHERE key = 'file_id'")


if __name__ == "__main__":
    sys.exit(run(main, "commands", short=4, usual=36))
