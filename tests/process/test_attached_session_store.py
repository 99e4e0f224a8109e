"""The session store of a released hermes-agent, unchanged, stores through the actor by the hook."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from conformance.store_calls import environment, stores_of
from support.actors import actor_pid, end_actors

from hermes_actor.attach.releases import TESTED_RELEASES

CHATS, MESSAGES = 5, 8

# The packages that a gateway imports and does not use here are not installed.
STUBS = """
import sys, types
for name in ("requests", "openai", "httpx"):
    sys.modules[name] = types.ModuleType(name)
"""
PROGRAM = """
import json, os, sys
from hermes_actor.attach import boot
from hermes_actor.attach.typed import TYPED_FINGERPRINTS

home = os.environ["HERMES_HOME"]
boot.install({
    "scheme": boot.SCHEME, "homes": [home], "names": ["hermes_state", "gateway"],
    "folder": sys.argv[1], "editable": False, "advice": "",
    # As the attachment of such a release says it.
    "typed": [one for one, name in TYPED_FINGERPRINTS.items() if name == sys.argv[5]],
})
from pathlib import Path
import gateway.session as session
from gateway.config import GatewayConfig, Platform, SessionResetPolicy

config = GatewayConfig(default_reset_policy=SessionResetPolicy(mode="none"))
store = session.SessionStore(Path(home) / "sessions", config)
routed = getattr(store, "_chats", None) is not None
assert routed == (sys.argv[4] == "routes"), "the chats are kept in another way"
stored = {}
for number in range(int(sys.argv[3])):
    for chat in range(int(sys.argv[2])):
        source = session.SessionSource(
            platform=Platform.TELEGRAM, chat_id=str(chat), user_id=f"u{chat}"
        )
        entry = store.get_or_create_session(source)
        text = f"{chat} says {number}"
        store.append_to_transcript(entry.session_id, {"role": "user", "content": text})
        stored.setdefault(entry.session_id, []).append(text)
        if number == 4 and chat == 0:
            store.reset_session(entry.session_key)
    print("said", flush=True)
    sys.stdin.readline()
print(json.dumps(stored))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("version", "chats"), [(one, way) for one in TESTED_RELEASES for way in ("host", "routes")]
)
def test_the_session_store_of_a_release_works_through_the_actor(version, chats, tmp_path):
    """The actor is killed again and again: each message is stored once, in its own session."""
    if not stores_of(version).is_dir():
        pytest.skip("the agent program is not installed")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text(f"attach: {{chats: {chats}}}\n")
    env = environment(version, home) | {"HOME": str(tmp_path)}
    # The file that a user has before hermes-agent is attached.
    made = STUBS + "from hermes_state import SessionDB; SessionDB().close()"
    subprocess.run([sys.executable, "-P", "-c", made], env=env, check=True, timeout=100)
    words = [sys.executable, "-P", "-c", STUBS + PROGRAM, str(stores_of(version)), str(CHATS)]
    program = subprocess.Popen(
        [*words, str(MESSAGES), chats, version],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        killed = 0
        for _ in range(MESSAGES):
            assert program.stdout.readline() == "said\n", program.stderr.read()
            actor = actor_pid(home / "state.db")
            assert actor is not None
            os.kill(actor, signal.SIGKILL)
            killed += 1
            program.stdin.write("\n")
            program.stdin.flush()
        out, err = program.communicate(timeout=200)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0, err
    stored = json.loads(out.splitlines()[-1])
    assert (killed, len(stored)) == (MESSAGES, CHATS + 1)
    index = json.loads((home / "sessions" / "sessions.json").read_text("utf-8"))
    live = {one["session_id"] for key, one in index.items() if not key.startswith("_")}
    assert len(live) == CHATS
    with closing(sqlite3.connect(f"file:{home / 'state.db'}?mode=ro", uri=True)) as conn:
        said = "SELECT content FROM messages WHERE session_id = ? AND role = 'user' ORDER BY id"
        for session_id, texts in stored.items():
            assert [text for (text,) in conn.execute(said, (session_id,))] == texts, session_id
        ended = "SELECT id FROM sessions WHERE ended_at IS NOT NULL"
        assert {one for (one,) in conn.execute(ended)} == set(stored) - live
    end_actors(home / "state.db")


KEPT = """
import logging, os
from hermes_actor.attach import boot, typed

logging.basicConfig(format="%(message)s")
known = dict(typed.TYPED_FINGERPRINTS)
if sys.argv[2] == "another release":
    typed.ROUTED_FINGERPRINTS.clear()
boot.install({
    "scheme": boot.SCHEME, "homes": [os.environ["HERMES_HOME"]],
    "names": ["hermes_state", "gateway"], "folder": sys.argv[1],
    "editable": False, "advice": "", "typed": known,
})
from pathlib import Path
import gateway.session as session
from gateway.config import GatewayConfig, Platform

store = session.SessionStore(Path(os.environ["HERMES_HOME"]) / "sessions", GatewayConfig())
source = session.SessionSource(platform=Platform.TELEGRAM, chat_id="1", user_id="u1")
entry = store.get_or_create_session(source)
store.append_to_transcript(entry.session_id, {"role": "user", "content": "hello"})
assert store.reset_session(entry.session_key).session_id != entry.session_id
assert [one["content"] for one in store.load_transcript(entry.session_id)] == ["hello"]
print("done")
"""


@pytest.mark.parametrize(
    ("version", "case"),
    [
        *((one, "plain file") for one in TESTED_RELEASES if one != "0.14.0"),
        ("0.14.0", "another release"),
        ("0.19.0", "another release"),
    ],
)
def test_a_gateway_whose_chats_cannot_be_kept_in_the_store_keeps_its_own_index(
    version, case, tmp_path
):
    """A file that a newer release makes while it is attached, and a release that is not known."""
    if not stores_of(version).is_dir():
        pytest.skip("the agent program is not installed")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.yaml").write_text("attach: {chats: routes}\n")
    words = [sys.executable, "-P", "-c", STUBS + KEPT, str(stores_of(version)), case]
    env = environment(version, home) | {"HOME": str(tmp_path)}
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=200)
    finally:
        end_actors(home / "state.db")
    assert done.stdout == "done\n", done.stderr
    assert done.stderr.count("attach.chats is left out, the gateway keeps its own index") == 1
    with closing(sqlite3.connect(f"file:{home / 'state.db'}?mode=ro", uri=True)) as conn:
        tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    assert "hermes_actor_routes" not in tables


