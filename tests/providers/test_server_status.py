"""``hermes-actor status`` and ``gateway`` in a home whose sessions are on a server."""

import contextlib
import json
import os
import subprocess
import sys

import pytest
from support import servers

from hermes_actor import SessionDB, exit_codes
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore


@pytest.fixture
def command(tmp_path):
    """What a command prints with these settings, and its exit code."""

    def run(settings, *words):
        (tmp_path / "config.yaml").write_text(json.dumps({"sessiondb": settings}))
        done = subprocess.run(
            [sys.executable, "-m", "hermes_actor", *words],
            env={**os.environ, "HERMES_HOME": str(tmp_path)},
            capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout, done.returncode

    return run


@pytest.fixture
def status(command):
    return lambda settings, *words: command(settings, "status", *words)


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_chats_on_a_server_are_shown_and_reset(kind, command, tmp_path):
    url = servers.new_store(kind)
    chat = SessionSource(platform="echo", chat_id="1", user_id="u")
    with contextlib.closing(SessionDB(url)) as db:
        hooks = Hooks(entry_points=False)
        chats = SessionStore(tmp_path / "sessions", GatewayConfig(), db=db, hooks=hooks)
        with contextlib.closing(chats):
            first = chats.get_or_create_session(chat).session_id
            (row,) = json.loads(command({"dsn": url}, "gateway", "routes", "--json")[0])
            assert (row["session_id"], row["state"]) == (first, "open")
            told, code = command({"dsn": url}, "gateway", "reset", row["key"], "--json")
            assert code == exit_codes.OK
            assert chats.peek_session_id(row["key"]) == json.loads(told)["session_id"] != first


def test_relaxed_durability_shows(status):
    url = servers.new_store("postgresql")
    with contextlib.closing(SessionDB(url)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "x")
    for commit, durability in (("on", "synced"), ("off", "relaxed")):
        settings = {"dsn": url, "synchronous_commit": commit}
        told, code = status(settings, "--json")
        assert code == exit_codes.OK
        found = json.loads(told)
        assert (found["phase"], found["provider"]) == ("serving", "postgresql")
        assert (found["sessions"], found["messages"]) == (1, 1)
        assert (found["durability"], found["synchronous_commit"]) == (durability, commit)
        told, code = status(settings)
        assert f"durability  {durability}" in told
        assert f"synchronous_commit is {commit}" in told
        assert ("may take back the last acknowledged" in told) == (commit == "off")


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_asking_makes_no_store(kind, status):
    url = servers.new_store(kind)
    for _ in range(2):
        found = json.loads(status({"dsn": url}, "--json")[0])
        assert found["phase"] == "no store yet"
        assert (found["provider"], found["durability"]) == (kind, "synced")
        assert ("synchronous_commit" in found) == (kind == "postgresql")


def test_a_server_that_does_not_answer(status):
    settings = {"dsn": "postgresql://me:hunter2@127.0.0.1:1/db"}
    for words in ((), ("--json",)):
        told, code = status(settings, *words)
        assert code == exit_codes.NOT_RUNNING
        assert "unreachable" in told
        assert "hunter2" not in told


def test_a_file_that_the_settings_name(status, tmp_path):
    there = tmp_path / "elsewhere.db"
    told, code = status({"dsn": f"sqlite:///{there}"}, "--json")
    assert code == exit_codes.NOT_RUNNING
    assert json.loads(told)["database"] == str(there)
