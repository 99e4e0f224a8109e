"""A file that a gateway of hermes-agent 0.19.0 left when it was killed: the chat goes on."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.actors import end_actors

from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore

AGENT = Path(__file__).parents[2] / ".venv" / "agent"

# The packages that its gateway imports and does not use here are not installed.
KILLED = """
import os, sys, types
for name in ("requests", "openai", "httpx"):
    sys.modules[name] = types.ModuleType(name)
from pathlib import Path
import hermes_state
from gateway.config import GatewayConfig, Platform, SessionResetPolicy
from gateway.session import SessionSource, SessionStore


def killed(*_, **__):
    os.kill(os.getpid(), 9)


hermes_state.SessionDB.create_session = killed
hermes_state.SessionDB.ensure_session = killed
folder = Path(os.environ["HERMES_HOME"]) / "sessions"
config = GatewayConfig(default_reset_policy=SessionResetPolicy(mode="none"))
store = SessionStore(folder, config)
store.get_or_create_session(SessionSource(platform=Platform.TELEGRAM, chat_id="100", user_id="u1"))
"""


@pytest.fixture
def left(tmp_path):
    """The home of a gateway that was killed between a route and its session."""
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, "PYTHONPATH": str(AGENT), "HERMES_HOME": str(home), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=env, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    yield home
    end_actors(home / "state.db")


def test_the_next_message_is_stored_in_the_session_of_the_route(left):
    with sqlite3.connect(left / "state.db") as plain:
        assert plain.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
        ((entry,),) = plain.execute("SELECT entry_json FROM gateway_routing").fetchall()
    plain.close()
    source = SessionSource(platform="telegram", chat_id="100", user_id="u1")
    with SessionDB(left / "state.db") as db:
        store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
        with store.begin_turn(source, "hello") as turn:
            turn.append("assistant", "I am back")
        store.close()
        session_id = json.loads(entry)["session_id"]
        assert turn.session_id == session_id
        assert [one["content"] for one in db.get_messages(session_id)] == ["hello", "I am back"]
        row = db.get_session(session_id)
    assert (row["source"], row["session_key"]) == ("telegram", json.loads(entry)["session_key"])
    with sqlite3.connect(left / "state.db") as plain:  # both programs see one route
        ((kept,),) = plain.execute("SELECT entry_json FROM gateway_routing").fetchall()
    plain.close()
    assert json.loads(kept)["session_id"] == session_id
