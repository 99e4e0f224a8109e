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

from programme.commands import COMMAND_SECONDS, backups, begun, keep_all_backups, run_command
from programme.house import House
from programme.job import Job, run
from programme.nemesis import Nemesis
from programme.workload import OUT_OF_TIME, Workload, at_work, new_house
from support.files import query

COMMANDS_PER_HOUSE = 12

DISTURBANCES = ("given up", "nothing", "the command", "kill", "hand_off", "nothing")

ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(job: Job) -> None:
    while job.more():
        house = new_house(job)
        keep_all_backups(house)
        with house.open(), at_work(house, job.rng, writers=3, depth=8, pause=0.01) as load:
            load.goes_on(100)
            early = house.folder / "early.db"
            run_command(job, house, "backup", "--to", early)
            for _ in range(COMMANDS_PER_HOUSE):
                if job.more():
                    load.goes_on(20)
                    one_command(job, house, load, early)
                    job.count("commands")
            load.nothing_more_happens()
            load.everyone_returns()
            load.judge(
                job, receipts=False, copies=backups(house), excused=(*OUT_OF_TIME, "AlreadyOwned")
            )


def one_command(job: Job, house: House, load: Workload, early: Path) -> None:
    kind = job.options.get("only", DISTURBANCES[job.done % len(DISTURBANCES)])
    words = ["restore", early] if job.rng.random() < 0.6 else ["repair", "--salvage", "--swap"]
    if kind == "given up":
        given_up(job, house, load, early)
    elif kind == "nothing":
        run_command(job, house, *words, "--yes")
    else:
        disturbed(job, house, kind, [*words, "--yes"])


def disturbed(job: Job, house: House, kind: str, words: list[str | Path]) -> None:
    """Whatever becomes of the command, it comes back; nothing is lost either way."""
    with begun(house, *words) as process:
        time.sleep(job.rng.uniform(0.2, 1.5))
        if kind == "the command":
            process.send_signal(job.rng.choice(ENDS))
        else:
            Nemesis(house, job.rng).strike(kind)
        try:
            process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            job.violation(f"{words[0]} does not come back after {kind}")
    job.count("disturbed")


def given_up(job: Job, house: House, load: Workload, early: Path) -> None:
    """The actor stands still, the command says that it waits, and is ended."""
    before = identity(house)
    with house.stopped(), begun(house, "restore", early, "--yes", "--no-backup") as process:
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
    job.demand(identity(house) == before, "a restore that was given up has been made later")
    job.count("given up")


def identity(house: House) -> object:
    """Which content it is: every replacement gives it another name."""
    return query(house.path, "SELECT value FROM hermes_actor_meta WHERE key = 'file_id'")


if __name__ == "__main__":
    sys.exit(run(main, "commands", short=4, usual=36))
