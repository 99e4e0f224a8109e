"""Who may talk to an actor, and what it must not be tricked into touching or telling."""

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support.actors import (
    actor_pid,
    actors_of,
    contents,
    descriptors,
    folder_of,
    stop_actor,
    wait_for,
    wait_no_actor,
)
from support.processes import run_python
from support.wire import Wire, append, connect, frame, request, status

from hermes_actor import SessionDB
from hermes_actor.errors import DeadlineExceeded, HermesActorError, PermissionDenied

needs_users = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")

NOBODY = 65534

# --- other users ------------------------------------------------------------------------------

TWO_USERS = """
import ctypes, json, os, signal, socket, sys, tempfile, threading
from pathlib import Path
from support.actors import socket_of, wait_for
from support.subprocess_env import outcome, tell, warm_up
from support.wire import Wire, create, status
from hermes_actor import SessionDB
from hermes_actor.cli import run

path, nobody, third = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def become(uid):
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)


def import_all():
    # Serve once while everything may still be imported: nobody else can read our interpreter.
    def end():
        wait_for(lambda: outcome(lambda: status(warm).phase_text)["value"] == "serving")
        os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm.db"
        helper = threading.Thread(target=end)
        helper.start()
        assert run(["serve", "--db", str(warm)]) == 0
        helper.join()


def in_child(uid, work):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write, 1)
        become(uid)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it does not outlive the test
        os._exit(work() or 0)
    os.close(write)
    return child, os.fdopen(read)


def touch(uid):
    # What somebody else gets: a bare connection, and the product's own client.
    def work():
        def bare():
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(20)
            sock.connect(str(place))
            return sock.recv(100).decode()

        tell([outcome(bare), outcome(lambda: SessionDB(path, mode="actor", timeout=2).close())])

    child, said = in_child(uid, work)
    answer = said.read()
    os.waitpid(child, 0)
    return answer


warm_up("actor")
import_all()
actor, said = in_child(nobody, lambda: run(["serve", "--db", str(path)]))
said.readline()
try:
    wire = Wire(path)
    place = socket_of(path)
    results = {"epoch": wire.welcome["epoch"], "uid": os.stat(path).st_uid}
    results["root"] = wire.do(1, create("by root"))["t"]
    results["shut"] = json.loads(touch(third))
    # Somebody opens the doors by mistake; the kernel still tells who comes in.
    folder = path.with_name(".state.db.actor")
    for name in (path.parent, folder, place.parent):
        os.chmod(name, 0o755)
    os.chmod(place, 0o666)
    results["open"] = json.loads(touch(third))
    results["status"] = wire.status().document()
    os.chmod(folder, 0o700)
    os.chmod(place.parent, 0o700)
    results["owner"] = json.loads(touch(nobody))
    wire.close()
    db = SessionDB(path, mode="actor")
    db.append_message("by root", "user", "root may come in")
    db.close()
finally:
    os.kill(actor, signal.SIGTERM)
    results["code"] = os.waitpid(actor, 0)[1]
results["start"] = outcome(lambda: SessionDB(path, mode="actor", timeout=2).close())
tell(results)
"""


@needs_users
def test_only_its_own_user_and_root_are_served_and_only_its_user_may_start_it(open_folder):
    path = Path(open_folder) / "state.db"
    told = run_python(TWO_USERS, path, NOBODY, NOBODY - 1)
    assert (told["uid"], told["root"], told["code"]) == (NOBODY, "ok", 0)
    # Behind closed doors a third user does not even reach the socket.
    bare, opened = told["shut"]
    assert "builtins.PermissionError" in bare["classes"]
    assert "hermes_actor.errors.HermesActorError" in opened["classes"]
    # With the doors open the connection ends without a frame, and is counted.
    bare, opened = told["open"]
    assert bare["value"] == ""
    assert "hermes_actor.errors.HermesActorError" in opened["classes"]
    assert told["status"]["rejected"] >= 1
    assert told["status"]["writes"] == 1
    # The user itself gets on.
    _, opened = told["owner"]
    assert opened["text"] == ""
    # Without an actor root has to leave it to the user.
    assert "hermes_actor.errors.PermissionDenied" in told["start"]["classes"]
    assert str(NOBODY) in told["start"]["text"]
    assert actors_of(path) == set()
    for entry in Path(open_folder).glob("**/*"):
        assert entry.stat().st_uid == NOBODY


