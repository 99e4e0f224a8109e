"""Expiry watchers in two processes: each session is finished once, also after a kill."""

import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta

import pytest
from support.actors import end_actors, wait_for

from hermes_actor import SessionDB
from hermes_actor.gateway import (
    GatewayConfig,
    Hooks,
    SessionResetPolicy,
    SessionSource,
    SessionStore,
)

CHATS = 12
IDLE = GatewayConfig(
    default_reset_policy=SessionResetPolicy(mode="idle", idle_minutes=60), write_jsonl=False
)

WATCHER = """
import os, sys, threading, time
from pathlib import Path
from hermes_actor import SessionDB
from hermes_actor.gateway import (
    GatewayConfig, Hooks, SessionResetPolicy, SessionStore, Watcher,
)

db = SessionDB(Path(sys.argv[1]), timeout=60)
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
hooks = Hooks(entry_points=False)


def before(entry, reason, transcript):
    os.write(log, f"before {entry.session_id}\\n".encode())
    time.sleep(0.02)  # so that the watchers meet


def end(session_id, **_):
    os.write(log, f"end {session_id}\\n".encode())


hooks.add("before_reset", before)
hooks.add("session_finalize", end)
config = GatewayConfig(
    default_reset_policy=SessionResetPolicy(mode="idle", idle_minutes=60), write_jsonl=False
)
watcher = Watcher(SessionStore(config=config, db=db, hooks=hooks), every=0.01, first=0.0)
print("ready", flush=True)
sys.stdin.readline()
thread = threading.Thread(target=watcher.run)
thread.start()
sys.stdin.readline()
watcher.stop()
thread.join()
db.close()
"""


@pytest.fixture
def db(tmp_path):
    db = SessionDB(tmp_path / "state.db")
    yield db
    db.close()
    end_actors(tmp_path / "state.db")


@pytest.fixture
def past(db):
    """The gateway of last month: whatever it was asked has expired since."""
    ago = datetime.now() - timedelta(days=30)
    store = SessionStore(config=IDLE, db=db, clock=lambda: ago, hooks=Hooks(entry_points=False))
    yield store
    store.close()


def expired(past, name):
    """Return a session that has expired, long enough for the memory hook."""
    entry = past.get_or_create_session(SessionSource(platform="telegram", chat_id=str(name)))
    for number in range(4):
        message = {"role": "user", "content": str(number), "timestamp": past.clock().isoformat()}
        past.append_to_transcript(entry.session_id, message)
    return entry.session_id


class Watching:
    """A process with a watcher, which begins when it is asked to."""

    def __init__(self, db, log):
        self._process = subprocess.Popen(
            [sys.executable, "-c", WATCHER, str(db.db_path), str(log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout.readline() == "ready\n"

    def go(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def stop(self):
        """End it after the session that it is at, its hooks included."""
        self.go()
        assert self._process.wait(60) == 0
        self.close()

    def kill(self):
        self._process.kill()
        self._process.wait()
        self.close()

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def lines_of(log):
    return [tuple(line.split()) for line in log.read_text().splitlines()] if log.exists() else []


def finalized(past):
    return {
        route.entry["session_id"] for route in past.routes() if route.entry.get("expiry_finalized")
    }


@pytest.mark.parametrize("kills", [0, 4])
def test_watchers_finish_each_session_once(db, past, tmp_path, kills):
    """After a kill the memory hook may come once more; the end is never said twice."""
    log = tmp_path / "hooks.log"
    ids = {expired(past, number) for number in range(CHATS)}
    watchers = [Watching(db, log), Watching(db, log)]
    try:
        for watcher in watchers:
            watcher.go()
        for number in range(kills):
            wait_for(lambda: len(lines_of(log)) > 4 * number)  # noqa: B023
            watchers[number % 2].kill()
            watchers[number % 2] = Watching(db, log)
            watchers[number % 2].go()
        wait_for(lambda: finalized(past) == ids)
        for watcher in watchers:
            watcher.stop()
    finally:
        for watcher in watchers:
            watcher.close()
    counts = Counter(lines_of(log))
    before = {one: counts["before", one] for one in ids}
    ends = {one: counts["end", one] for one in ids}
    assert set(counts) <= {(word, one) for word in ("before", "end") for one in ids}
    assert min(before.values()) == 1
    assert sum(before.values()) <= CHATS + kills
    assert max(ends.values()) == 1
    assert sum(ends.values()) >= CHATS - kills
    rows = {row["id"]: row for row in db.export_all()}
    assert {rows[one]["end_reason"] for one in ids} == {"idle"}


def test_a_conversation_with_a_turn_is_not_finished(db, past, tmp_path):
    log = tmp_path / "hooks.log"
    busy, free, later = (expired(past, name) for name in ("busy", "free", "later"))
    watcher = Watching(db, log)
    try:
        with db.turn(busy, holder="answering"):
            with db.turn(later, holder="answering"):
                watcher.go()
                wait_for(lambda: finalized(past) == {free})
            # A round that begins from here on has come to the busy chat as well.
            wait_for(lambda: finalized(past) == {free, later})
            assert db.get_session(busy)["ended_at"] is None
        wait_for(lambda: finalized(past) == {free, later, busy})
        watcher.stop()
    finally:
        watcher.close()
    assert Counter(lines_of(log)) == Counter(
        (word, one) for word in ("before", "end") for one in (busy, free, later)
    )
