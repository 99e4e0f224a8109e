"""A gateway goes on beside files and rows of other programs, and processes that stand still."""

import fcntl
import json
import os
import threading
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from hermes_actor import SessionDB
from hermes_actor.gateway import SessionSource, SessionStore, Watcher
from hermes_actor.gateway.config import GatewayConfig
from hermes_actor.gateway.migration import migrate_transcripts
from hermes_actor.gateway.policies import SessionResetPolicy

GOOD = {
    "session_id": "s1", "session_key": "good", "created_at": "2026-01-01T00:00:00",
    "updated_at": "2026-01-01T00:00:00", "platform": "telegram", "chat_type": "dm",
}  # fmt: skip
BAD = GOOD | {"session_id": "s2", "session_key": "bad"}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "sessions"
    folder.mkdir()
    return folder


@pytest.fixture
def store(folder, tmp_path):
    with closing(SessionDB(tmp_path / "state.db", mode="embedded")) as db:
        config = GatewayConfig(write_jsonl=True, write_sessions_json=True)
        yield SessionStore(folder, config, db=db)


def chat(number):
    return SessionSource(platform="telegram", chat_id=str(number), chat_type="dm", user_id="u")


def answer(store, number):
    with store.begin_turn(chat(number), "question") as turn:
        turn.append("assistant", "answer")
    return turn.session_id


# --- times ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1.7e12, -1e18, float("inf"), float("nan"), 10**400])
def test_message_with_a_time_of_no_clock_harms_no_chat(store, folder, seconds):
    """Milliseconds, for example: they are a year that no calendar has."""
    entry = store.get_or_create_session(chat(1))
    message = {"role": "user", "content": "x", "timestamp": seconds}
    store.append_to_transcript(entry.session_id, message)
    assert answer(store, 1) == entry.session_id
    texts = [one["content"] for one in store.load_transcript(entry.session_id)]
    assert texts == ["x", "question", "answer"]
    lines = (folder / f"{entry.session_id}.jsonl").read_text().splitlines()
    assert [json.loads(line).get("content") for line in lines[1:]] == texts


def test_transcript_that_cannot_be_written_holds_up_no_other(store, folder, monkeypatch):
    first, second = (store.get_or_create_session(chat(n)).session_id for n in (1, 2))
    for session_id in (first, second):
        store.append_to_transcript(session_id, {"role": "user", "content": session_id})
    follow = store.transcripts._follow

    def fail(session_id, path):
        if session_id == first:
            raise ZeroDivisionError(session_id)
        return follow(session_id, path)

    monkeypatch.setattr(store.transcripts, "_follow", fail)
    assert store.transcripts.catch_up() == 1
    assert [file.stem for file in folder.glob("*.jsonl")] == [second]


# --- files of other programs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"updated_at": "0001-01-01T00:00:00"},
        {"updated_at": 1e300},
        {"last_prompt_tokens": float("inf")},
        {"model_override": {"model": float("nan")}},
        {"origin": [1]},
        {"session_id": "../../x"},
    ],
)
def test_entry_that_cannot_be_taken_over_keeps_out_no_other(store, folder, bad):
    (folder / "sessions.json").write_text(json.dumps({"good": GOOD, "bad": BAD | bad}))
    assert [entry.session_key for entry in store.list_sessions()] == ["good"]
    assert answer(store, 1)


def test_half_an_emoji_in_an_entry_is_replaced(store, folder):
    index = {"good": GOOD, "bad": BAD | {"display_name": "half \ud83d"}}
    (folder / "sessions.json").write_text(json.dumps(index))
    assert {entry.display_name for entry in store.list_sessions()} == {None, "half \ufffd"}
    entry = store.get_or_create_session(chat(1))
    assert store.set_model_override(entry.session_key, {"model": "half \ud83d"})
    assert store.get_model_override(entry.session_key) == {"model": "half \ufffd"}