@needs_users
def test_root_does_not_serve_in_the_home_of_another_user(open_folder):
    """Its files would lock that user out."""
    path = Path(open_folder) / "state.db"
    words = [sys.executable, "-m", "hermes_actor", "serve", "--db", str(path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, **pipes) as child:
        try:
            line = child.stdout.readline()
            assert str(NOBODY) in line
            assert child.wait(60) == 1
        finally:
            child.kill()
    assert os.listdir(open_folder) == []


# --- symbolic links ---------------------------------------------------------------------------


def try_to_open(path):
    """Open and write; it may be refused, with an error of ours and nothing done."""
    try:
        with closing(SessionDB(path, mode="actor", timeout=60)) as db:
            db.create_session("s", "cli")
    except HermesActorError as error:
        assert error.executed == "no"
        return error
    return None


def make_store(path):
    """A store that no actor serves at the moment."""
    SessionDB(path, mode="actor").close()
    stop_actor(path)


@pytest.mark.parametrize("name", ["owner.lock", "start.lock", "log", "sock"])
@pytest.mark.parametrize("target", ["a file", "nothing"])
def test_symbolic_link_in_the_folder_is_not_followed(path, name, target):
    victim = path.with_name("victim")
    if target == "a file":
        victim.write_text("precious")
        victim.chmod(0o640)
    before = victim.stat() if victim.exists() else None
    folder_of(path).mkdir(0o700)
    (folder_of(path) / name).symlink_to(victim)
    error = try_to_open(path)
    if before is None:
        assert not victim.exists()
    else:
        after = victim.stat()
        assert victim.read_text() == "precious"
        assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
        assert after.st_mtime_ns == before.st_mtime_ns
    if error is None:
        # Then it has been replaced by something of our own.
        assert not (folder_of(path) / name).is_symlink()
        assert str(victim) not in descriptors(actor_pid(path))
    else:
        assert str(folder_of(path)) in str(error)
        wait_no_actor(path)
    # The state ends by itself when its cause is gone.
    (folder_of(path) / name).unlink(missing_ok=True)
    stop_actor(path)
    assert try_to_open(path) is None


def test_socket_that_leads_to_another_actor_is_not_used(path, tmp_path):
    """Or else the words of one agent would end in the store of another."""
    other = tmp_path / "other" / "state.db"
    make_store(path)
    with closing(SessionDB(other, mode="actor")) as db:
        db.create_session("other", "cli")
        (folder_of(path) / "sock").symlink_to(folder_of(other) / "sock")
        try_to_open(path)
        assert [row["id"] for row in db.search_sessions()] == ["other"]
    stop_actor(other)


# --- the folder itself ------------------------------------------------------------------------


def test_folder_that_is_a_symbolic_link_is_refused(path, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    folder_of(path).symlink_to(elsewhere, target_is_directory=True)
    with pytest.raises(PermissionDenied, match="symbolic link") as caught:
        SessionDB(path, mode="actor")
    assert caught.value.executed == "no"
    assert os.listdir(elsewhere) == []
    assert not path.exists()
    assert actors_of(path) == set()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_folder_that_others_may_change_is_refused(path, mode):
    folder_of(path).mkdir()
    folder_of(path).chmod(mode)
    with pytest.raises(PermissionDenied, match="chmod 700"):
        SessionDB(path, mode="actor")
    assert os.listdir(folder_of(path)) == []
    folder_of(path).chmod(0o700)
    assert try_to_open(path) is None


@needs_users
def test_folder_of_another_user_is_refused(path):
    folder_of(path).mkdir(0o700)
    os.chown(folder_of(path), NOBODY, NOBODY)
    with pytest.raises(PermissionDenied, match=str(NOBODY)):
        SessionDB(path, mode="actor")
    assert os.listdir(folder_of(path)) == []


def test_service_refuses_such_a_folder_too(path):
    folder_of(path).mkdir()
    folder_of(path).chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-m", "hermes_actor", "serve", "--db", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "chmod 700" in done.stdout + done.stderr
    assert not path.exists()


def test_file_in_the_place_of_the_folder_is_refused(path):
    folder_of(path).write_text("not a folder")
    error = try_to_open(path)
    assert error is not None
    assert str(folder_of(path)) in str(error)
    assert folder_of(path).read_text() == "not a folder"


# --- what is left for others to see -----------------------------------------------------------


def test_everything_of_a_service_is_private_whatever_the_umask(path):
    words = [sys.executable, "-m", "hermes_actor", "serve", "--db", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, umask=0) as child:
        try:
            assert str(child.pid) in child.stdout.readline()
            with closing(Wire(path)) as wire:
                assert wire.do(1, {"op": "meta.set", "key": "k", "value": "v"})["t"] == "ok"
            found = {
                entry.name: stat.S_IMODE(entry.stat().st_mode)
                for entry in (*folder_of(path).iterdir(), *path.parent.glob("state.db*"))
            }
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    assert {"owner.lock", "address", "state.db", "state.db-wal", "state.db-shm"} <= found.keys()
    assert set(found.values()) == {0o600}
    assert stat.S_IMODE(folder_of(path).stat().st_mode) == 0o700


def test_actor_leaves_no_core_file(path):
    """It would hold the words of every client."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    words = [sys.executable, "-m", "hermes_actor", "serve", "--db", str(path)]
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (most, most)),
    ) as child:
        try:
            assert str(child.pid) in child.stdout.readline()
            assert resource.prlimit(child.pid, resource.RLIMIT_CORE) == (0, 0)
        finally:
            child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0


SECRET = "swordfish"


def test_log_and_status_hold_no_text_of_messages(path):
    """Neither after writes nor after any kind of failure."""
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", SECRET, reasoning=SECRET)
        db.set_session_title("s", f"title {SECRET}")
        db.create_session("t", "cli")
        calls = [
            lambda: db.append_message("nobody", "user", SECRET),
            lambda: db.set_session_title("t", f"title {SECRET}"),
            lambda: db._conn.execute(f"INSERT INTO nowhere VALUES ('{SECRET}')"),
            lambda: db._conn.execute(f"SELECT {SECRET} FROM"),
            lambda: db._conn.execute("INSERT INTO state_meta VALUES (?, ?, ?)", (SECRET, 1, 2)),
            lambda: db._execute_write(lambda conn: conn.execute(f"SELECT '{SECRET}', {SECRET}")),
        ]
        for call in calls:
            with pytest.raises(HermesActorError):
                call()
        bad = request(1, append("s", SECRET))
        for message in ({**bad, "seq": -1}, {**bad, "t": "?"}, {**bad, "patience": SECRET}):
            with closing(Wire(path)) as wire:
                wire.send(message)
                wire.until_end()
        with closing(Wire(path)) as wire:
            assert wire.do(1, {"op": SECRET})["t"] == "failed"
            assert wire.do(2, {"op": "meta.set", "key": SECRET, "value": [SECRET]})["t"] == "failed"
            wire.send(frame(bad)[:-1])
        with closing(connect(path)) as sock:
            sock.sendall(SECRET.encode() * 100)
            with suppress(ConnectionResetError):
                assert sock.recv(1) == b""
        assert SECRET not in str(status(path))
        # One that dies, and one that ends in good order, have more to say.
        stop_actor(path, signal.SIGKILL)
        db.append_message("s", "user", SECRET)
        assert db.search_messages(SECRET)
    stop_actor(path)
    assert len(contents(path, "s")) == 2
    for entry in folder_of(path).iterdir():
        assert SECRET.encode() not in entry.read_bytes(), entry.name
    assert b"broke the protocol" in (folder_of(path) / "log").read_bytes()


def test_foreign_process_that_sits_on_the_socket_first_is_not_believed(path):
    """A connection proves nothing; only a Welcome does."""
    make_store(path)
    with closing(socket.socket(socket.AF_UNIX)) as stranger:
        stranger.bind(str(folder_of(path) / "sock"))
        stranger.listen(8)
        with pytest.raises(DeadlineExceeded) as caught:
            SessionDB(path, mode="actor", timeout=0.5)
        assert caught.value.executed == "no"
    # He has left, and the first who comes starts the real one.
    wait_for(lambda: try_to_open(path) is None)
