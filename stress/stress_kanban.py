"""The kanban board of the released agent program through ``connect()``, its actor under attack.

Six processes of unmodified code take tasks from creation to completion, each with a connection of
its own per step, while the actor of the board is killed and handed over again and again. Every task
must be done once, its events in order, and the file whole. A step that is rolled back because the
actor was lost, and others have changed what it had read, is made again: nothing of it may be there.
The same code on ``sqlite3`` damages its file, without anything being killed: it opens and closes
the database file by itself after each commit, which drops the locks of its process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from conformance.agent_programs import AGENT, environment
from conformance.stand_in import OURS
from harness.job import Job, run
from support.actors import actor_pid, end_actors

from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths

PROCESSES = 6
TASKS = 20

KILL_SECONDS, HANDOFF_SECONDS = 3.0, 1.0
"""Between two of them; at most, since the work may end before."""

EVENTS = ["created", "claimed", "commented", "completed"]


def main(job: Job) -> None:
    if not AGENT.is_dir():
        job.cannot("the agent program is not installed", goal=0)
        return
    tasks = int(job.options.get("tasks", 4 if job.form == "short" else TASKS))
    while job.more():
        home = job.folder / f"home-{job.done}"
        home.mkdir()
        one_board(job, home, tasks)


def one_board(job: Job, home: Path, tasks: int) -> None:
    path = home / "kanban.db"
    words = [sys.executable, "-P", "-m", "conformance.agent_programs", OURS, "work", str(path)]
    workers = [
        subprocess.Popen(
            [*words, f"worker-{number}", str(tasks)],
            env=environment(home),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        attack(job, path, workers)
        reports = [json.loads(worker.communicate()[0] or "{}") for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        end_actors(path)
    judge(job, path, reports, PROCESSES * tasks)


def attack(job: Job, path: Path, workers: list[subprocess.Popen[str]]) -> None:
    """Kill and hand over the actor for as long as any worker is at work."""
    began = time.monotonic()
    next_kill, next_handoff = began + KILL_SECONDS, began + HANDOFF_SECONDS
    while any(worker.poll() is None for worker in workers):
        time.sleep(0.02)
        pid, now = actor_pid(path), time.monotonic()
        if pid is None:
            continue
        if now >= next_kill:
            next_kill = now + KILL_SECONDS
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            job.count("kills")
        elif now >= next_handoff:
            next_handoff = now + HANDOFF_SECONDS
            with contextlib.suppress(HermesActorError, OSError):
                request_handoff(resolve_paths(path), sys.executable)
                job.count("hand-offs")


def judge(job: Job, path: Path, reports: list[dict[str, Any]], expected: int) -> None:
    done = [task for report in reports for task in report.get("done", [])]
    job.count("tasks", len(done))
    for report in reports:
        for what, number in report.get("counts", {}).items():
            job.count(what, number)
        for error in report.get("errors", ["a worker has ended without a report"]):
            job.violation(error)
    with contextlib.closing(sqlite3.connect(path)) as conn:
        (verdict,) = conn.execute("PRAGMA integrity_check").fetchone()
        job.demand(verdict == "ok", f"the file is damaged: {verdict}")
        states = dict(conn.execute("SELECT id, status FROM tasks"))
        events: dict[str, list[str]] = {}
        for task, kind in conn.execute("SELECT task_id, kind FROM task_events ORDER BY id"):
            events.setdefault(task, []).append(kind)
    job.demand(len(states) == expected, f"{len(states)} tasks, {expected} were created")
    for task in done:
        job.demand(states.get(task) == "done", f"{task} was completed and is {states.get(task)}")
        job.demand(events.get(task) == EVENTS, f"{task} has the events {events.get(task)}")


if __name__ == "__main__":
    sys.exit(run(main, "tasks", short=24, usual=240, also={"kills": 3, "hand-offs": 5}))
