"""Starting on demand: the first client starts the actor, and there is never a second one."""

import fcntl
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from support.actor_process import served
from support.actors import (
    actor_pid,
    actors_of,
    contents,
    descriptors,
    folder_of,
    own,
    socket_of,
    stop_actor,
    wait_for,
    wait_no_actor,
)
from support.processes import SCRIPTS, run_python
from support.wire import Wire, connect, status

import hermes_actor
import hermes_protocol
from hermes_actor import SessionDB
from hermes_actor.paths import resolve_paths

CLIENTS = 50

FIFTY = """
import sys
from pathlib import Path
from support.subprocess_env import tell
from support.concurrent import together
from hermes_actor import SessionDB

path, clients = Path(sys.argv[1]), int(sys.argv[2])


def work(number):
    db = SessionDB(path, mode="actor")
    db.create_session(f"s{number}", "cli")
    db.append_message(f"s{number}", "user", str(number))
    found = db._port.statistics()
    db.close()
    return found["pid"], found["epoch"]


tell(together(clients, work))
"""


def test_fifty_processes_that_start_at_once_have_one_actor(path):
    answers = run_python(FIFTY, path, CLIENTS)
    assert [answer["text"] for answer in answers] == [""] * CLIENTS
    ((pid, epoch),) = {tuple(answer["value"]) for answer in answers}
    assert pid == actor_pid(path)
    assert actors_of(path) == {pid}
    assert epoch == own(path, "epoch") == 1
    # No other process has ever got as far as owning the store.
    assert (folder_of(path) / "log").read_text().count(" owns ") == 1
    for number in range(CLIENTS):
        assert contents(path, f"s{number}") == [str(number)]


def test_who_waits_for_a_start_uses_an_actor_that_serves_meanwhile(path):
    """Found by the kill loop: the last of a crowd waited for the lock until its timeout ended."""
    paths = resolve_paths(path)
    paths.folder.mkdir(mode=0o700)
    with paths.start_lock.open("w") as held, ThreadPoolExecutor() as threads:
        fcntl.flock(held, fcntl.LOCK_EX)
        db = threads.submit(SessionDB, path, mode="actor", timeout=20.0)
        with served(path), closing(db.result()) as client:
            client.set_meta("k", "v")
            assert client.get_meta("k") == "v"


