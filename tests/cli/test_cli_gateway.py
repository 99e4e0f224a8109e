"""``gateway`` and ``turns``: what operators see of chats, and what they can do."""

import json
import os
import time

import pytest

import hermes_protocol.operations as ops
from hermes_actor import SessionDB
from hermes_actor.cli.output.formatting import width
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore
from hermes_actor.system.process_identity import own_place, start_of

KEY = "agent:main:echo:dm:1"
CHAT = SessionSource(platform="echo", chat_id="1", user_id="u")


@pytest.fixture
def chats(home):
    db = SessionDB(home.db_path)
    store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
    yield store
    store.close()
    db.close()


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
def test_routes_take_the_width_of_the_terminal(home, chats, monkeypatch, columns):
    """A chat has a line for itself where its key and its session fit beside each other."""
    for chat in ("1", "漢字" * 20):
        chats.get_or_create_session(SessionSource(platform="echo", chat_id=chat, user_id="u"))
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = home("gateway", "routes").out.splitlines()
    if columns < 100:
        assert len(shown) == 4
        assert [line.startswith("    ") for line in shown] == [False, True] * 2
    else:
        assert shown[0].split() == ["Chat", "Session", "State", "Used"]
        assert len(shown) == 4
        assert all(width(line) <= columns for line in shown)
        assert all(" open " in line for line in shown[2:])


def test_routes_say_what_the_next_message_meets(home, chats):
    assert home("gateway", "routes").out == "no chats yet\n"
    entry = chats.get_or_create_session(CHAT)
    shown = home("gateway", "routes").out
    assert KEY in shown
    assert f"{entry.session_id}  open" in shown
    with chats.db.turn(entry.session_id, holder="echo"):
        (row,) = json.loads(home("gateway", "routes", "--json").out)
        assert (row["key"], row["state"]) == (KEY, "in turn")
        assert "echo  turn  pid" in home("turns").out
    chats.suspend_session(KEY)
    assert "suspended" in home("gateway", "routes").out
    assert home("turns").out == "no turns are held\n"


def test_turns_show_who_waits_in_order(home, chats):
    entry = chats.get_or_create_session(CHAT)
    with chats.db.turn(entry.session_id, holder="echo"):
        for name in ("first", "second"):
            chats.db._submit(waits(entry.session_id, name))
        (turn,) = json.loads(home("turns", "--json").out)
        assert [(one["holder"], one["state"]) for one in turn["waiting"]] == [
            ("first", "waiting"),
            ("second", "waiting"),
        ]
        shown = home("turns").out.splitlines()
        assert [line.split()[:2] for line in shown[1:]] == [["then", "first"], ["then", "second"]]
    (turn,) = json.loads(home("turns", "--json").out)
    assert (turn["state"], turn["token"], len(turn["waiting"])) == ("free", 0, 2)
    assert "  free  " in home("turns").out


def waits(session_id, holder):
    """The request of this process to stand in a line for an hour."""
    pid = os.getpid()
    return ops.TurnWait(
        session_id=session_id, holder=holder, kind="turn", now=time.time(), seconds=3600.0,
        pid=pid, started=start_of(pid), place=own_place(),
    )  # fmt: skip


@pytest.fixture
def quiet(home):
    """A home with chats, turns and an index file of another program, and without an actor."""
    (home.db_path.parent / "sessions").mkdir()
    (home.db_path.parent / "transcripts").mkdir()
    with SessionDB(home.db_path, mode="embedded") as db:
        store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
        entry = store.get_or_create_session(CHAT)
        store.close()
        index = home.db_path.parent / "sessions" / "sessions.json"
        text = index.read_text().replace(KEY, f"{KEY}23")
        (home.db_path.parent / "transcripts" / "sessions.json").write_text(text)
        (home.db_path.parent / "sessions" / "old.jsonl").write_text('{"role": "user"}\n')
        db.turn(entry.session_id, holder="echo")
    return entry


def state_of(folder):
    """Every file below a folder with its content; the lock files of readers are empty."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


@pytest.mark.parametrize(
    "words",
    [
        ["gateway", "routes"],
        ["gateway", "routes", "--json", "--sessions-dir", "transcripts"],
        ["gateway", "migrate-transcripts", "--dry-run"],
        ["turns"],
    ],
    ids=" ".join,
)
def test_a_command_that_reads_changes_nothing_and_starts_no_actor(home, quiet, monkeypatch, words):
    monkeypatch.chdir(home.db_path.parent)
    before = state_of(home.db_path.parent)
    done = home(*words)
    assert done.code == 0
    assert "not running" in home("status").out
    assert state_of(home.db_path.parent) == before
    if "transcripts" in words:
        (row,) = json.loads(done.out)
        assert row["key"] == f"{KEY}23"
        assert (row["session_id"], row["state"]) == (quiet.session_id, "not imported")


def test_reset_and_resume(home, chats):
    first = chats.get_or_create_session(CHAT).session_id
    done = json.loads(home("gateway", "reset", KEY, "--json").out)
    assert done["session_id"] != first
    assert chats.peek_session_id(KEY) == done["session_id"]
    assert home("gateway", "resume", KEY, first).code == 0
    assert chats.peek_session_id(KEY) == first
    assert home("gateway", "reset", "nowhere").code == 1
    assert home("gateway", "resume", "nowhere", first).code == 1
    assert home("gateway", "resume", KEY, "nowhere").code == 1
    assert chats.peek_session_id(KEY) == first


def test_watch_once_ends_expired_sessions(home, chats):
    (home.db_path.parent / "config.yaml").write_text(
        "session_reset: {mode: idle, idle_minutes: 5}\n"
    )
    entry = chats.get_or_create_session(CHAT)
    chats.db._submit(ops.RouteChange(scope=chats.scope, key=KEY, set="{}", now=1.0))
    assert "resets: idle" in home("gateway", "routes").out
    done = json.loads(home("gateway", "watch", "--once", "--json").out)
    assert done == {"finished": [entry.session_id]}
    assert home("gateway", "watch", "--once").out == "Ended 0 expired sessions.\n"


def test_migrate_transcripts(home, chats):
    chats.get_or_create_session(CHAT)
    chats.sessions_dir.mkdir(exist_ok=True)
    (chats.sessions_dir / "old.jsonl").write_text('{"role": "user", "content": "x"}\n')
    shown = home("gateway", "migrate-transcripts", "--dry-run").out
    assert shown.startswith("Migrated 1 sessions, 1 messages, 0 skipped in ")
    done = json.loads(home("gateway", "migrate-transcripts", "--json").out)
    assert done == {"sessions": 1, "messages": 1, "skipped": 0, "dry_run": False}
    assert chats.db.message_count("old") == 1


def test_steal_a_turn(home, chats):
    entry = chats.get_or_create_session(CHAT)
    chats.db.turn(entry.session_id, holder="stuck")
    assert home("turns", "steal", entry.session_id, "--yes").out == "Ended the turn.\n"
    again = home("turns", "steal", entry.session_id, "--yes", "--json")
    assert json.loads(again.out) == {"session_id": entry.session_id, "ended": False}
    assert home("turns", "steal", "nowhere", "--yes").code == 1
