"""Several processes reset one chat at the same time, and some of them are killed meanwhile."""

import subprocess
import sys

import pytest
from support.actors import end_actors

from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore

PROCESSES, RESETS = 3, 25
CHAT = SessionSource(platform="telegram", chat_id="100", user_id="u1")

RESET = """
import os, signal, sys
from pathlib import Path
from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore

database, killed_at = Path(sys.argv[1]), int(sys.argv[2])
db = SessionDB(database, timeout=60)
store = SessionStore(
    config=GatewayConfig(write_jsonl=False), db=db, hooks=Hooks(entry_points=False)
)
source = SessionSource(platform="telegram", chat_id="100", user_id="u1")
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    if number == killed_at:
        # The answer of this one is never read.
        store.mirror.changed = lambda **_soon: os.kill(os.getpid(), signal.SIGKILL)
    if number % 2:
        print(store.reset_session(store.session_key(source)).session_id, flush=True)
    else:
        print(store.get_or_create_session(source, force_new=True).session_id, flush=True)
store.close()
db.close()
"""


@pytest.fixture
def chats(tmp_path):
    db = SessionDB(tmp_path / "state.db")
    config = GatewayConfig(write_jsonl=False)
    store = SessionStore(config=config, db=db, hooks=Hooks(entry_points=False))
    yield store
    store.close()
    db.close()
    end_actors(tmp_path / "state.db")


@pytest.mark.parametrize("killed_at", [-1, 7])
def test_processes_that_reset_one_chat_leave_one_open_session(chats, killed_at):
    """Each session that a call returned was begun once, and all but the last have ended."""
    first = chats.get_or_create_session(CHAT)
    words = [sys.executable, "-c", RESET, str(chats.db.db_path), str(killed_at), str(RESETS)]
    started = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]
    try:
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        answered = [process.communicate(timeout=120)[0].split() for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert {process.returncode for process in started} == {0 if killed_at < 0 else -9}
    rows = {row["id"]: row for row in chats.db.export_all()}
    ids = {one for answers in answered for one in answers}
    assert ids | {first.session_id} <= set(rows)
    # A session that was made for a caller that died before it could say so.
    unheard = set(rows) - ids - {first.session_id}
    assert len(unheard) <= (0 if killed_at < 0 else PROCESSES)
    present = chats.peek_session_id(first.session_key)
    assert {one for one, row in rows.items() if row["ended_at"] is None} == {present}
    ended = {row["end_reason"] for one, row in rows.items() if one != present}
    assert ended == {"session_reset"}
