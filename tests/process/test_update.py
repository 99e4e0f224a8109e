"""``hermes-actor update``: copy the store, run the command, hand over; if it is bad, nothing."""

import json
import os
import stat
import subprocess
import sys
from contextlib import closing

import pytest
from support.actors import actor_pid, actors_of, contents, folder_of
from support.fake_builds import NEWER, OLDER, OURS, Build, command, failed_updates, serving
from support.files import query
from support.ownership_log import check_owners
from support.wire import status
from support.writer_load import writer_load

from hermes_actor import SessionDB


@pytest.fixture
def installed(tmp_path):
    """The environment that is about to be updated."""
    return Build(tmp_path / "installed", OURS)


@pytest.fixture
def release(tmp_path):
    """What the update puts into it."""
    return Build(tmp_path / "release", NEWER)


def install(release, installed):
    """A command that replaces the code, as a package manager does."""
    return ["cp", "-R", f"{release.packages}/.", str(installed.packages)]


def update(path, installed, *words):
    # What it says and what the command says come in order, also into a file.
    return command("update", "--db", path, *words, python=installed.python, PYTHONUNBUFFERED="")


def copies(path):
    return sorted((path.parent / "backups").iterdir())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def check_copy(copy, texts):
    """A copy is whole, private, and one file."""
    assert mode(copy) == 0o600
    assert mode(copy.parent) == 0o700
    assert query(copy, "PRAGMA integrity_check") == [("ok",)]
    assert query(copy, "PRAGMA journal_mode") == [("delete",)]
    sql = "SELECT content FROM messages WHERE session_id = 's' ORDER BY id"
    assert [text for (text,) in query(copy, sql)] == texts


# --- it works ------------------------------------------------------------------------------------


def test_update_hands_over_to_the_new_code(path, installed, release):
    with closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "before")
    os.kill(actor_pid(path), 15)
    with serving(path, python=installed.python) as old, writer_load(path) as running:
        assert status(path).version == OURS
        done = update(path, installed, "--", "sh", "-c", " ".join(install(release, installed)))
        assert done.returncode == 0, done.stderr
        found = status(path)
        assert found.version == NEWER
        (copy,) = copies(path)
        assert done.stdout.splitlines() == [
            f"backed up the store to {copy}",
            f"updated: pid {found.pid} serves {path}, build {found.build}",
        ]
        running.goes_on()
    check_copy(copy, ["before"])
    assert check_owners(path)[-2:] == [old.pid, found.pid]


def test_new_code_of_another_environment(path, installed, release):
    with serving(path, python=installed.python):
        done = update(path, installed, "--python", release.python, "--", "true")
        assert done.returncode == 0
        assert status(path).version == NEWER


def test_words_of_the_command_are_its_own(path, installed):
    """Options behind the dashes are not ours, and it says what it says, in its place."""
    with serving(path, python=installed.python):
        code = "import sys; print(sys.argv[1:])"
        done = update(path, installed, "--", sys.executable, "-c", code, "--keep", "--db", "-h")
        assert done.returncode == 0
        copied, said, served = done.stdout.splitlines()
        assert said == "['--keep', '--db', '-h']"
        assert copied.startswith("backed up")
        assert "serves" in served


def test_without_an_actor_the_next_client_starts_the_new_code(path, installed, release):
    with closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "x")
    assert command("drain", "--db", path).returncode == 0
    done = update(path, installed, "--", *install(release, installed))
    assert done.returncode == 0
    assert "no actor was running" in done.stdout
    assert actors_of(path) == set()
    (copy,) = copies(path)
    check_copy(copy, ["x"])
    code = "import sys; from pathlib import Path; from hermes_actor import SessionDB;"
    assert run(installed, f"{code} SessionDB(Path(sys.argv[1])).close()", path) == 0
    assert status(path).version == NEWER


def run(build, code, *words):
    return subprocess.run([build.python, "-P", "-c", code, *map(str, words)], timeout=60).returncode


def test_store_that_was_mistyped_is_not_updated(path, installed, tmp_path):
    done = update(path, installed, "--", "touch", tmp_path / "ran")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: there is no store at {path} (given with --db)\n"
    assert not (tmp_path / "ran").exists()


def test_options_of_the_command_stand_behind_it(path, installed, tmp_path):
    """They are not ours, also without a ``--`` in front of it."""
    with serving(path, python=installed.python):
        show = [installed.python, "-c", "import sys; print(sys.argv[1:])"]
        done = update(path, installed, *show, "--python", "X", "--db", "Y", "--keep")
        assert "['--python', 'X', '--db', 'Y', '--keep']" in done.stdout
        assert done.returncode == 0, done.stderr
        before = copies(path)
        done = update(path, installed, "--json", "--", "true")
        assert (done.returncode, done.stdout) == (2, "")
        assert json.loads(done.stderr)["error"].startswith("No such option")
        assert copies(path) == before


