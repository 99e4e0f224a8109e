"""Many services start at one moment on one store, beside clients that start one on demand.

Exactly one owns the store, the others say so and leave, and none of them disturbs the socket of
the one that serves. Rounds end by a drain or by ``kill -9``, which leaves a stale socket.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import Any

from harness import ROOT
from harness.job import Job, run
from harness.sandbox import Sandbox
from harness.workload import new_sandbox, run_clients

from hermes_actor import exit_codes

AT_ONCE = 20
ROUNDS_PER_SANDBOX = 20

OWNER_ENDS_SECONDS = 5.0
"""After which an owner that has given up its lock must have ended."""

HERD_ENDS_SECONDS = 100.0

HERD = """
import json, logging, os, sys
sys.path[:0] = sys.argv[3:]
from support.concurrent import together
from harness.entry import keep_receipts
keep_receipts()
from harness.mutations import break_build
break_build(os.environ.get("HERMES_STRESS_BREAK", ""))
import hermes_actor.actor.process
from hermes_actor.cli import run
logging.basicConfig(level=logging.INFO)
answers = together(int(sys.argv[2]), lambda number: run(["serve", "--db", sys.argv[1], "--plain"]))
print(json.dumps(answers))
"""


def main(job: Job) -> None:
    while job.more():
        sandbox = new_sandbox(job)
        with (
            sandbox.open(),
            run_clients(sandbox, job.rng, writers=3, readers=1, pause=0.01) as load,
        ):
            for _ in range(ROUNDS_PER_SANDBOX):
                if not job.more():
                    break
                round_(job, sandbox)
                job.count("starts", AT_ONCE)
                job.count("rounds")
                load.goes_on(10)
            load.stop_faults()
            load.judge(job)


def round_(job: Job, sandbox: Sandbox) -> None:
    old = sandbox.serves()
    with sandbox.paths.log.open("a") as log:
        herd = subprocess.Popen(
            [sys.executable, "-P", "-c", HERD, str(sandbox.path), str(AT_ONCE),
             str(ROOT / "stress")],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    # While it starts the one that serves ends, so that all of them compete for its place.
    time.sleep(job.rng.uniform(0.2, 0.8))
    gently = job.rng.random() < 0.5
    if gently:
        os.kill(old, signal.SIGTERM)
    else:
        sandbox.kill(old)
    winner = sandbox.serves(other_than=old)
    # Time for a loser to do harm, then the winner must still be there, alone and reachable.
    time.sleep(job.rng.uniform(0.0, 0.3))
    job.demand(sandbox.serves() == winner, f"pid {winner} has lost its place")
    together = owners(sandbox)
    job.demand(len(together) == 1, f"two owners: {sorted(together)} own the store at one time")
    told, answers = end_all(sandbox, herd)
    codes = [None if answer is None else answer["value"] for answer in answers]
    wrong = [code for code in codes if code not in (exit_codes.OK, exit_codes.ALREADY_RUNNING)]
    job.demand(not wrong, f"services that found an owner have ended with {wrong}")
    ended = codes.count(exit_codes.OK)
    job.demand(ended <= len(told), f"{ended} services were owners, and {len(told)} of them served")


def end_all(sandbox: Sandbox, herd: subprocess.Popen[str]) -> tuple[set[int], list[Any]]:
    """End those of the herd that serve: the winner, and one that comes so late that the winner has
    left its place free. Who they were, and what each of the herd has ended with."""
    told: set[int] = set()
    give_up = time.monotonic() + HERD_ENDS_SECONDS
    while True:
        pid = sandbox.serves()
        if pid not in told and descends(pid, herd.pid):
            told.add(pid)
            os.kill(pid, signal.SIGTERM)
        try:
            return told, json.loads(herd.communicate(timeout=0.1)[0].splitlines()[-1])
        except subprocess.TimeoutExpired:
            if time.monotonic() > give_up:
                raise


def owners(sandbox: Sandbox) -> set[int]:
    """Who has said that it owns the store and lives. An old one may need a moment to end."""
    give_up = time.monotonic() + OWNER_ENDS_SECONDS
    while True:
        said = re.findall(r"pid (\d+) owns", sandbox.paths.log.read_text(errors="replace"))
        alive = {pid for pid in map(int, said) if lives(pid)}
        if len(alive) == 1 or time.monotonic() > give_up:
            return alive
        time.sleep(0.02)


def lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descends(pid: int, parent: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1]) == parent
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(run(main, "rounds", short=2, usual=20))
