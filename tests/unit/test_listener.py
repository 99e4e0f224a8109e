"""Where a new socket goes: into a folder that only this user can have made or changed."""

import os
import socket
import stat
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.processes import own_mounts, run_python

from hermes_actor.actor import listener
from hermes_actor.client.connect import connect_once
from hermes_actor.paths import resolve_paths
from hermes_actor.system.sockets import recorded_socket

NOBODY = 65534
needs_users = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")


@pytest.fixture
def paths(tmp_path):
    paths = resolve_paths(tmp_path / "home" / "state.db")
    paths.folder.mkdir(0o700, parents=True)
    return paths


@pytest.fixture
def folders(monkeypatch):
    """The login's folder and that for temporary files; there is no other."""
    with tempfile.TemporaryDirectory(prefix="ha-") as folder:  # those of pytest are too long
        yield from made_in(Path(folder), monkeypatch)


def made_in(folder, monkeypatch):
    runtime, temporary = folder / "runtime", folder / "tmp"
    runtime.mkdir(0o700)
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setattr(listener, "_LOGINS", folder / "nowhere")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(temporary))
    yield runtime, temporary / f"hermes-actor-{os.getuid()}"


def place_after_bind(paths):
    """Where it listens; a client finds it, and no half-made socket is left."""
    with closing(listener.bind(paths)) as sock:
        place = listener.place_of(sock, paths)
        assert recorded_socket(paths) == place
        connect_once(paths).close()
        assert stat.S_IMODE(place.lstat().st_mode) == 0o600
        assert not place.with_name(f"{place.name}.new").exists()
    return place


def test_folder_of_the_login_is_preferred(paths, folders):
    place = place_after_bind(paths)
    assert place.parent == folders[0] / "hermes-actor"
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("value", ["", "relative", "/nowhere/at/all", "writable", "long", "file"])
def test_without_one_a_folder_among_the_temporary_files_is_made(
    paths, folders, monkeypatch, tmp_path, value
):
    if value == "writable":
        folders[0].chmod(0o770)
        value = str(folders[0])
    elif value == "long":
        (tmp_path / ("d" * 90)).mkdir(0o700)
        value = str(tmp_path / ("d" * 90))
    elif value == "file":
        (folders[0] / "hermes-actor").write_text("")
        value = str(folders[0])
    monkeypatch.setenv("XDG_RUNTIME_DIR", value)
    place = place_after_bind(paths)
    assert place.parent == folders[1]
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["another user's", "writable", "link", "file"])
def test_a_folder_that_another_user_may_have_made_is_not_used(
    paths, folders, monkeypatch, tmp_path, kind
):
    """Then the socket is beside the file, in a folder that was checked."""
    if kind == "another user's" and os.getuid():
        pytest.skip("only root can be several users")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    temporary = folders[1]
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(0o700)
        temporary.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        temporary.write_text("")
    else:
        temporary.mkdir(0o700)
        temporary.chmod(0o777 if kind == "writable" else 0o700)
        if kind == "another user's":
            os.chown(temporary, NOBODY, NOBODY)
    assert place_after_bind(paths) == paths.sock
    assert not temporary.is_dir() or list(temporary.iterdir()) == []


def test_own_folder_that_others_can_read_is_closed(paths, folders, monkeypatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    folders[1].mkdir(0o755)
    assert place_after_bind(paths).parent == folders[1]
    assert stat.S_IMODE(folders[1].stat().st_mode) == 0o700


@needs_users
def test_a_socket_of_another_user_is_not_believed(paths, folders):
    """The name of a leftover may be taken by someone else."""
    with closing(listener.bind(paths)) as sock:
        place = listener.place_of(sock, paths)
        os.chown(place, NOBODY, NOBODY, follow_symlinks=False)
        assert recorded_socket(paths) is None


def test_a_socket_that_was_replaced_is_not_removed(paths, folders):
    with closing(listener.bind(paths)) as first:
        file = listener.SocketFile(listener.place_of(first, paths))
        with closing(listener.bind(paths)):
            assert not file.is_in_place
            file.remove()
            connect_once(paths).close()


def leftover(folder: Path, name: str, *, age: float, listens: bool = False):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(folder / name))
    if listens:
        sock.listen()
    os.utime(folder / name, (time.time() - age,) * 2)
    return sock


def test_leftovers_of_homes_that_are_gone_are_removed(paths, folders):
    folder = folders[0] / "hermes-actor"
    folder.mkdir(0o700)
    leftover(folder, "dead", age=7200).close()
    leftover(folder, "young", age=60).close()
    (folder / "no socket").write_text("")
    with closing(leftover(folder, "serves", age=7200, listens=True)):
        place = place_after_bind(paths)
        left = {one.name for one in folder.iterdir()}
    assert left == {"young", "no socket", "serves", place.name}


def test_a_socket_of_another_network_namespace_is_tried_before_it_is_removed(
    paths, folders, monkeypatch, tmp_path
):
    """The kernel does not list it; it listens all the same."""
    monkeypatch.setattr(listener, "_BOUND", tmp_path / "empty")
    folder = folders[0] / "hermes-actor"
    folder.mkdir(0o700)
    leftover(folder, "dead", age=7200).close()
    with closing(leftover(folder, "serves", age=7200, listens=True)):
        place_after_bind(paths)
        assert (folder / "serves").exists()
    assert not (folder / "dead").exists()


ON_A_FULL_DISK = """
import os, socket, subprocess, sys
from hermes_actor.actor import listener
from hermes_actor.client.connect import connect_once
from hermes_actor.paths import resolve_paths
from hermes_actor.system.sockets import recorded_socket
from support.subprocess_env import outcome, small_disk, tell

with small_disk() as (folder, disk):
    paths = resolve_paths(folder / "state.db")
    paths.folder.mkdir(0o700)
    leftover = folder / "of the last owner"
    killed = socket.socket(socket.AF_UNIX)
    killed.bind(str(leftover))
    listener.record_place(paths, leftover)
    if sys.argv[1] == "files":
        room = os.statvfs(folder)
        options = f"remount,size=6m,nr_inodes={room.f_files - room.f_ffree}"
        subprocess.run(["mount", "-o", options, folder], check=True)
    disk.fill() if sys.argv[1] == "bytes" else None
    kept = []
    bound = outcome(lambda: kept.append(listener.bind(paths)))
    places = [str(listener.place_of(one, paths)) for one in kept]
    reached = outcome(lambda: connect_once(paths).close())["classes"]
    left = sorted(os.listdir(paths.folder))
    if sys.argv[1] == "bytes":
        disk.free()
        listener.record_place(paths, paths.sock)
    tell([bound, places == [str(paths.sock)], reached, left, recorded_socket(paths) == paths.sock])
"""
needs_a_disk = pytest.mark.skipif(not own_mounts(), reason="needs a disk of its own")


@needs_a_disk
def test_without_room_for_the_record_it_is_beside_the_file(folders):
    code = ON_A_FULL_DISK
    bound, is_beside, reached, left, recorded_later = run_python(code, "bytes", prefix=own_mounts())
    assert (bound["classes"], reached) == ([], []), bound
    assert is_beside
    assert left == ["sock"]  # a record of the last owner would lead clients elsewhere
    assert list((folders[0] / "hermes-actor").iterdir()) == []
    assert recorded_later


@needs_a_disk
def test_without_room_for_a_socket_the_disk_is_named(folders):
    bound, _, _, left, _ = run_python(ON_A_FULL_DISK, "files", prefix=own_mounts())
    assert "hermes_actor.errors.DiskFull" in bound["classes"], bound
    assert left == ["address"]