def test_index_that_is_too_deep_is_left_out(store, folder):
    (folder / "sessions.json").write_text("[" * 100_000)
    assert store.list_sessions() == []
    assert answer(store, 1)


@pytest.mark.parametrize(
    "line",
    [
        '{"role": "user", "content": ' + "[" * 100_000,
        '{"role": ["user"], "content": "x"}',
        '{"role": "tool", "content": "x", "tool_call_id": {"a": 1}}',
    ],
    ids=["deep", "role", "call id"],
)
def test_transcript_that_cannot_be_stored_keeps_out_no_other(store, folder, line):
    (folder / "a.jsonl").write_text(line + "\n")
    (folder / "b.jsonl").write_text('{"role": "user", "content": "good"}\n')
    assert migrate_transcripts(store.db, folder, store.scope) == (1, 1, 1)
    assert [one["content"] for one in store.db.get_messages("b")] == ["good"]
    assert (folder / "a.jsonl").exists()


def test_route_that_is_broken_keeps_no_other_chat_from_its_end(store, monkeypatch):
    policy = SessionResetPolicy(mode="idle", idle_minutes=1)
    monkeypatch.setattr(store, "config", replace(store.config, default_reset_policy=policy))
    with monkeypatch.context() as earlier:
        earlier.setattr(store, "clock", lambda: datetime.now() - timedelta(hours=1))
        sessions = [store.get_or_create_session(chat(n)).session_id for n in (1, 2)]
    watcher, verdict = Watcher(store), store.verdict

    def broken(state):
        if state.tip == sessions[0]:
            raise TypeError("not an entry")
        return verdict(state)

    monkeypatch.setattr(store, "verdict", broken)
    assert watcher.round() == [sessions[1]]


# --- another process stands still -----------------------------------------------------------------


@pytest.mark.parametrize("name", [".transcripts.lock", ".sessions.lock"])
def test_process_that_stands_still_with_a_lock_holds_up_no_answer(store, folder, name, monkeypatch):
    monkeypatch.setattr("hermes_actor.gateway.folder_lock._LOCK_SECONDS", 0.2)
    done = []

    def gateway():
        session_id = answer(store, 1)
        store.flush()
        done.append(session_id)

    thread = threading.Thread(target=gateway, daemon=True)
    with open(folder / name, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread.start()
        thread.join(60)
        assert done, "the answer of a chat waits for the lock"
    # What was not written follows.
    store.touched()
    store.flush()
    store.transcripts.catch_up()
    assert (folder / "sessions.json").exists()
    assert (folder / f"{done[0]}.jsonl").exists()


# --- files that are no files, or not as they were left --------------------------------------------


def in_time(call):
    """Run *call* in a thread and return its answer; it must not wait for ever."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return answers[0]


@pytest.mark.parametrize("name", ["sessions.json", ".sessions.lock", ".transcripts.lock"])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_special_file_in_the_place_of_a_derived_one_holds_up_no_chat(store, folder, name, kind):
    path = folder / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    session_id = in_time(lambda: answer(store, 1))
    in_time(store.flush)
    assert [one["content"] for one in store.db.get_messages(session_id)] == ["question", "answer"]


def test_transcript_of_another_program_that_is_a_fifo_is_left_out(store, folder):
    store.db.create_session("s1", "telegram")
    os.mkfifo(folder / "s1.jsonl")
    assert in_time(lambda: store.load_transcript("s1")) == []


@pytest.mark.parametrize("left", [None, b"", b"garbage\n", "fifo"])
def test_transcript_that_was_cut_or_removed_is_written_again(store, folder, left):
    session_id = answer(store, 1)
    path = store.get_transcript_path(session_id)
    before = path.read_bytes()
    path.unlink()
    if left == "fifo":
        os.mkfifo(path)
    elif left is not None:
        path.write_bytes(left)
    assert in_time(lambda: answer(store, 1)) == session_id
    after = in_time(path.read_bytes)
    assert after.startswith(before)
    assert [json.loads(line)["role"] for line in after.splitlines()] == [
        "session_meta", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