def test_stale_socket_is_no_obstacle(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        first = stop_actor(path, signal.SIGKILL)
    assert stat.S_ISSOCK(socket_of(path).stat().st_mode)
    with pytest.raises(ConnectionRefusedError):
        connect(path)
    with closing(SessionDB(path, mode="actor")) as db:
        db.append_message("s", "user", "after")
    assert actor_pid(path) not in (None, first)
    assert own(path, "epoch") == 2
    assert contents(path, "s") == ["after"]


@pytest.mark.usefixtures("long_lived")
def test_path_of_the_socket_may_be_longer_than_the_kernel_allows(tmp_path):
    path = tmp_path / ("d" * 120) / ("e" * 120) / "state.db"
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        with (
            closing(socket.socket(socket.AF_UNIX)) as direct,
            pytest.raises(OSError, match="AF_UNIX path too long"),
        ):
            direct.connect(str(folder_of(path) / "sock"))
        stop_actor(path, signal.SIGKILL)
        db.append_message("s", "user", "again")
    assert contents(path, "s") == ["again"]
    assert status(path).epoch == 2
    stop_actor(path)
    assert not socket_of(path).exists()


@pytest.mark.usefixtures("long_lived")
def test_two_stores_have_two_actors(tmp_path):
    paths = [tmp_path / "one" / "state.db", tmp_path / "two" / "state.db"]
    paths.append(paths[0].with_name("other.db"))
    for number, path in enumerate(paths):
        with closing(SessionDB(path, mode="actor")) as db:
            db.create_session("s", "cli")
            db.append_message("s", "user", str(number))
    assert len({actor_pid(path) for path in paths}) == 3
    for number, path in enumerate(paths):
        assert actors_of(path) == {actor_pid(path)}
        assert contents(path, "s") == [str(number)]
        stop_actor(path)


def test_two_spellings_of_a_path_have_one_actor(path):
    link = path.with_name("link")
    link.symlink_to(path.parent, target_is_directory=True)
    with (
        closing(SessionDB(path, mode="actor")) as db,
        closing(SessionDB(link / "state.db", mode="actor")) as other,
    ):
        db.create_session("s", "cli")
        other.append_message("s", "user", "x")
        assert db._port.statistics()["pid"] == other._port.statistics()["pid"]
    assert actors_of(path) == {actor_pid(path)}


# --- the starting process leaves no mark on it ---------------------------------------------------

HOSTILE = """
import os, sys
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

path, rubbish = Path(sys.argv[1]), sys.argv[2]
# Set only now: the interpreter of the client itself would not survive some of them.
os.environ.update({
    "PYTHONHOME": rubbish, "PYTHONSTARTUP": rubbish, "PYTHONINSPECT": "1",
    "PYTHONWARNINGS": "error", "PYTHONPLATLIBDIR": "rubbish", "PYTHONOPTIMIZE": "2",
    "PYTHONIOENCODING": "utf-16", "HERMES_HOME": rubbish, "SECRET_OF_THE_STARTER": "x",
})
os.chdir(rubbish)
os.umask(0)
os.set_inheritable(os.open(path.parent, os.O_RDONLY), True)
db = SessionDB(path, mode="actor")
db.create_session("s", "cli")
db.append_message("s", "user", "x")
tell({"client": os.getpid(), "session": os.getsid(0), "actor": db._port.statistics()["pid"],
      "umask": os.umask(0), "exe": os.readlink("/proc/self/exe")})
os._exit(0)
"""


@pytest.fixture
def hostile(path, tmp_path):
    """An actor that was started from a bad folder, in a bad environment, with a bad umask."""
    rubbish = tmp_path / "rubbish"
    rubbish.mkdir()
    # Modules that only the actor imports. Found by name, they would end it at once.
    for name in ("trio", "click", "sqlite_utils", "logging", "json"):
        folder = rubbish if name in ("trio", "click", "sqlite_utils") else rubbish / "cwd"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    return run_python(HOSTILE, path, rubbish, PYTHONPATH=f"{SCRIPTS}{os.pathsep}{rubbish}")


def test_hostile_environment_and_umask_do_not_reach_the_actor(path, hostile):
    assert hostile["actor"] == actor_pid(path)
    assert contents(path, "s") == ["x"]
    environment = Path(f"/proc/{hostile['actor']}/environ").read_bytes().split(b"\0")
    names = {entry.split(b"=")[0] for entry in environment if entry}
    assert not names & {b"SECRET_OF_THE_STARTER", b"HERMES_HOME"}
    assert not any(name.startswith(b"PYTHON") for name in names)
    mask = Path(f"/proc/{hostile['actor']}/status").read_text().split("Umask:")[1].split()[0]
    assert (hostile["umask"], mask) == (0, "0077")
    modes = {
        entry.name: stat.S_IMODE(entry.stat().st_mode)
        for entry in [folder_of(path), *folder_of(path).iterdir(), *path.parent.glob("state.db*")]
    }
    assert modes == {
        ".state.db.actor": 0o700,
        "owner.lock": 0o600,
        "start.lock": 0o600,
        "address": 0o600,
        "log": 0o600,
        "state.db": 0o600,
        "state.db-wal": 0o600,
        "state.db-shm": 0o600,
    }


def test_actor_is_a_process_of_its_own(path, hostile):
    actor = Path(f"/proc/{hostile['actor']}")
    fields = (actor / "stat").read_text().rpartition(")")[2].split()
    parent, session, terminal = int(fields[1]), int(fields[3]), int(fields[4])
    assert parent != hostile["client"]
    assert session != hostile["session"]
    assert terminal == 0
    assert os.readlink(actor / "cwd") == "/"
    assert os.readlink(actor / "exe") == hostile["exe"]
    assert os.readlink(actor / "fd" / "0") == "/dev/null"
    # Neither the folder that the starter held open, nor its pipes.
    kinds = {name.split(":")[0] if ":" in name else name for name in descriptors(hostile["actor"])}
    assert str(path.parent) not in kinds
    assert "pipe" not in kinds


# --- starts that fail --------------------------------------------------------------------------

TYPED = """
import sys
from pathlib import Path
from support.subprocess_env import open_and_close, tell
from support.concurrent import together

tell(together(4, lambda number: open_and_close(sys.argv[1], "actor")))
"""


def test_every_client_that_waits_learns_why_it_cannot_start(path):
    rubbish = b"this is a letter to my aunt\n" * 200
    path.write_bytes(rubbish)
    answers = run_python(TYPED, path)
    for answer in answers:
        assert "hermes_actor.errors.NotADatabase" in answer["classes"]
        assert "file is not a database" in answer["text"]
        assert str(path) in answer["text"]
    wait_no_actor(path)
    assert path.read_bytes() == rubbish
    assert sorted(p.name for p in path.parent.iterdir()) == [".state.db.actor", "state.db"]
    assert not socket_of(path).exists()
    # The state ends by itself when its cause is gone.
    path.unlink()
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")


READ_ONLY = """
import os, sys
from support.subprocess_env import open_and_close, tell, warm_up
from support.concurrent import together

warm_up("actor")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
tell(together(4, lambda number: open_and_close(sys.argv[1], "actor")))
"""


def test_folder_that_may_not_be_written_is_named(open_folder):
    path = Path(open_folder) / "state.db"
    os.chmod(open_folder, 0o500)
    answers = run_python(READ_ONLY, path)
    for answer in answers:
        assert "hermes_actor.errors.ReadOnly" in answer["classes"]
        assert open_folder in answer["text"]
    assert actors_of(path) == set()
    assert os.listdir(open_folder) == []


# --- the starter dies --------------------------------------------------------------------------

KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from hermes_actor import SessionDB

path, moment = Path(sys.argv[1]), sys.argv[2]
start = subprocess.Popen.__init__


def die(self, *args, **kwargs):
    if moment == "after":
        start(self, *args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)


subprocess.Popen.__init__ = die
SessionDB(path, mode="actor")
"""


def kill_a_starter(path, moment):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), moment],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", ["before", "after"])
def test_starter_that_is_killed_while_it_starts_is_followed_by_the_next(path, moment):
    for _ in range(3):
        kill_a_starter(path, moment)
        with closing(SessionDB(path, mode="actor")) as db:
            db.ensure_session("s", "cli")
            db.append_message("s", "user", moment)
            # Where two were started, one finds the other and leaves.
            wait_for(lambda: len(actors_of(path)) == 1)
            assert actors_of(path) == {db._port.statistics()["pid"]}
        stop_actor(path, signal.SIGKILL)
        wait_no_actor(path)
    assert contents(path, "s") == [moment] * 3


def test_actor_serves_although_its_starter_is_gone(path):
    kill_a_starter(path, "after")

    def look():
        try:
            with closing(Wire(path)) as wire:
                return wire.welcome["phase"]
        except (OSError, AssertionError):
            return None if actors_of(path) else "gone"

    assert wait_for(look) == "serving"
    assert actors_of(path) == {actor_pid(path)}


FAILED_STARTS = """
import os, sys
from pathlib import Path
from support.subprocess_env import outcome, tell
from support.interrupts import open_descriptors
from hermes_actor import SessionDB

path, kind = Path(sys.argv[1]), sys.argv[2]
folder, python = path.parent / ".state.db.actor", sys.executable
folder.mkdir(0o700)
EXECUTABLES = {"gone": "/gone/venv/bin/python", "empty": "", "none": None, "no program": __file__}
if kind in EXECUTABLES:
    sys.executable = EXECUTABLES[kind]
elif kind == "log is a folder":
    (folder / "log").mkdir()
else:
    (folder / "log").symlink_to(path.parent / "elsewhere")
before, answers = open_descriptors(), []
for _ in range(10):
    answers.append(outcome(lambda: SessionDB(path, timeout=20.0)))
after = open_descriptors()
# The state ends by itself when its cause is gone.
sys.executable = python
if kind not in EXECUTABLES:
    (folder / "log").rename(folder / "other")
db = SessionDB(path, timeout=60.0)
db.create_session("s", "cli")
tell({"answers": answers, "before": before, "after": after})
""".replace("__file__", repr(__file__))


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("gone", "SpawnFailed", r"/gone/venv/bin/python, cannot be run \(No such file"),
        ("empty", "SpawnFailed", r"\(unknown\), cannot be run"),
        ("none", "SpawnFailed", r"\(unknown\), cannot be run"),
        (
            "no program",
            "SpawnFailed",
            r"test_start_on_demand\.py, cannot be run \(Permission denied\)",
        ),
        ("log is a folder", "CannotOpen", r"needs .*/\.state\.db\.actor/log \(Is a directory\)"),
        ("log is a link", "CannotOpen", r"needs .*/\.state\.db\.actor/log \(Too many levels"),
    ],
)
def test_start_that_fails_says_why_and_leaves_no_descriptor(path, kind, error, words):
    told = run_python(FAILED_STARTS, path, kind)
    for answer in told["answers"]:
        assert f"hermes_actor.errors.{error}" in answer["classes"]
        assert re.search(words, answer["text"])
        assert str(path) in answer["text"]
    assert told["after"] == told["before"]
    assert not (path.parent / "elsewhere").exists()


MANY = """
import os, resource, sys
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]  # a gateway with many sockets
db = SessionDB(Path(sys.argv[1]))
db.set_meta("k", "v")
tell([db.get_meta("k"), max(kept)])
"""


def test_program_with_many_descriptors_starts_an_actor(path):
    value, highest = run_python(MANY, path)
    assert value == "v"
    assert highest > 1023


SUBREAPER = """
import ctypes, os, signal, sys
from pathlib import Path
from support.actors import wait_for
from support.subprocess_env import tell
from hermes_actor import SessionDB

