"""Under a service manager: what it hears, what it passes on, and what it ends.

The manager's side is played by the test, but for the last part, which runs a systemd of its own
where that is possible.
"""

import array
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from support.actor_process import served
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
    wait_gone,
)
from support.files import write_lock
from support.processes import SCRIPTS, run_python
from support.wire import Wire, append, request, status

from hermes_actor import SessionDB
from hermes_actor import limits as client_limits
from hermes_actor.client.control import request_handoff
from hermes_actor.errors import AlreadyOwned
from hermes_actor.paths import resolve_paths
from hermes_actor.testing.writer_pool import WriterPool, check

# --- the manager that the test plays -------------------------------------------------------------

EXEC = """
import os, sys
listener, *command = sys.argv[1:]
if listener:
    os.dup2(int(listener), 3)
    os.set_inheritable(int(listener), False)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="sock")
if "WATCHDOG_USEC" in os.environ:
    os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, *command])
"""

MAIN = "\nimport sys\nfrom hermes_actor.__main__ import main\nsys.exit(main())\n"


class Manager:
    """Hears what a service says, and may hold its socket."""

    def __init__(self, folder, stack):
        self._stack = stack
        self.address = str(folder / "notify")
        self.place = folder / "sock"
        self._sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._sock.bind(self.address)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._sock.settimeout(60)
        self.listener = None

    def listen(self, path, *, beside=False):
        """Bind as systemd does: over whatever is there. Units of earlier builds have the socket
        *beside* the file."""
        folder_of(path).mkdir(0o700, exist_ok=True)
        sock = folder_of(path) / "sock" if beside else self.place
        sock.unlink(missing_ok=True)
        self.listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self.listener.bind(str(sock))
        self.listener.listen(16)
        return sock.stat().st_ino

    def start(self, path, *, watchdog=None, prelude=""):
        """Start the service. It is ended with the test."""
        env = {**os.environ, "NOTIFY_SOCKET": self.address}
        if watchdog is not None:
            env["WATCHDOG_USEC"] = str(int(watchdog * 1e6))
        number = "" if self.listener is None else str(self.listener.fileno())
        command = ["-c", prelude + MAIN, "serve", "--plain", "--db", str(path)]
        process = subprocess.Popen(
            [sys.executable, "-c", EXEC, number, *command],
            env=env,
            pass_fds=[int(number)] if number else [],
            stdout=subprocess.DEVNULL,
        )
        self._stack.callback(process.wait, 30)
        self._stack.callback(process.terminate)
        return process

    def hear(self):
        """(pid, {key: value}) of the next message."""
        room = socket.CMSG_SPACE(3 * array.array("i").itemsize)
        data, ancillary, _, _ = self._sock.recvmsg(4096, room)
        (credentials,) = [data for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
        pid = array.array("i", credentials)[0]
        return pid, dict(line.split("=", 1) for line in data.decode().split("\n"))

    def hear_until(self, key):
        """Every message up to the first with *key*, which is the last of them."""
        heard = [self.hear()]
        while key not in heard[-1][1]:
            heard.append(self.hear())
        return heard

    def ready(self):
        """Who says that it serves; it must be said of itself."""
        pid, message = self.hear_until("READY")[-1]
        assert message["MAINPID"] == str(pid)
        return pid

    def hears_nothing(self, seconds):
        """Whether nothing is said for so long."""
        self._sock.settimeout(seconds)
        try:
            return self.hear() is None
        except TimeoutError:
            return True
        finally:
            self._sock.settimeout(60)


@pytest.fixture
def manager(path):
    with ExitStack() as stack:
        # A path of its own: that of a socket may not be long.
        yield Manager(path.parent, stack)
        end_actors(path)


def write(path, text):
    """Write with a client of its own; the actor that has taken it."""
    with closing(SessionDB(path, mode="actor")) as db:
        db.ensure_session("s", "cli")
        db.append_message("s", "user", text)
        return db._port.statistics()["pid"]


# --- what it hears -------------------------------------------------------------------------------


def test_service_tells_its_phases_that_it_serves_and_that_it_ends(path, manager):
    service = manager.start(path)
    heard = manager.hear_until("READY")
    assert {pid for pid, _ in heard} == {service.pid}
    phases = [message["STATUS"] for _, message in heard]
    assert phases[0] == "recovering"
    assert phases[-1] == "serving"
    # It serves when it says so, not soon after.
    with closing(Wire(path)) as wire:
        assert (wire.welcome["pid"], wire.welcome["phase"]) == (service.pid, "serving")
    service.terminate()
    ((pid, message),) = manager.hear_until("STOPPING")
    assert (pid, message["STATUS"]) == (service.pid, "draining: SIGTERM")
    assert service.wait(60) == 0


def test_service_that_cannot_open_its_file_says_why(path, manager):
    path.write_bytes(b"a letter" * 1000)
    service = manager.start(path)
    heard = manager.hear_until("STATUS")
    while "cannot serve" not in heard[-1][1]["STATUS"]:
        heard += manager.hear_until("STATUS")
    assert "file is not a database" in heard[-1][1]["STATUS"]
    assert not any("READY" in message for _, message in heard)
    assert service.wait(60) == 1


def test_actor_that_serves_after_a_hand_off_is_the_main_process(path, manager):
    old = manager.start(path, watchdog=0.4).pid
    assert manager.ready() == old
    write(path, "a")
    new = request_handoff(resolve_paths(path), sys.executable)["pid"]
    heard = manager.hear_until("RELOADING")
    pid, message = heard[-1]
    assert pid == old
    assert int(message["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    assert manager.ready() == new
    assert write(path, "b") == new
    # Its watchdog hears of the new one, and no longer of the old one, which is still there.
    os.kill(old, 0)
    ticks = [manager.hear_until("WATCHDOG")[-1][0] for _ in range(4)]
    assert ticks[1:] == [new] * 3
    # When the old one ends, that is not the end of the service.
    os.kill(old, signal.SIGTERM)
    wait_gone(old)
    os.kill(new, signal.SIGTERM)
    heard = manager.hear_until("STOPPING")
    assert heard[-1][0] == new
    wait_gone(new)
    assert contents(path, "s") == ["a", "b"]


def test_old_actor_that_takes_back_is_the_main_process_again(path, manager):
    old = manager.start(path).pid
    assert manager.ready() == old
    new = request_handoff(resolve_paths(path), sys.executable)["pid"]
    assert manager.ready() == new
    os.kill(new, signal.SIGKILL)
    assert manager.ready() == old
    assert write(path, "x") == old


def test_hand_off_that_fails_early_is_not_even_mentioned(path, manager):
    old = manager.start(path).pid
    assert manager.ready() == old
    with pytest.raises(Exception, match="cannot be started"):
        request_handoff(resolve_paths(path), str(path.with_name("no python")))
    assert manager.hears_nothing(0.3)


def test_watchdog_is_notified_for_as_long_as_the_writer_goes_on(path, manager):
    small = "from hermes_actor.actor import timers\ntimers._STUCK_SECONDS = 0.5\n"
    service = manager.start(path, watchdog=0.2, prelude=small)
    assert manager.ready() == service.pid
    create = {"op": "session.create", "id": "s", "source": "cli", "started_at": 1}
    with closing(Wire(path)) as wire, closing(Wire(path)) as other:
        wire.send(request(1, create))
        assert wire.answer(1)["t"] == "ok"
        # An idle writer is not a stuck one.
        for _ in range(8):
            assert manager.hear()[1] == {"WATCHDOG": "1"}
        with write_lock(path):
            wire.send(request(2, append("s", "a")))
            wait_for(lambda: taken(other.status()) == 2)
            other.send(request(1, append("s", "b")))
            wait_for(lambda: manager.hears_nothing(0.4))
            assert service.poll() is None
        assert manager.hear()[1] == {"WATCHDOG": "1"}
        assert wire.answer(2)["t"] == other.answer(1)["t"] == "ok"


def taken(status):
    """How many requests the writer has begun with."""
    return sum(c.requests for c in status.connections) - status.queue.count


def test_actor_that_is_started_on_demand_has_no_manager_to_notify(path, manager, monkeypatch):
    """The manager of a client is not its manager."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    pid = write(path, "x")
    assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
    stop_actor(path)
    assert manager.hears_nothing(0.3)


# --- the store has an owner already --------------------------------------------------------------


def test_service_waits_until_the_store_is_free(path, manager):
    with served(path) as first:
        service = manager.start(path)
        ((pid, message),) = manager.hear_until("STATUS")
        assert pid == service.pid
        assert message["STATUS"].startswith("waiting: ")
        assert f"process {first.pid} " in message["STATUS"]
        # Said once.
        assert manager.hears_nothing(0.6)
        assert write(path, "a") == first.pid
    assert manager.ready() == service.pid
    assert write(path, "b") == service.pid


def test_service_that_waits_ends_on_a_signal(path, manager):
    with served(path):
        service = manager.start(path)
        manager.hear_until("STATUS")
        service.terminate()
        assert service.wait(60) == -signal.SIGTERM


def test_clients_of_a_service_that_waits_learn_who_owns_the_store(path, manager, monkeypatch):
    monkeypatch.setattr(client_limits, "OWNED_SECONDS", 0.5)
    manager.listen(path)
    with closing(SessionDB(path, mode="embedded")):
        small = "from hermes_actor import limits\nlimits.OWNED_SECONDS = 0.2\n"
        service = manager.start(path, prelude=small)
        with pytest.raises(AlreadyOwned, match=f"process {os.getpid()} "):
            SessionDB(path, mode="actor")
    assert manager.ready() == service.pid
    assert write(path, "x") == service.pid


# --- the socket is the manager's -----------------------------------------------------------------


@pytest.mark.parametrize("beside", [False, True], ids=["outside", "beside"])
def test_socket_of_the_manager_is_served_and_stays(path, manager, beside):
    inode = manager.listen(path, beside=beside)
    service = manager.start(path)
    assert manager.ready() == service.pid
    assert write(path, "a") == service.pid
    service.terminate()
    assert service.wait(60) == 0
    assert socket_of(path).stat().st_ino == inode
    # A client that comes while no actor serves waits in the socket of the manager, and starts none.
    with WriterPool(path, path.with_name("records")) as pool:
        pool.add(1, mode="actor").spawn()
        wait_for(lambda: pending(manager.listener))
        assert actors_of(path) == set()
        second = manager.start(path)
        pool.wait_ready()
        pool.go()
        pool.wait_for_more()
        assert status(path).pid == second.pid
        assert pool.stop() == 0
        assert check(path, pool.recorded).faults == []
    assert actors_of(path) == {second.pid}
    assert contents(path, "s") == ["a"]


def pending(listener):
    """Return True if a client waits to be accepted."""
    import select

    return bool(select.select([listener], [], [], 0)[0])


def test_socket_of_the_manager_outlives_a_successor_too(path, manager):
    inode = manager.listen(path)
    service = manager.start(path)
    assert manager.ready() == service.pid
    new = request_handoff(resolve_paths(path), sys.executable)["pid"]
    os.kill(service.pid, signal.SIGTERM)
    assert service.wait(60) == 0
    assert write(path, "a") == new
    os.kill(new, signal.SIGTERM)
    wait_gone(new)
    assert socket_of(path).stat().st_ino == inode
    third = manager.start(path)
    assert write(path, "b") == third.pid


def test_listener_that_no_client_reaches_any_more_is_not_relied_on(path, manager):
    manager.listen(path)
    manager.place.unlink()
    service = manager.start(path)
    assert manager.ready() == service.pid
    assert write(path, "a") == service.pid
    service.terminate()
    assert service.wait(60) == 0
    # That socket was the actor's own.
    assert not socket_of(path).exists()


def test_variables_of_the_listener_go_no_further(path, manager):
    manager.listen(path)
    service = manager.start(path)
    assert manager.ready() == service.pid
    new = request_handoff(resolve_paths(path), sys.executable)["pid"]
    names = {entry.split(b"=")[0] for entry in environment(new)}
    assert not {name for name in names if name.startswith(b"LISTEN_")}
    assert b"WATCHDOG_PID" not in names
    assert b"NOTIFY_SOCKET" in names


def environment(pid):
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


@pytest.mark.parametrize("beside", [False, True], ids=["outside", "beside"])
def test_manager_that_listens_for_a_running_actor_gets_its_clients(path, manager, beside):
    """At every login: the actor of an earlier cron job must not go on where no client finds it."""
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "a")
        old = actor_pid(path)
        inode = manager.listen(path, beside=beside)
        service = manager.start(path)
        wait_gone(old)
        assert manager.ready() == service.pid
        db.append_message("s", "user", "b")
        assert db._port.statistics()["pid"] == service.pid
    # The end of the old one has not taken the new socket away.
    assert socket_of(path).stat().st_ino == inode
    assert contents(path, "s") == ["a", "b"]
    assert own(path, "epoch") == 2


def test_actor_whose_socket_is_removed_makes_room_for_the_next(path):
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        old = actor_pid(path)
        socket_of(path).unlink()
        wait_gone(old)
        assert write(path, "a") != old
        db.append_message("s", "user", "b")
    assert contents(path, "s") == ["a", "b"]
    assert "its socket was replaced" in (folder_of(path) / "log").read_text()


# --- started inside of another service -----------------------------------------------------------

INSIDE = """
import os, signal, sys
from pathlib import Path
from support.subprocess_env import tell
from hermes_actor.client import spawn
from hermes_actor import SessionDB

path, folder, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
spawn._CGROUP = folder / "cgroup"
spawn._SCOPE_SECONDS = seconds
if os.environ.get("IGNORES_CHILDREN"):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
db = SessionDB(path, mode="actor")
db.ensure_session("s", "cli")
db.append_message("s", "user", "x")
tell(db._port.statistics()["pid"])
db.close()
"""

SYSTEMD_RUN = """#!{python}
import json, os, sys, time
with open({log!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], dict(os.environ)]) + "\\n")
{code}
os.environ["IN_SCOPE"] = "1"
command = sys.argv[sys.argv.index("--") + 1:]
os.execv(command[0], command)
"""


@contextmanager
def gateway(folder, *, cgroup, systemd_run=""):
    """A service of the user, whose manager answers. Its clients start actors in *cgroup*."""
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    log, program = folder / "systemd-run.log", folder / "bin" / "systemd-run"
    log.touch()
    program.parent.mkdir()
    if systemd_run is not None:
        text = SYSTEMD_RUN.format(python=sys.executable, log=str(log), code=systemd_run)
        program.write_text(text)
        program.chmod(0o755)
    with closing(socket.socket(socket.AF_UNIX)) as bus:
        bus.bind(str(folder / "bus"))
        bus.listen()

        def run(path, seconds=30, **variables):
            pid = run_python(
                INSIDE,
                path,
                folder,
                seconds,
                XDG_RUNTIME_DIR=str(folder),
                PATH=str(program.parent),
                **variables,
                PYTHONPATH=os.pathsep.join(
                    filter(None, [os.environ.get("PYTHONPATH"), str(SCRIPTS)])
                ),
            )
            calls = [json.loads(line) for line in log.read_text().splitlines()]
            return pid, calls

        yield run


GATEWAY = "/user.slice/user-0.slice/user@0.service/app.slice/gateway.service"


def test_actor_gets_a_scope_of_its_own(path, tmp_path):
    with gateway(tmp_path, cgroup=GATEWAY) as run:
        pid, ((arguments, variables),) = run(path)
    assert arguments[:4] == ["--user", "--scope", "--quiet", "--collect"]
    assert str(path) in arguments[4]
    assert arguments[5:7] == ["--", sys.executable]
    assert variables["XDG_RUNTIME_DIR"] == str(tmp_path)
    assert actor_pid(path) == pid
    assert b"IN_SCOPE=1" in environment(pid)
    # The rest of its environment is as small as ever.
    assert not [entry for entry in environment(pid) if entry.startswith(b"HERMES_HOME")]


def test_no_scope_is_made_for_who_is_not_in_a_service(path, tmp_path):
    with gateway(tmp_path, cgroup="/user.slice/user-0.slice/session-1.scope") as run:
        pid, calls = run(path)
    assert calls == []
    assert actor_pid(path) == pid


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        (None, 30),
        ("sys.exit('Failed to start transient scope unit: Permission denied')", 30),
        ("time.sleep(60)", 0.3),
    ],
    ids=["missing", "refused", "hanging"],
)
def test_without_a_scope_the_actor_is_started_as_ever(path, tmp_path, code, seconds):
    with gateway(tmp_path, cgroup=GATEWAY, systemd_run=code) as run:
        pid, calls = run(path, seconds)
    assert len(calls) == (code is not None)
    assert actor_pid(path) == pid
    assert b"IN_SCOPE=1" not in environment(pid)
    assert contents(path, "s") == ["x"]


def test_actor_that_was_ended_with_a_service_is_back_for_the_next_write(path):
    """Where it could not be saved from the end of the service."""
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        for number in range(5):
            stop_actor(path, signal.SIGKILL)
            db.append_message("s", "user", str(number))
    assert contents(path, "s") == ["0", "1", "2", "3", "4"]


# --- a systemd of our own ------------------------------------------------------------------------

OUTER = r"""
set -e
mount --make-rprivate /
mount -t tmpfs none /mnt
mkdir /mnt/cgroup
mount -t cgroup2 none /mnt/cgroup
mkdir -p "/mnt/cgroup/$GROUP"
echo 0 > "/mnt/cgroup/$GROUP/cgroup.procs"
exec unshare --cgroup sh -c "$INNER" sh "$@"
"""
INNER = r"""
set -e
mount -t proc none /proc
umount -l /sys/fs/cgroup 2>/dev/null || true
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs none /run
mkdir -p /run/systemd/system "$XDG_RUNTIME_DIR"
chmod 700 "$XDG_RUNTIME_DIR"
"$SYSTEMD" --user >"$HOME/systemd.log" 2>&1 &
for _ in $(seq 100); do
    systemctl --user is-system-running >/dev/null 2>&1 && break
    sleep 0.1
done
systemctl --user show --property=Version >/dev/null
exec "$@"
"""
CLEAR = r"""
mount --make-rprivate / && mount -t tmpfs none /mnt && mkdir /mnt/cgroup &&
mount -t cgroup2 none /mnt/cgroup &&
find "/mnt/cgroup/$GROUP" -depth -type d -exec rmdir {} +
"""
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]

SYSTEMD = next(
    (path for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd") if Path(path).exists()),
    None,
)


@pytest.fixture
def systemd(tmp_path):
    """Runs a script where a systemd of its own is the manager of this user."""
    if os.getuid() or SYSTEMD is None or not shutil.which("unshare"):
        pytest.skip("needs root, systemd and unshare")
    if Path("/run/systemd/system").exists():
        pytest.skip("there is a systemd, whose control groups are not for us")
    group = f"hermes-actor-test-{os.getpid()}"
    env = {**os.environ, "GROUP": group, "INNER": INNER, "SYSTEMD": SYSTEMD}
    env |= {"HOME": str(tmp_path), "HERMES_HOME": str(tmp_path / ".hermes")}
    env |= {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", "HERMES_ACTOR_IDLE_EXIT": "60"}
    for name in ("XDG_CONFIG_HOME", "DBUS_SESSION_BUS_ADDRESS"):
        env.pop(name, None)

    def run(*command):
        return subprocess.run(
            [*UNSHARE, "sh", "-c", OUTER, "sh", *command],
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
        )

    try:
        if run("true").returncode:
            pytest.skip("a systemd cannot be run here")
        yield run
    finally:
        subprocess.run([*UNSHARE, "sh", "-c", CLEAR], env=env, check=False, capture_output=True)


REAL = r"""
import json, os, subprocess, sys, time
from pathlib import Path
from hermes_actor import SessionDB

home = Path(os.environ["HERMES_HOME"])
told = {}


def command(*words):
    done = subprocess.run([sys.executable, "-m", "hermes_actor", *words],
                          capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def systemctl(*words):
    return subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True)


def unit(key, name="hermes-actor.service"):
    return systemctl("show", "--value", f"--property={key}", name).stdout.strip()


def write(db_path=None):
    db = SessionDB(db_path)
    db.ensure_session("s", "cli")
    db.append_message("s", "user", "x")
    pid = db._port.statistics()["pid"]
    db.close()
    return pid


def step(name, **facts):
    told[name] = {**facts, "main": int(unit("MainPID") or 0), "state": unit("ActiveState"),
                  "result": unit("Result")}


first = write()
command("service", "install")
step("install", before=first, gone=not Path(f"/proc/{first}/exe").exists(), wrote=write())
os.kill(int(unit("MainPID")), 9)
step("kill", wrote=write())
reload = systemctl("reload", "hermes-actor.service").returncode
step("reload", code=reload, wrote=write())
systemctl("stop", "hermes-actor.service")
step("stop")
step("connect", wrote=write())

folder = Path.home() / ".config" / "systemd" / "user"
program = Path.home() / "gateway.py"
program.write_text('''
import time
from pathlib import Path
from hermes_actor import SessionDB
path = Path.home() / "gateway" / "state.db"
db = SessionDB(path)
with path.with_name("pids").open("a") as file:
    file.write(f"{db._port.statistics()['pid']}\\n")
time.sleep(600)
''')
path = os.environ.get("PYTHONPATH")
variables = [f"Environment=PYTHONPATH={path}"] if path else []
(folder / "gateway.service").write_text(
    "\n".join(["[Service]", *variables, f"ExecStart={sys.executable} {program}", ""]))
systemctl("daemon-reload")
pids = Path.home() / "gateway" / "pids"
for count in (1, 2):
    systemctl("restart", "gateway.service")
    while not pids.exists() or len(pids.read_text().split()) < count:
        time.sleep(0.05)
actors = [int(pid) for pid in pids.read_text().split()]
told["gateway"] = {"actors": actors, "cgroup": Path(f"/proc/{actors[0]}/cgroup").read_text()}
systemctl("stop", "gateway.service")

told["status"] = json.loads(command("service", "status", "--json"))
command("service", "uninstall")
step("uninstall", wrote=write(), left=sorted(p.name for p in folder.rglob("hermes*")))
Path(sys.argv[1]).write_text(json.dumps(told))
"""


def test_real_systemd(systemd, tmp_path):
    script, result = tmp_path / "script.py", tmp_path / "result.json"
    script.write_text(REAL)
    done = systemd(sys.executable, str(script), str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(result.read_text())
    for name in ("install", "kill", "reload", "connect"):
        assert (name, told[name]["state"]) == (name, "active")
        assert (name, told[name]["wrote"]) == (name, told[name]["main"])
    assert len({told[name]["main"] for name in ("install", "kill", "reload", "connect")}) == 4
    # The actor before was drained; the manager killed none, its own child or not.
    assert told["install"]["gone"]
    assert told["reload"]["code"] == 0
    assert (told["stop"]["state"], told["stop"]["result"]) == ("inactive", "success")
    # The actor that a service had started has seen that service restarted.
    assert len(set(told["gateway"]["actors"])) == 1
    assert re.search(r"^0::.*/run-\w+\.scope$", told["gateway"]["cgroup"], re.MULTILINE)
    assert told["status"]["active"]
    assert told["status"]["status"] == "serving"
    assert (told["uninstall"]["left"], told["uninstall"]["main"]) == ([], 0)


@pytest.mark.parametrize("is_allowed", [True, False])
def test_scope_of_a_program_that_ignores_the_end_of_its_children(path, tmp_path, is_allowed):
    """Every child seems to end with 0 then, also a systemd-run that refuses."""
    code = "" if is_allowed else "sys.exit('Failed to start transient scope unit: Access denied')"
    with gateway(tmp_path, cgroup=GATEWAY, systemd_run=code) as run:
        pid, calls = run(path, IGNORES_CHILDREN="1")
    assert len(calls) == 1
    assert actor_pid(path) == pid
    assert (b"IN_SCOPE=1" in environment(pid)) == is_allowed
