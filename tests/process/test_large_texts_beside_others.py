"""Large texts beside real processes: kills, drains, and another program."""

import os
import random
import signal
import string
from contextlib import closing

import pytest
from support.actor_process import served
from support.actors import actor_pid, stop_actor, wait_for, wait_gone
from support.files import FTS_TABLES, query, raw

from hermes_actor import SessionDB
from hermes_actor.client.control import ask_status
from hermes_actor.paths import resolve_paths

RANDOM = random.Random(9)
SIZE = 1_500_000
"""So large that indexing it takes a second, and copying the index several steps."""


def text(word, size=SIZE):
    return f"{word} " + "".join(RANDOM.choices(string.ascii_letters, k=size)) + f" {word}end"


@pytest.fixture
def path(tmp_path):
    yield tmp_path / "state.db"
    stop_actor(tmp_path / "state.db")


def ids(db, word):
    return sorted(hit["id"] for hit in db.search_messages(word))


def aside(path):
    return ask_status(resolve_paths(path)).index.aside


def settled(path):
    return query(path, "SELECT * FROM hermes_actor_stale") == []


def assert_whole(path, count):
    wait_for(lambda: settled(path))
    for table in FTS_TABLES:
        query(path, f"INSERT INTO {table}({table}) VALUES ('integrity-check')")
        assert query(path, f"SELECT COUNT(*) FROM {table}") == [(count,)]


@pytest.mark.parametrize(
    "point", ["aside.build", "aside.stage:3", "aside.place:2", "aside.after:4"]
)
def test_actor_that_is_killed_at_a_step(path, point):
    prelude = f"import os\nos.environ['HERMES_ACTOR_FAILPOINT'] = '{point}'\n"
    with served(path, prelude) as actor, closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        large = db.append_message("s", "user", text("walrus"))
        assert actor.exit_code() == -signal.SIGKILL
        small = db.append_message("s", "user", "walrus")
        assert ids(db, "walrus") == [large, small]
    assert_whole(path, 2)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_actor_that_ends_while_a_text_is_built(path, how):
    """A drain does not wait for the thread, and what it was at is begun again."""
    with closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        large = db.append_message("s", "user", text("walrus"))
        wait_for(lambda: aside(path) == "building")
        pid = actor_pid(path)
        os.kill(pid, how)
        wait_gone(pid)
        small = db.append_message("s", "user", "walrus")
        assert ids(db, "walrus") == [large, small]
    assert_whole(path, 2)


def test_writes_go_on_while_a_text_is_built(path):
    with closing(SessionDB(path)) as db, closing(SessionDB(path)) as other:
        db.create_session("s", "cli")
        other.set_meta("n", "0")
        db.append_message("s", "user", text("walrus", 3 * SIZE))
        wait_for(lambda: aside(path) == "building")
        beside = 0
        while beside < 50:
            other.set_meta("n", str(beside))
            if aside(path) != "building":
                break
            beside += 1
        assert beside, "no small write has been acknowledged before the text was built"
        assert ids(db, "walrusend") == [1]
    assert_whole(path, 1)


def test_another_program_changes_large_texts(path):
    """Its triggers maintain the index in the ordinary way, above and below ours."""
    with closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        numbers = [db.append_message("s", "user", text(f"walrus{n}", 200_000)) for n in range(4)]
        assert ids(db, "walrus0") == numbers[:1]
        with raw(path) as foreign:
            foreign.execute("PRAGMA busy_timeout = 60000")
            foreign.execute("UPDATE messages SET content = 'heron' WHERE id = ?", numbers[:1])
            foreign.execute("DELETE FROM messages WHERE id = ?", numbers[1:2])
            foreign.execute(
                "INSERT INTO messages (session_id, role, content, timestamp)"
                " VALUES ('s', 'u', ?, 1)",
                (text("seal", 200_000),),
            )
        db.clear_messages("nobody")
        db._conn.execute(
            "UPDATE messages SET content = content || ' heron' WHERE id = ?", numbers[2:3]
        )
        assert ids(db, "heron") == [numbers[0], numbers[2]]
        assert ids(db, "walrus1") == []
        assert ids(db, "sealend") == [numbers[-1] + 1]
    assert_whole(path, 4)
