"""What hermes-agent does with files and folders of its home, beside a live actor."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from support.actors import actor_pid, end_actors, wait_for, wait_gone

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

STORE = """
import sys
from hermes_state import SessionDB
db = SessionDB()
db.create_session(session_id=sys.argv[1], source="cli")
db.append_message(session_id=sys.argv[1], role="user", content=f"Hello {sys.argv[1]}")
db.close()
"""


def users(path):
    """What was said in the store, after a look at the whole file."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        sql = "SELECT content FROM messages WHERE role = 'user' ORDER BY id"
        return [content for (content,) in conn.execute(sql)]


@pytest.fixture
def attached(host):
    host.script(STORE, "A")
    host.actor("attach")
    host.script(STORE, "B")
    assert actor_pid(host.db) is not None
    return host


def test_maintenance_of_the_program_beside_the_actor(attached):
    """Its own repairs, checks, copies and VACUUM; each ends well, and the actor goes on."""
    commands = [("doctor", "--fix"), ("backup", "--quick"), ("sessions", "stats")]
    if attached.version != "0.14.0":  # which does not have them
        commands += [("sessions", "optimize"), ("sessions", "repair")]
    for command in commands:
        done = attached.run("hermes", *command)
        assert "Traceback" not in done.stderr, command
        assert actor_pid(attached.db) is not None
    attached.script(STORE, "C")
    assert users(attached.db) == ["Hello A", "Hello B", "Hello C"]
    (copy,) = (attached.home / "state-snapshots").rglob("state.db")
    assert users(copy) == ["Hello A", "Hello B"]
    assert not (copy.parent / f".{copy.name}.actor").exists()


def test_profile_is_cloned_renamed_and_deleted_with_live_actors(attached):
    attached.hermes("profile", "create", "two", "--clone-all")
    two = attached.home / "profiles" / "two"
    assert not list(two.glob(".*.actor"))
    variables = {"HERMES_HOME": str(two)}
    # 0.19.0 leaves the history out.
    cloned = users(two / "state.db") if (two / "state.db").exists() else []
    assert cloned in ([], ["Hello A", "Hello B"])
    attached.script(STORE, "in two", **variables)
    assert users(two / "state.db") == [*cloned, "Hello in two"]
    assert users(attached.db) == ["Hello A", "Hello B"]
    assert actor_pid(two / "state.db") not in (None, actor_pid(attached.db))

    attached.hermes("profile", "rename", "two", "three")
    three = attached.home / "profiles" / "three"
    variables = {"HERMES_HOME": str(three)}
    attached.script(STORE, "in three", **variables)
    assert users(three / "state.db") == [*cloned, "Hello in two", "Hello in three"]

    served = actor_pid(three / "state.db")
    attached.hermes("profile", "delete", "three", "--yes")
    wait_gone(served)
    assert not three.exists()
    assert users(attached.db) == ["Hello A", "Hello B"]
    end_actors(two / "state.db")


def test_no_copy_is_kept_of_a_profile_that_was_deleted_on_purpose(attached):
    """One that vanishes otherwise is saved: that is what the copy is for."""
    saved = attached.user / ".local" / "state" / "hermes-actor" / "rescued"
    variables = {"TMPDIR": "/var/tmp"}  # homes among temporary files are never saved
    for name, is_meant in (("meant", True), ("accident", False)):
        attached.hermes("profile", "create", name)
        home = attached.home / "profiles" / name
        attached.script(STORE, "x", HERMES_HOME=str(home), **variables)
        served = actor_pid(home / "state.db")
        before = sorted(saved.glob("*.db"))
        if is_meant:
            attached.hermes("profile", "delete", name, "--yes", **variables)
        else:
            # At once: an actor that notices while files go one by one saves them in the folder.
            shutil.rmtree(home.rename(home.with_name("trash")))
        wait_gone(served)
        if is_meant:
            assert sorted(saved.glob("*.db")) == before
        else:
            wait_for(lambda before=before: sorted(saved.glob("*.db")) != before)
