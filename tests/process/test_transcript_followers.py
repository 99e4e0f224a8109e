"""Followers of transcripts that are killed at each of their steps: a file never gets ahead."""

import json
import random
import subprocess
import sys

import pytest
from support.actors import end_actors

from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionSource, SessionStore

ROUNDS = 24

FOLLOWER = """
import os, signal, sys
from pathlib import Path
from hermes_actor import SessionDB
from hermes_actor.gateway import GatewayConfig, Hooks, SessionStore, transcripts

database, last = Path(sys.argv[1]), int(sys.argv[2])
steps = 0


def step():
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGKILL)


def torn(write):
    def write_torn(path, *where, data):
        step()
        write(path, *where, data[: len(data) // 2])  # the end of a line, and a part of the next
        step()
        write(path, *where, data)
        step()

    return write_torn


append, replace, mark = transcripts._append, transcripts._replace, transcripts.Transcripts._mark
torn_append, torn_replace = torn(append), torn(replace)
transcripts._append = lambda path, size, data: torn_append(path, size, data=data)


def replace_with_left_overs(path, data):
    step()
    path.with_suffix(".jsonl.tmp").write_bytes(data[: len(data) // 2])
    step()
    replace(path, data)
    step()


def mark_between(*words):
    step()
    mark(*words)
    step()


transcripts._replace = replace_with_left_overs
transcripts.Transcripts._mark = mark_between
store = SessionStore(
    config=GatewayConfig(), db=SessionDB(database, timeout=60), hooks=Hooks(entry_points=False)
)
store.transcripts.catch_up()
print(steps)
"""


@pytest.fixture
def db(tmp_path):
    db = SessionDB(tmp_path / "state.db")
    yield db
    db.close()
    end_actors(tmp_path / "state.db")


@pytest.fixture
def store(db):
    store = SessionStore(config=GatewayConfig(), db=db, hooks=Hooks(entry_points=False))
    yield store
    store.close()


def contents(rows):
    return [row["content"] for row in rows if row["role"] != "session_meta"]


def whole_lines(path):
    if not path.exists():
        return []
    lines = [one for one in path.read_bytes().splitlines(keepends=True) if one.endswith(b"\n")]
    return contents(map(json.loads, lines))


def follow(db, last):
    """Run a follower that is killed at step *last*; return how many steps it came through."""
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWER, str(db.db_path), str(last)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode in (0, -9)
    return int(done.stdout) if done.returncode == 0 else last


def test_a_killed_follower_leaves_a_prefix_of_the_rows(db, store):
    """At every step of a follower, of a new file, a grown one and a replaced one."""
    rng = random.Random(7)
    chats = [SessionSource(platform="echo", chat_id=str(number)) for number in range(2)]
    ids = [store.get_or_create_session(source).session_id for source in chats]
    killed, stale = set(), set()  # stale: replaced since, so that its file has rows that are gone
    for number in range(ROUNDS):
        for one in ids:
            # Not through the gateway: nothing follows but the process under test.
            for part in range(rng.randrange(1, 4)):
                db.append_message(one, "user", f"{number}.{part} ü 北京 {'x' * rng.randrange(200)}")
        if number % 7 == 6:
            kept = db.get_messages_as_conversation(ids[0])[2:]
            db.replace_messages(ids[0], kept)
            stale.add(ids[0])
        last = number % 12 + 1
        if follow(db, last) == last:
            killed.add(last)
        else:
            stale.clear()
        for one in ids:
            stored = contents(db.get_messages(one))
            written = whole_lines(store.get_transcript_path(one))
            if one not in stale:
                assert written == stored[: len(written)]
            assert contents(store.load_transcript(one)) == stored
        if number % 5 == 4:
            store.transcripts.catch_up()
            stale.clear()
            for one in ids:
                stored = contents(db.get_messages(one))
                assert whole_lines(store.get_transcript_path(one)) == stored
    assert len(killed) >= 6
    store.transcripts.catch_up()
    for one in ids:
        path = store.get_transcript_path(one)
        assert whole_lines(path) == contents(db.get_messages(one))
        assert path.read_bytes().endswith(b"\n")
    assert store.transcripts.catch_up() == 0
