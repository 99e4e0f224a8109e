"""``hermes-actor attach`` changes what it says and nothing else; ``--undo`` leaves no trace."""

import json
import sqlite3
from contextlib import closing

import pytest
from support.actors import wait_for
from support.hosts import tree_of

from hermes_actor.attach.hook import read_hook

pytestmark = pytest.mark.timeout(600)

STORE = """
import sys
from hermes_state import SessionDB
db = SessionDB()
db.create_session(session_id=sys.argv[1], source="cli")
for number in range(3):
    db.append_message(session_id=sys.argv[1], role="user", content=f"text {number}")
print([message["content"] for message in db.get_messages(sys.argv[1])])
print(type(db._conn).__module__, type(db).__module__)
db.close()
"""
TEXTS = "['text 0', 'text 1', 'text 2']"


def store(host, session):
    """Store a session as the program does; the module of its connection, and of its class."""
    texts, modules = host.script(STORE, session).stdout.splitlines()
    assert texts == TEXTS
    return modules.split()


def plain_contents(path):
    """What a program without anything of ours finds in the file."""
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("ROLLBACK")
        names = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
        rows = conn.execute("SELECT session_id, content FROM messages ORDER BY id").fetchall()
    return names, rows


def state_of(host):
    """Every file that attaching could touch."""
    return tree_of(host.prefix), tree_of(host.user)


def test_check_changes_nothing(host):
    store(host, "before")
    before = state_of(host)
    told = host.actor("attach", "--check", code=1)
    assert told.startswith(f"not attached: hermes-agent {host.version} in {host.prefix} ")
    document = json.loads(host.actor("attach", "--check", "--json", code=1))
    assert (document["attached"], document["release"]) == (False, host.version)
    assert state_of(host) == before


def test_attached_and_back(host):
    """The stores are ours in between; afterwards the environment is equal, byte by byte."""
    assert store(host, "before") == ["sqlite3", "hermes_state"]
    names, rows = plain_contents(host.db)
    environment, home = tree_of(host.prefix), set(tree_of(host.user))

    first, second = host.actor("attach").splitlines()
    assert first.startswith(f"attached: hermes-agent {host.version} in {host.prefix} stores ")
    assert second == "to go back: hermes-actor attach --undo"
    document = json.loads(host.actor("attach", "--check", "--json"))
    assert document["problems"] == []
    assert document["record"]["tier"] == ("typed" if host.version == "0.14.0" else "sqlite")
    (backup,) = document["record"]["backups"]
    assert plain_contents(backup) == (names, rows)

    assert all(name.startswith("hermes_actor") for name in store(host, "during")[:1])
    assert any(name.startswith("hermes_actor") for name in plain_contents(host.db)[0])

    told = host.actor("attach", "--undo")
    assert told.startswith(f"detached: {host.home} has 1 database without anything of ours")
    assert tree_of(host.prefix) == environment
    assert plain_contents(host.db) == (
        names,
        [*rows, *(("during", f"text {number}") for number in range(3))],
    )
    left = {name for name in set(tree_of(host.user)) - home if ".hermes/backups" not in name}
    assert {name for name in left if not name.startswith(".local")} == set()
    assert not any(name.startswith(".local/state/hermes-actor") for name in left)
    assert store(host, "after") == ["sqlite3", "hermes_state"]


def test_attaching_twice_is_attaching_once(newest):
    store(newest, "before")
    newest.actor("attach")
    before = tree_of(newest.prefix)
    store(newest, "between")
    newest.actor("attach")
    assert tree_of(newest.prefix) == before
    store(newest, "after")
    newest.actor("attach", "--undo")
    names, rows = plain_contents(newest.db)
    assert not any(name.startswith("hermes_actor") for name in names)
    assert len(rows) == 9
    # Once more there is nothing left to do, and that is no fault.
    newest.actor("attach", "--undo")


def test_homes_are_attached_and_detached_one_by_one(newest, model_url):
    other = newest.user / "other"
    newest.make_home(other, model_url)
    newest.actor("attach")
    assert store(newest, "ours")[0].startswith("hermes_actor")
    first, newest.home = newest.home, other
    assert store(newest, "not yet")[0] == "sqlite3"
    newest.actor("attach")
    assert store(newest, "now")[0].startswith("hermes_actor")
    newest.actor("attach", "--undo")
    assert store(newest, "no more")[0] == "sqlite3"
    newest.home = first
    assert store(newest, "still")[0].startswith("hermes_actor")


def test_a_home_that_is_missing_is_named(newest):
    done = newest.run("hermes-actor", "attach", "--home", "/nowhere/at/all", code=1)
    assert "there is no home /nowhere/at/all: name it with --home PATH" in done.stderr
    assert not list(newest.purelib.glob("hermes_actor_*"))


