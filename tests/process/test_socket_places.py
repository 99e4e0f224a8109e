"""The socket is outside of the home, and is found by all who see the file: builds of before, and
programs with temporary files or everything else of their own."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.actors import (
    actor_pid,
    actors_of,
    contents,
    end_actors,
    folder_of,
    own,
    socket_of,
    stop_actor,
    wait_for,
)
from support.fake_builds import OURS, Build, command, serving
from support.processes import own_mounts, run_python

from hermes_actor import SessionDB
from hermes_actor.client.control import request_handoff
from hermes_actor.paths import resolve_paths
from hermes_actor.system.sockets import recorded_socket

# What builds knew before there was a record.
LOOKS_BESIDE = """
import hermes_actor.system.sockets as sockets
sockets.recorded_socket = lambda paths: None
"""
USE = """
import sys
from pathlib import Path
from hermes_actor import SessionDB
path = Path(sys.argv[1])
db = SessionDB(path, mode="actor", timeout=30)
db.create_session("s", "cli")
for line in sys.stdin:
    db.append_message("s", "user", line.strip())
    print(db._port.statistics()["pid"], flush=True)
"""


class Program:
    """A process that stores what it is given, and says which actor has taken it."""

    def __init__(self, path, *prefix, python=sys.executable, prelude="", **environment):
        words = [*prefix, str(python), "-P", "-c", prelude + USE, str(path)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip

    def store(self, text):
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(60) == 0


@pytest.fixture
def earlier(tmp_path):
    """A build that listens and looks beside the file alone."""
    build = Build(tmp_path / "earlier", OURS)  # no automatic hand-off
    build.append("hermes_actor.system.sockets", "recorded_socket = lambda paths: None")
    build.append(
        "hermes_actor.actor.listener",
        """
        def bind(paths):
            return _bind_at(paths.sock)
        record_place = ask_for_socket = lambda *_: None
        """,
    )
    return build


def write(path, text):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", text)
        return db._port.statistics()["pid"]


def sockets_in(folder):
    return [one for one in folder.rglob("*") if stat.S_ISSOCK(one.lstat().st_mode)]


def test_no_socket_is_in_the_home(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        assert sockets_in(path.parent) == []
        place = socket_of(path)
        assert stat.S_IMODE(place.lstat().st_mode) == 0o600
        assert stat.S_IMODE(place.parent.lstat().st_mode) == 0o700
        assert place.parent.lstat().st_uid == os.getuid()
    stop_actor(path)
    assert not place.exists()


def test_a_copy_of_the_home_has_an_actor_of_its_own(path, tmp_path):
    """Its record came with it, and is about the first."""
    home = tmp_path / "home"
    home.mkdir()
    path = home / "state.db"
    try:
        with closing(SessionDB(path, mode="actor")) as db:
            db.create_session("s", "cli")
            copy = tmp_path / "copy" / "state.db"
            shutil.copytree(home, copy.parent)
            assert write(copy, "in the copy") != actor_pid(path)
        assert contents(path, "s") == []
        assert contents(copy, "s") == ["in the copy"]
        assert len({actor_pid(path), actor_pid(copy)}) == 2
        # Moved with everything in it, the folder is the same and the path is not.
        stop_actor(copy)
        moved = copy.rename(tmp_path / "copy" / "other.db")
        folder_of(copy).rename(folder_of(moved))
        assert recorded_socket(resolve_paths(moved)) is None
    finally:
        for one in (path, tmp_path / "copy" / "state.db"):
            end_actors(one)


@pytest.mark.parametrize("which", ["runtime", "temporary"])
def test_programs_with_other_folders_find_the_same_actor(path, tmp_path, which):
    """A job of cron has no XDG_RUNTIME_DIR, a service may have another."""
    name = {"runtime": "XDG_RUNTIME_DIR", "temporary": "TMPDIR"}[which]
    one, other = tmp_path / "1", tmp_path / "2"
    one.mkdir(0o700)
    other.mkdir(0o700)
    with Program(path, **{name: str(one)}) as first:
        pid = first.store("a")
        with Program(path, **{name: str(other)}) as second:
            assert second.store("b") == pid
    assert contents(path, "s") == ["a", "b"]


def test_one_that_looks_beside_the_file_is_let_in(path):
    """A program that was started before an update: what it starts is of the new build."""
    pid = write(path, "new")
    with Program(path, prelude=LOOKS_BESIDE) as old:
        assert old.store("old") == pid
        assert sockets_in(path.parent) == [folder_of(path) / "sock"]
        assert write(path, "both") == pid
        # The successor serves both of them, too.
        new = request_handoff(resolve_paths(path), sys.executable)["pid"]
        assert old.store("old again") == write(path, "new again") == new
        os.kill(new, signal.SIGKILL)
        third = old.store("and again")
        assert third == write(path, "for all")
    assert contents(path, "s") == ["new", "old", "both", "old again", "new again", "and again",
                                   "for all"]  # fmt: skip
    stop_actor(path)
    assert sockets_in(path.parent) == []
    # No client asks the next one.
    write(path, "next")
    assert sockets_in(path.parent) == []
    assert not resolve_paths(path).sock_wanted.exists()


def test_an_actor_of_an_earlier_build_is_found_and_hands_over(path, earlier):
    write(path, "first")  # its record is there, and says nothing true any more
    stop_actor(path)
    with serving(path, python=earlier.python) as old:
        assert write(path, "found") == old.pid
        with Program(path, python=earlier.python) as program:
            assert program.store("beside") == old.pid
            new = request_handoff(resolve_paths(path), sys.executable)["pid"]
            # Its listener is where it was, so clients of before find it, and new ones do.
            assert program.store("old client") == write(path, "new client") == new
            with Program(path, python=earlier.python) as second:
                assert second.store("another") == new
    stop_actor(path)
    assert sockets_in(path.parent) == []
    assert write(path, "last") not in (old.pid, new)
    assert sockets_in(path.parent) == []
    assert contents(path, "s") == ["first", "found", "beside", "old client", "new client",
                                   "another", "last"]  # fmt: skip


def test_an_earlier_build_takes_over_and_is_found(path, earlier):
    """Back to the build of before, by a hand-off that asks for it."""
    write(path, "new")
    done = command("handoff", "--allow-older", earlier.python, "--db", path)
    assert done.returncode == 0, done.stderr
    old = actor_pid(path)
    assert write(path, "still found") == old
    assert own(path, "epoch") == 2


def test_an_earlier_build_that_cannot_reach_the_actor_is_refused_by_name(path, earlier):
    """With nothing of the new build: it says who owns the store, and stores nothing elsewhere."""
    pid = write(path, "new")
    code = f"{LOOKS_BESIDE}from hermes_actor import limits\nlimits.OWNED_SECONDS = 0.5\n{USE}"
    done = subprocess.run(
        [earlier.python, "-P", "-c", code, str(path)], input="old\n", capture_output=True,
        text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"AlreadyOwned: {path} is owned by process {pid} " in done.stderr
    wait_for(lambda: actors_of(path) == {pid})  # the one that was started in vain has ended
    assert contents(path, "s") == ["new"]


def test_a_record_that_was_removed_is_written_again(path):
    pid = write(path, "a")
    place = socket_of(path)
    resolve_paths(path).address.unlink()
    wait_for(lambda: socket_of(path) == place)
    assert write(path, "b") == pid


@pytest.mark.parametrize("text", [b"", b"/", b"\xff" * 9000, b"/dev/null\n1 /x\n", b"relative\n"])
def test_a_record_that_is_not_true_leads_nowhere(path, text):
    with closing(SessionDB(path, mode="actor")):
        pass
    stop_actor(path)
    resolve_paths(path).address.write_bytes(text)
    write(path, "a")
    assert contents(path, "s") == ["a"]


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"), reason="needs root, systemd and unshare"
)
def test_two_containers_with_one_home_have_one_owner(path, open_folder):
    """Each has processes and temporary files of its own; only the volume is common."""
    hidden = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
              "mount -t proc none /proc; "
              f"mkdir -p {path.parent}/empty; mount --bind {path.parent}/empty $1; shift; "
              'exec "$@"', "sh")  # fmt: skip
    folder = Path(open_folder) / "runtime"
    folder.mkdir(mode=0o700)
    with Program(path, XDG_RUNTIME_DIR=str(folder)) as first:
        pid = first.store("a")
        assert socket_of(path).is_relative_to(folder)
        with (
            Program(path, *hidden, str(folder), XDG_RUNTIME_DIR=str(folder)) as second,
            Program(path, *hidden, str(folder), XDG_RUNTIME_DIR=str(folder)) as third,
        ):
            assert second.store("b") == third.store("c") == pid
            os.kill(pid, signal.SIGKILL)
            # Whichever starts the next one: there is one, and all of them reach it.
            for number, program in enumerate((first, second, third, first)):
                program.store(f"after {number}")
    found = contents(path, "s")
    assert found[:3] == ["a", "b", "c"]
    assert found[3:] == [f"after {number}" for number in range(4)]
    assert own(path, "epoch") == 2


WITHOUT_ROOM_FOR_FILES = """
import os, subprocess
from pathlib import Path
from support.actors import end_actors, folder_of
from support.subprocess_env import open_and_close, outcome, small_disk, tell

with small_disk() as (folder, _):
    path = folder / "state.db"
    open_and_close(path, "actor")
    end_actors(path)
    (folder_of(path) / "address").unlink()
    room = os.statvfs(folder)
    options = f"remount,size=6m,nr_inodes={room.f_files - room.f_ffree}"
    subprocess.run(["mount", "-o", options, folder], check=True)
    refused = outcome(lambda: open_and_close(path, "actor"))
    subprocess.run(["mount", "-o", "remount,size=6m,nr_inodes=1000", folder], check=True)
    again = outcome(lambda: open_and_close(path, "actor"))
    end_actors(path)
    tell([refused, again])
"""


@pytest.mark.skipif(not own_mounts(), reason="needs a disk of its own")
def test_an_actor_that_cannot_make_its_socket_names_the_full_disk():
    refused, again = run_python(WITHOUT_ROOM_FOR_FILES, prefix=own_mounts())
    assert "hermes_actor.errors.DiskFull" in refused["classes"], refused
    assert again["classes"] == []
