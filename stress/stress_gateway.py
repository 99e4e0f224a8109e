"""Gateways that answer the same chats are killed and stopped, and their actor is killed.

Many first messages of one chat at one moment give one session. At the end every chat has one
session, which is open, and no other session of a chat is. A turn is never entered by another
holder: what it writes stands together, except where it was killed. A message with a key is in a
session once. ``sessions.json`` can be read at every moment and equals the routes; each transcript
is a prefix of the rows of its session, and then equals them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import PYTHONPATH
from harness.gateway_worker import CROWD_CHATS
from harness.job import Job, run
from harness.sandbox import Sandbox

from hermes_actor import SessionDB
from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HermesActorError
from hermes_actor.gateway import GatewayConfig, Hooks, SessionStore

WORKERS = 4
ROUND_SECONDS = 4.0
POINTS = ("batch.begin", "commit.before", "commit.after", "reply.before", "reply.after")
STOPPED_SECONDS = 1.6
"""Longer than a turn: its holder must have lost it by then."""


def main(job: Job) -> None:
    while job.more():
        sandbox = Sandbox(job.folder / f"home-{job.done}")
        with sandbox.open():
            one_home(job, sandbox)
        job.count("homes")


def start(sandbox: Sandbox, name: str, seed: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-P", "-m", "harness.gateway_worker", str(sandbox.path)]
    worker = subprocess.Popen(
        [*words, str(sandbox.python), name, str(seed)],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "HERMES_HOME": str(sandbox.folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    return worker


def go(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()


def one_home(job: Job, sandbox: Sandbox) -> None:
    workers = [start(sandbox, f"w{number}", job.seed) for number in range(WORKERS)]
    files = sandbox.folder / "sessions"
    try:
        for worker in workers:
            go(worker)
        harm(job, sandbox, workers)
        # With the actor go the requests of gateways that were killed: none is applied from here on.
        if sandbox.pid is not None:
            sandbox.kill(sandbox.pid)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            job.demand(worker.wait(120) == 0, f"a gateway has ended with {worker.returncode}")
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    with contextlib.closing(SessionDB(sandbox.path, timeout=60)) as db:
        judge(job, db, files)


def harm(job: Job, sandbox: Sandbox, workers: list[subprocess.Popen[str]]) -> None:
    """Kill and stop gateways and their actor for some seconds."""
    until, number = time.monotonic() + ROUND_SECONDS, WORKERS
    while time.monotonic() < until:
        time.sleep(job.rng.uniform(0.05, 0.2))
        read_index(job, sandbox.folder / "sessions")
        victim = job.rng.randrange(WORKERS)
        what = job.rng.random()
        if what < 0.4:
            workers[victim].kill()
            workers[victim].wait()
            workers[victim] = start(sandbox, f"w{number}", job.seed)
            go(workers[victim])
            number += 1
            job.count("kills")
        elif what < 0.55:
            stop_for_a_while(job, workers[victim])
        elif what < 0.75 and sandbox.pid is not None:
            # The next one ends inside a batch, at one of its steps.
            point = f"{job.rng.choice(POINTS)}:{job.rng.randint(1, 60)}"
            sandbox.order_once(HERMES_ACTOR_FAILPOINT=point)
            sandbox.kill(sandbox.pid)
            job.count("kills of the actor")
        elif what < 0.85:
            with contextlib.suppress(HermesActorError, OSError):
                request_handoff(sandbox.paths, str(sandbox.python))
                job.count("hand-offs")


def stop_for_a_while(job: Job, worker: subprocess.Popen[str]) -> None:
    os.kill(worker.pid, signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS)
    os.kill(worker.pid, signal.SIGCONT)
    time.sleep(0.1)
    job.count("stops")


def read_index(job: Job, files: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        text = (files / "sessions.json").read_text("utf-8")
        try:
            json.loads(text)
        except ValueError:
            job.violation(f"sessions.json cannot be read: {text[:80]!r}")


def judge(job: Job, db: SessionDB, files: Path) -> None:
    store = SessionStore(files, GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
    index = json.loads((files / "sessions.json").read_text("utf-8"))
    routes = {route.key: route.entry for route in store.routes()}
    job.demand(index == routes, "sessions.json differs from the routes")
    every = {row["id"]: row for row in db.export_all()}
    judge_routes(job, store, every)
    crowd = [row for row in every.values() if row["source"] == "crowd"]
    job.demand(len(crowd) == CROWD_CHATS, f"{CROWD_CHATS} chats have {len(crowd)} sessions")
    rows = {one: row for one, row in every.items() if row["source"] == "echo"}
    for row in rows.values():
        contents = [str(message["content"]) for message in row["messages"]]
        keys = [text for text in contents if text.startswith("m")]
        job.demand(len(keys) == len(set(keys)), f"a message is doubled in {row['id']}: {keys}")
    judge_turns(job, rows)
    judge_files(job, store, rows)
    written = sum(len(row["messages"]) for row in rows.values())
    job.demand(written > 0, "no gateway has written anything")
    job.count("messages", written)
    store.close()


def judge_routes(job: Job, store: SessionStore, rows: dict[str, dict[str, Any]]) -> None:
    routed = {route.key: str(route.entry["session_id"]) for route in store.routes()}
    job.demand(len(set(routed.values())) == len(routed), f"chats share a session: {routed}")
    for key, session_id in routed.items():
        row = rows.get(session_id)
        job.demand(row is not None, f"{key} leads to {session_id}, which does not exist")
        job.demand(
            row is None or row["ended_at"] is None, f"{key} leads to {session_id}, which has ended"
        )
    live = {one for one, row in rows.items() if row["ended_at"] is None}
    job.demand(live <= set(routed.values()), f"open without a chat: {live - set(routed.values())}")


def judge_turns(job: Job, rows: dict[str, dict[str, Any]]) -> None:
    """What a turn wrote stands together in the conversation, or its end is missing.

    A chat that was switched back to an earlier session goes on there: what another worker still
    writes to the one that was left is a conversation of its own.
    """
    for root in (row for row in rows.values() if row["parent_session_id"] not in rows):
        chain = sorted(
            (row for row in rows.values() if root_of(row, rows) == root["id"]),
            key=lambda row: row["id"] != root["id"],
        )
        lines = sorted(
            (m["id"], str(m["content"]))
            for row in chain
            for m in row["messages"]
            if row["end_reason"] != "session_switch" or m["timestamp"] <= row["ended_at"]
        )
        before = ""
        for _id, text in lines:
            kind, _, tag = text.partition(" ")
            if kind == "end":
                job.demand(before == f"begin {tag}", f"a turn was entered: {before!r}, {text!r}")
            before = text


def root_of(row: dict[str, Any], rows: dict[str, dict[str, Any]]) -> str:
    while row["parent_session_id"] in rows:
        row = rows[row["parent_session_id"]]
    return str(row["id"])


def judge_files(job: Job, store: SessionStore, rows: dict[str, dict[str, Any]]) -> None:
    """Each transcript is a prefix of the rows, but for a torn end; then it equals them."""
    for row in rows.values():
        path, stored = store.get_transcript_path(row["id"]), contents_of(row)
        if path.exists():
            found = lines_of(path)
            job.demand(stored[: len(found)] == found, f"{path.name} is no prefix of its rows")
    store.transcripts.catch_up()
    for row in rows.values():
        path = store.get_transcript_path(row["id"])
        if row["messages"]:
            job.demand(
                path.exists() and lines_of(path) == contents_of(row),
                f"{path.name} differs from its rows",
            )


def contents_of(row: dict[str, Any]) -> list[str]:
    return [str(message["content"]) for message in row["messages"]]


def lines_of(path: Path) -> list[str]:
    found = []
    for line in path.read_text("utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            try:
                message = json.loads(line)
            except ValueError:
                message = {"role": "broken", "content": f"not JSON: {line[:40]!r}"}
            if message["role"] != "session_meta":
                found.append(str(message["content"]))
    return found


if __name__ == "__main__":
    sys.exit(run(main, "homes", short=1, usual=12, also={"kills": 5}))