PR_SET_CHILD_SUBREAPER = 36  # orphans become our children, as they become those of process 1
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
path, gone = Path(sys.argv[1]), []
db = SessionDB(path)
db.create_session("s", "cli")
for _ in range(3):
    pid = db._port.statistics()["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    gone.append(pid)
    db.append_message("s", "user", "again")
tell(len(set(gone)))
"""


def test_first_process_of_a_container_leaves_no_zombies(path):
    assert run_python(SUBREAPER, path) == 3


# --- which code, which interpreter -------------------------------------------------------------

FROM_ELSEWHERE = """
import os, sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from hermes_actor import SessionDB

db = SessionDB(Path(sys.argv[1]), timeout=60.0)
db.create_session("s", "cli")
print(db._port.statistics()["pid"])
"""


def roots():
    """Where this package, its protocol and what both need are, for an interpreter without them."""
    return [str(Path(m.__file__).parents[1]) for m in (hermes_actor, hermes_protocol, msgspec)]


@pytest.mark.parametrize("how", ["as it is", "with a slash", "relative", "sys.path.insert"])
def test_actor_finds_the_code_of_the_client_however_that_was_found(path, how):
    paths = {
        "as it is": roots(),
        "with a slash": [f"{root}/" for root in roots()],
        "relative": [os.path.relpath(root, path.parent) for root in roots()],
        "sys.path.insert": [],
    }[how]
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environment["HERMES_ACTOR_IDLE_EXIT"] = "60"
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    inserted = [] if paths else roots()
    done = subprocess.run(
        [sys._base_executable, "-c", FROM_ELSEWHERE, str(path), *inserted],
        env=environment, cwd=path.parent, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == actor_pid(path)


ENVIRONMENT = """
import os, sys
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor import SessionDB

db = SessionDB(Path(sys.argv[1]))
db.set_meta("k", "v")
actor = Path(f"/proc/{db._port.statistics()['pid']}/environ").read_bytes().split(b"\\0")
tell(dict(entry.decode().split("=", 1) for entry in actor if entry))
"""


def test_what_the_interpreter_needs_to_start_reaches_the_actor(path):
    needed = {"LD_LIBRARY_PATH": "/opt/python/lib", "PYTHONHOME": sys.base_prefix}
    found = run_python(ENVIRONMENT, path, **needed)
    assert {name: found.get(name) for name in needed} == needed