def test_without_a_store_there_is_nothing_to_copy(path, installed, release):
    words = ("update", "--", *install(release, installed))
    done = command(*words, python=installed.python, HERMES_HOME=str(path.parent))
    assert done.returncode == 0
    assert "copied" not in done.stdout
    assert "no actor was running" in done.stdout
    assert not path.exists()
    assert not folder_of(path).exists()
    assert not path.with_name("backups").exists()


# --- it does not ---------------------------------------------------------------------------------

FAILING = {
    "its exit code": (["sh", "-c", "exit 7"], 7),
    "a signal": (["sh", "-c", "kill -9 $$"], 1),
    "no such command": (["no-such-command"], 127),
    "not a program": (["/"], 126),
}


@pytest.mark.parametrize("how", FAILING)
def test_command_that_fails_hands_nothing_over(path, installed, how):
    words, code = FAILING[how]
    with serving(path, python=installed.python) as old, writer_load(path, 2) as running:
        done = update(path, installed, "--", *words)
        assert done.returncode == code
        assert "the actor was not touched" in done.stderr
        found = status(path)
        assert (found.pid, found.handoff) == (old.pid, None)
        running.goes_on()
    assert check_owners(path) == [old.pid]


def test_broken_release_leaves_the_old_actor_as_it_is(path, installed, release):
    """Nothing of the new code gets into a process that runs the old one, whatever it does next."""
    for file in release.packages.joinpath("hermes_actor").rglob("*.py"):
        file.write_text("raise ImportError('a broken release')\n")
    with serving(path, python=installed.python) as old, writer_load(path) as running:
        done = update(path, installed, "--", *install(release, installed))
        assert done.returncode == 1
        assert "could not take over" in done.stderr
        assert "the old actor continues" in done.stderr
        found = status(path)
        assert (found.pid, found.phase_text) == (old.pid, "serving")
        assert failed_updates(found) == [f"update failed, still serving: {found.handoff.failed}"]
        running.goes_on()
        with closing(SessionDB(path)) as db:
            db.create_session("s", "cli")
            db.append_message("s", "user", "walrus " + "x" * 2_000_000)
            db._execute_write(lambda conn: conn.execute("UPDATE sessions SET title = NULL"))
            assert len(db.search_messages("walrus")) == 1
            db.vacuum()
        # And a good one repairs it.
        assert command("handoff", "--db", path).returncode == 0
        assert failed_updates(status(path)) == []
        running.goes_on()


def test_older_release_is_refused(path, installed, release):
    release.install(OLDER)
    with serving(path, python=installed.python) as old:
        done = update(path, installed, "--", *install(release, installed))
        assert done.returncode == 1
        assert "--allow-older" in done.stderr
        assert status(path).pid == old.pid


def test_store_that_cannot_be_copied_is_not_updated(path, installed, tmp_path):
    path.write_bytes(b"a letter" * 1000)
    done = update(path, installed, "--", "touch", tmp_path / "ran")
    assert done.returncode == 1
    assert "file is not a database" in done.stderr
    assert not (tmp_path / "ran").exists()
    assert copies(path) == []


# --- copies --------------------------------------------------------------------------------------


def test_newest_copies_are_kept(path, installed):
    with serving(path), closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        for number in range(4):
            db.append_message("s", "user", str(number))
            assert command("backup", "--db", path, "--keep", 2).returncode == 0
        assert [contents(copy, "s") for copy in copies(path)] == [["0", "1", "2"], list("0123")]
        done = update(path, installed, "--keep", "1", "--", "true")
        assert done.returncode == 0
        (copy,) = copies(path)
        check_copy(copy, list("0123"))


def test_copy_to_a_place_of_ones_own_removes_no_other(path, tmp_path):
    with serving(path), closing(SessionDB(path)) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "x")
        target = tmp_path / "100 % #1?" / "mine.db"
        target.parent.mkdir(mode=0o700)
        assert command("backup", "--db", path, "--keep", 1).returncode == 0
        done = command("backup", "--db", path, "--to", target, "--keep", 1)
        assert (done.returncode, done.stdout) == (0, f"{target}\n")
        assert len(copies(path)) == 1
    assert list(target.parent.iterdir()) == [target]
    check_copy(target, ["x"])


def test_copy_of_no_store(path):
    done = command("backup", "--db", path)
    assert done.returncode == 1
    assert "there is no store" in done.stderr
    assert not path.with_name("backups").exists()
