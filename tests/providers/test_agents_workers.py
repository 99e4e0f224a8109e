"""Eight workers take 500 due schedules, and some of them are killed with what they hold (A7)."""

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict

import pytest
from support import servers
from support.actors import actor_pid, end_actors, wait_for
from support.agent_stores import START
from support.stores import SERVERS, chosen_kinds

from hermes_actor import AgentStore
from hermes_actor.agents.times import after
from hermes_protocol.agents import AgentsCopy

KINDS = [kind for kind in chosen_kinds() if kind != "embedded"]  # workers are processes
DUE, WORKERS, LEASE_SECONDS = 500, 8, 4.0

WORKER = """
import os, sys, time
from pathlib import Path
from hermes_actor import AgentStore
from hermes_actor.errors import Conflict, HermesActorError

target, log, name, lease, how = sys.argv[1:]
log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*words):
    os.write(log, (" ".join(map(str, words)) + "\\n").encode())


with AgentStore.global_(Path(target) if target.startswith("/") else target, timeout=60) as store:
    print("ready", flush=True)
    while True:
        try:
            claimed = store.schedules.claim(name, lease_seconds=float(lease), limit=3)
        except Conflict:  # a race that the server has decided
            continue
        for one in claimed:
            run = one["run"]
            note("claimed", run["agent_id"], run["schedule_id"], run["id"], name)
        if claimed and how == "stand":
            print("standing", flush=True)
            time.sleep(600)
        for one in claimed:
            run = one["run"]
            try:
                store.schedules.complete(run["agent_id"], run["id"], name, "completed")
            except Conflict:
                note("lost", run["agent_id"], run["schedule_id"], run["id"], name)
            else:
                note("completed", run["agent_id"], run["schedule_id"], run["id"], name)
        if not claimed:
            if all(one["status"] != "active" for one in store.schedules.list_all()):
                break
            time.sleep(0.2)
"""


@pytest.fixture
def target(kind, tmp_path, monkeypatch):
    """The name of a store with so many schedules that are due."""
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "60")
    name = servers.new_store(kind) if kind in SERVERS else str(tmp_path / "agents.db")
    with AgentStore.global_(name if kind in SERVERS else tmp_path / "agents.db") as store:
        times = {"created_at": START, "updated_at": START, "next_run_at": START, "run_at": START}
        rows = [
            {"agent_id": f"a{n % 7}", "schedule_id": f"s{n:03}", "type": "once", "prompt": "p",
             **times} for n in range(DUE)
        ]  # fmt: skip
        store.submit(AgentsCopy(table="schedules", rows=rows))
    yield name
    if kind not in SERVERS:
        end_actors(tmp_path / "agents.db")


def start(target, log, number, how="go"):
    words = [str(target), str(log), f"w{number}", str(LEASE_SECONDS), how]
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, *words], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout.readline() == "ready\n"
    return worker


def kill(worker):
    worker.kill()
    worker.wait()
    worker.stdout.close()


def lines_of(log):
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_claims_are_disjoint_and_lost_ones_are_claimed_once_more(kind, target, tmp_path):
    log = tmp_path / "history"
    standing = [start(target, log, number, "stand") for number in range(2)]
    for worker in standing:
        assert worker.stdout.readline() == "standing\n"
    workers = [start(target, log, number) for number in range(2, WORKERS)]
    for worker in standing:
        kill(worker)
    # Killed wherever they are, and followed by others; so is the actor.
    for number in range(2):
        seen = len(lines_of(log))
        wait_for(lambda: len(lines_of(log)) > seen + 100 or workers[-1].poll() is not None)  # noqa: B023
        kill(workers.pop(0))
        workers.append(start(target, log, WORKERS + number))
    if kind == "actor":
        with contextlib.suppress(ProcessLookupError):
            os.kill(actor_pid(tmp_path / "agents.db"), signal.SIGKILL)
    for worker in workers:
        assert worker.wait(120) == 0
        worker.stdout.close()
    check(kind, target, tmp_path, lines_of(log))


def check(kind, target, tmp_path, lines):
    """Judge the history of the workers by the rows of the store."""
    with AgentStore.global_(target if kind in SERVERS else tmp_path / "agents.db") as store:
        runs, schedules = store.rows("schedule_runs"), store.schedules.list_all()
    assert Counter(one["status"] for one in schedules) == {"completed": DUE}
    assert {one["run_count"] for one in schedules} == {1}
    # Claims are disjoint: no run has two workers, and a run is written once for each claim.
    holders = Counter(run for what, _, _, run, _ in lines if what == "claimed")
    assert set(holders.values()) == {1}
    assert {int(run) for run in holders} <= {run["id"] for run in runs}
    ended = {int(run): what for what, _, _, run, _ in lines if what != "claimed"}
    by_schedule = defaultdict(list)
    for run in sorted(runs, key=lambda one: one["id"]):
        by_schedule[run["agent_id"], run["schedule_id"]].append(run)
    assert len(by_schedule) == DUE
    lost = 0
    for history in by_schedule.values():
        *expired, last = history
        assert last["status"] == "completed"
        assert ended.get(last["id"], "completed") == "completed"
        for run, follower in zip(expired, history[1:], strict=True):
            lost += 1
            assert (run["status"], run["error"]) == ("failed", "lease expired")
            assert ended.get(run["id"], "lost") == "lost"
            # Not before its lease was over, and by one worker.
            assert follower["started_at"] >= after(run["started_at"], LEASE_SECONDS)
    assert len(runs) == DUE + lost
    assert lost >= 6  # what the two that stood still had
