"""`attach` and `--undo` that are killed, run at once, or meet an environment that has moved."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from support.hosts import tree_of

from hermes_actor.attach.hook import read_hook

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]

STORE = """
from hermes_state import SessionDB
db = SessionDB()
db.create_session(session_id="s", source="cli")
db.append_message(session_id="s", role="user", content="A")
db.close()
"""
LOOK = """
from hermes_state import SessionDB
db = SessionDB()
print([one["content"] for one in db.get_messages("s")], type(db._conn).__module__)
db.close()
"""
KILLED = """
import itertools, os, sys
from hermes_actor.__main__ import main

counter, number = itertools.count(1), int(os.environ["KILL_AT"])

def notice(event, arguments):
    changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "subprocess.Popen")
    if event == "open" and isinstance(arguments[1], str):
        changes = not set(arguments[1]).isdisjoint("wax+")
    if changes and next(counter) == number:
        os.kill(os.getpid(), 9)

sys.argv = ["hermes-actor", *sys.argv[1:]]
sys.addaudithook(notice)
sys.exit(main())
"""


@pytest.fixture
def stored(newest):
    newest.script(STORE)
    return newest


def is_plain(path):
    with closing(sqlite3.connect(path)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = conn.execute("SELECT name FROM sqlite_master WHERE name GLOB 'hermes_actor*'")
        return names.fetchall() == []


@pytest.mark.parametrize("killed", ["attach", "undo"])
def test_kill_at_any_step_is_completed_by_the_next_command(stored, killed):
    """The program works at once; attaching works, and going back leaves nothing."""
    before, steps = tree_of(stored.prefix), 0
    # Close together at the beginning, where files are written; each takes seconds.
    for number in (1, 5, 9, 11, 12, 13, 14, 16, 20, 28, 36, 40, 1000):
        if killed == "undo":
            stored.actor("attach")
        words = ("attach",) if killed == "attach" else ("attach", "--undo")
        done = stored.run("python", "-c", KILLED, *words, code=None, KILL_AT=str(number))
        assert done.returncode in (-9, 0), done.stderr
        steps += done.returncode == -9
        assert stored.script(LOOK).stdout.startswith("['A'] ")
        if number % 2:
            stored.actor("attach")
            assert stored.script(LOOK).stdout == "['A'] hermes_actor.dbapi.connection\n"
        stored.actor("attach", "--undo")
        assert tree_of(stored.prefix) == before, number
        assert is_plain(stored.db), number
        stored.actor("attach", "--check", code=1)
        if done.returncode == 0:
            break
    assert steps > 5


def test_attaching_that_was_interrupted_is_named(stored):
    """The hook is there, and no record of it."""
    stored.actor("attach")
    (record,) = stored.user.rglob("attached/*.json")
    record.unlink()
    told = stored.actor("attach", "--check", code=1)
    assert f"attaching was interrupted: the hook in {stored.purelib} is there already" in told
    stored.actor("attach", "--undo")
    assert read_hook(stored.purelib) is None
    assert is_plain(stored.db)


def test_two_that_attach_at_once_and_two_that_go_back(stored, model_url):
    """Of one home, and of another one in the same environment: each takes its turn."""
    before, other = tree_of(stored.prefix), stored.user / "other"
    stored.make_home(other, model_url)
    homes = [stored.home, stored.home, other]
    for words in (["attach"], ["attach", "--undo"]):
        processes = [
            subprocess.Popen(
                [str(stored.prefix / "bin" / "hermes-actor"), *words, "--home", str(home)],
                env=stored.variables, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True,
            )
            for home in homes
        ]  # fmt: skip
        for process in processes:
            told = process.communicate(timeout=300)[1]
            assert process.returncode == 0, told
        hook = read_hook(stored.purelib)
        if words == ["attach"]:
            assert hook["homes"] == sorted({str(stored.home), str(other)})
    assert hook is None
    assert tree_of(stored.prefix) == before
    assert is_plain(stored.db)


def attach_from_elsewhere(host, *words):
    """Our command, by another interpreter than that of the program."""
    return subprocess.run(
        [sys.executable, "-m", "hermes_actor", "attach", *words], cwd="/", env=host.variables,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_environment_that_has_moved(stored):
    """Its hook has moved along, and binds there; going back removes it."""
    stored.actor("attach")
    purelib, moved = stored.purelib, stored.prefix.with_name("moved")
    shutil.move(stored.prefix, moved)
    python = str(moved / "bin" / "python")
    told = attach_from_elsewhere(stored, "--check", "--python", python).stdout
    assert f"the hook is gone from {purelib}" in told
    assert f"hermes now runs in {moved}, which is not attached" in told
    done = attach_from_elsewhere(stored, "--undo", "--python", python)
    assert done.returncode == 0, done.stderr
    assert list(moved.rglob("hermes_actor_boot*")) == []
    assert is_plain(stored.db)


def test_environment_that_is_gone(stored):
    """There is no hook any more; the databases are detached all the same."""
    stored.actor("attach")
    stored.script(LOOK)
    shutil.rmtree(stored.prefix)
    done = attach_from_elsewhere(stored, "--undo")
    assert done.returncode == 0, done.stderr
    assert is_plain(stored.db)
    assert list(stored.user.rglob("attached/*.json")) == []
    assert "no hermes-agent was found" in attach_from_elsewhere(stored, "--undo").stderr


def test_environment_without_hermes_is_named(stored):
    done = attach_from_elsewhere(stored, "--python", "/usr/bin/python3")
    assert done.returncode == 1
    assert "/usr/bin/python3 has no hermes-agent" in " ".join(done.stderr.split())