def test_an_attachment_that_cannot_be_proved_is_undone(newest):
    """Its class keeps nothing: what it answers is not what was stored."""
    store(newest, "before")
    for name in ("hermes_state.py", "hermes_state_common.py"):
        if (module := newest.purelib / name).is_file():
            text = module.read_text()
            module.unlink()  # the file is a link: never written to
            module.write_text(text + "\nclass SessionDB:\n    def __init__(self, **_): pass\n")
    before = tree_of(newest.prefix)
    done = newest.run("hermes-actor", "attach", code=1)
    assert f"hermes-agent {newest.version} does not work through us" in done.stderr
    assert tree_of(newest.prefix) == before
    names, _ = plain_contents(newest.db)
    assert not any(name.startswith("hermes_actor") for name in names)
    newest.actor("attach", "--check", code=1)


STAYING = """
import sys, threading
import hermes_state
sqlite3 = vars(hermes_state)["sqlite3"]
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute(sys.argv[2])
print("ready", flush=True)
threading.Event().wait(600)
"""


def test_undo_waits_for_programs_that_were_started_with_the_hook(newest, tmp_path):
    """One that has no database open would open the next one through us."""
    store(newest, "before")
    newest.actor("attach")
    log = tmp_path / "log"
    hook = read_hook(newest.purelib)
    words = ("python", "-c", STAYING, str(tmp_path / "other.db"), "SELECT 1")
    with newest.running(*words, log=log) as pid:
        wait_for(lambda: b"ready" in log.read_bytes())
        done = newest.run("hermes-actor", "attach", "--undo", code=1)
        assert f"end the programs that still use {newest.home} first: pid {pid} (" in done.stderr
        assert read_hook(newest.purelib) == hook
        # One of another home is no reason.
        first, newest.home = newest.home, newest.user / "other"
        newest.home.mkdir()
        newest.actor("attach")
        newest.actor("attach", "--undo")
        newest.home = first
    newest.actor("attach", "--undo")


def test_doctor_names_every_process_and_its_way(newest, tmp_path):
    store(newest, "before")
    newest.actor("attach")
    healthy = newest.actor("doctor", "--quick", code=None)
    assert f"hermes-agent: version {newest.version} in {newest.prefix} stores" in healthy.replace(
        "\n        ", " "
    )
    through, around = tmp_path / "through", tmp_path / "around"
    words = ("python", "-c", STAYING, str(newest.db))
    with (
        newest.running(*words, "CREATE TABLE one (x)", log=through) as inside,
        newest.running(
            *words, "SELECT * FROM sqlite_master", log=around, HERMES_ACTOR_DISABLE="1"
        ) as outside,
    ):
        wait_for(lambda: b"ready" in through.read_bytes())
        wait_for(lambda: b"ready" in around.read_bytes())
        told = json.loads(newest.actor("doctor", "--quick", "--json", code=1))
        found = {one["text"]: one["level"] for one in told["findings"]}
        (ours,) = [text for text in found if text.startswith(f"pid {inside} (")]
        assert ours.endswith("goes through the actor")
        (theirs,) = [text for text in found if text.startswith(f"pid {outside} (")]
        assert theirs.endswith(
            "has the file open for writing; it was started with HERMES_ACTOR_DISABLE"
        )
        assert (found[ours], found[theirs]) == ("ok", "warning")
        others = {text for text in found if text.startswith("pid ")} - {ours, theirs}
        assert {text for text in others if "is serving" not in text} == set()


def test_a_release_that_answers_otherwise_through_us_is_refused(newest):
    """The same calls are made with and without us; the difference is named."""
    path = newest.purelib / "hermes_state.py"
    text = path.read_text()
    path.unlink()  # the file is a link: never written to
    path.write_text(
        text + "\nimport sqlite3 as _it\n"
        "if 'hermes_actor' in str(_it.connect.__module__):\n"
        "    SessionDB.message_count = lambda self, session_id=None: -1\n"
    )
    done = newest.run("hermes-actor", "attach", code=1)
    assert "does not work through us: message_count answers -1, by itself " in done.stderr
    newest.actor("attach", "--check", code=1)
    assert not list(newest.purelib.glob("hermes_actor_*"))


def test_direct_leaves_the_program_alone_and_says_so(newest):
    store(newest, "before")
    config = newest.home / "config.yaml"
    config.write_text(config.read_text() + "attach:\n  tier: direct\n")
    newest.actor("attach")
    done = newest.script(STORE, "during")
    assert done.stdout.splitlines()[1].split()[0] == "sqlite3"
    assert done.stderr.startswith("hermes-actor: not attached: attach.tier is direct")
    newest.actor("attach", "--undo")
    assert newest.script(STORE, "after").stderr == ""