STORED_TWICE = """
import json, os
from hermes_actor.attach import boot
from hermes_actor.attach.typed import TYPED_FINGERPRINTS

if sys.argv[2] == "attached":
    boot.install({
        "scheme": boot.SCHEME, "homes": [os.environ["HERMES_HOME"]],
        "names": ["hermes_state", "gateway"], "folder": sys.argv[1],
        "editable": False, "advice": "", "typed": dict(TYPED_FINGERPRINTS),
    })
from pathlib import Path
import gateway.session as session
from gateway.config import GatewayConfig, Platform

store = session.SessionStore(Path(os.environ["HERMES_HOME"]) / "sessions", GatewayConfig())
source = session.SessionSource(platform=Platform.TELEGRAM, chat_id="1", user_id="u1")
session_id = store.get_or_create_session(source).session_id
message = {"role": "user", "content": "hello", "message_id": "m1"}
rows = []
for by_the_agent in (False, True):
    store._db.append_message(session_id, "user", "hello")  # the agent, which knows no id
    store.append_to_transcript(session_id, message, skip_db=by_the_agent)
    rows.append(len(store._db.get_messages(session_id)))
print(json.dumps(rows))
"""


@pytest.mark.parametrize("version", TESTED_RELEASES)
def test_rows_that_gateway_and_agent_write_are_those_that_they_write_without_us(version, tmp_path):
    """A second row arises without ``skip_db``, attached or not."""
    if not stores_of(version).is_dir():
        pytest.skip("the agent program is not installed")
    rows = {}
    for way in ("attached", "alone"):
        home = tmp_path / way
        home.mkdir()
        (home / "config.yaml").write_text("gateway: {merge_doubled_rows: true}\n")
        words = [sys.executable, "-P", "-c", STUBS + STORED_TWICE, str(stores_of(version)), way]
        env = environment(version, home) | {"HOME": str(tmp_path)}
        try:
            done = subprocess.run(
                words, env=env, stdout=subprocess.PIPE, text=True, timeout=200, check=True
            )
        finally:
            end_actors(home / "state.db")
        rows[way] = json.loads(done.stdout.splitlines()[-1])
    assert rows == {"attached": [2, 3], "alone": [2, 3]}
