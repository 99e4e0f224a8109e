"""Service managers: what is sent to them, what they pass on, and the files written for them.

The managers' side is played by the tests; with real ones see ``process/test_supervisors.py``.
"""

import json
import os
import platform
import plistlib
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.fake_builds import serving

from hermes_actor.actor import socket_activation
from hermes_actor.actor.mailbox import Mailbox
from hermes_actor.actor.sd_notify import ServiceManager
from hermes_actor.cli import run
from hermes_actor.cli.actor import service
from hermes_actor.cli.actor.service._manager import unit_name
from hermes_actor.cli.actor.service.systemd import Systemd
from hermes_actor.client import spawn
from hermes_actor.errors import AlreadyOwned
from hermes_actor.paths import resolve_paths

# --- what a manager is notified of ---------------------------------------------------------------


@pytest.fixture(params=["path", "abstract"])
def notify_socket(request, tmp_path, monkeypatch):
    """The manager's end of NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@hermes-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0", 1))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield sock


def received(sock):
    """Everything that has been said since the last time, message by message."""
    messages = []
    try:
        while True:
            messages.append(sock.recv(4096).decode().split("\n"))
    except BlockingIOError:
        return messages


def test_manager_hears_of_a_whole_life(notify_socket):
    supervisor = ServiceManager.from_environment()
    assert supervisor.is_there
    before = time.monotonic_ns() // 1000
    for say in (
        lambda: supervisor.phase("migrating 40%"),
        lambda: supervisor.phase("migrating 40%"),
        supervisor.ready,
        supervisor.tick,
        supervisor.reloading,
        supervisor.ready,
        lambda: supervisor.stopping("SIGTERM"),
    ):
        say()
    ready = [f"MAINPID={os.getpid()}", "READY=1", "STATUS=serving"]
    phase, first, tick, reloading, second, stopping = received(notify_socket)
    assert phase == ["STATUS=migrating 40%"]
    assert first == second == ready
    assert tick == ["WATCHDOG=1"]
    assert reloading[0] == "RELOADING=1"
    key, _, usec = reloading[1].partition("=")
    assert key == "MONOTONIC_USEC"
    assert before <= int(usec) <= time.monotonic_ns() // 1000
    assert stopping == ["STOPPING=1", "STATUS=draining: SIGTERM"]


def test_message_with_line_breaks_stays_one_line(notify_socket):
    ServiceManager.from_environment().phase("first\nREADY=1\r\n  last")
    assert received(notify_socket) == [["STATUS=first READY=1 last"]]


@pytest.mark.parametrize("address", [None, "", "vsock:2:1234", "relative"])
def test_without_a_manager_nothing_is_sent(monkeypatch, address):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.setattr(socket, "socket", None)
    supervisor = ServiceManager.from_environment()
    assert not supervisor.is_there
    assert supervisor.tick_seconds is None
    supervisor.ready()


def test_manager_that_is_gone_or_deaf_costs_nothing(tmp_path):
    ServiceManager(str(tmp_path / "gone")).ready()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        began = time.monotonic()
        for _ in range(2000):
            ServiceManager(str(tmp_path / "deaf")).tick()
        assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        ("60000000", "ours", 30.0),
        ("60000000", None, 30.0),
        ("60000000", "1", None),
        ("0", "ours", None),
        ("soon", "ours", None),
        (None, None, None),
    ],
)
@pytest.mark.usefixtures("notify_socket")
def test_watchdog_is_notified_twice_in_its_time(monkeypatch, usec, pid, seconds):
    for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, str(os.getpid()) if value == "ours" else value)
    assert ServiceManager.from_environment().tick_seconds == seconds
    # A successor, which has another pid, inherits the rest.
    assert "WATCHDOG_PID" not in os.environ
    assert ServiceManager.from_environment().tick_seconds == seconds


class Job:
    deadline = 0.0


def test_mailbox_tells_for_how_long_the_writer_has_not_looked(clockwork):
    mailbox = Mailbox()
    assert mailbox.stalled_for() == 0
    mailbox.put(b"a", Job())
    clockwork.now += 5
    mailbox.put(b"a", Job())
    assert mailbox.stalled_for() == 5
    # That the requests have expired meanwhile does not make the writer live.
    assert len(mailbox.take_expired(1.0)) == 2
    clockwork.now += 5
    assert mailbox.stalled_for() == 10
    assert mailbox.take(0) == []
    assert mailbox.stalled_for() == 0


def test_mailbox_that_never_empties_is_still_looked_at(clockwork):
    mailbox = Mailbox()
    for _ in range(200):
        mailbox.put(b"a", Job())
    clockwork.now += 5
    mailbox.take(0)
    assert mailbox.stalled_for() == 0
    clockwork.now += 3
    assert mailbox.stalled_for() == 3


@pytest.fixture
def clockwork(monkeypatch):
    class Clock:
        now = 100.0

    monkeypatch.setattr(time, "monotonic", lambda: Clock.now)
    return Clock


# --- what a manager passes on --------------------------------------------------------------------


@pytest.fixture
def paths(tmp_path):
    paths = resolve_paths(tmp_path / "state.db")
    paths.folder.mkdir(0o700)
    return paths


def listening(paths):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(paths.sock))
    sock.listen()
    return sock


@pytest.fixture
def pass_on(monkeypatch):
    """Pass a descriptor as a manager does; it is found at another number than usual."""

    def pass_on(descriptor, *, pid=None, count="1"):
        copy = os.dup(descriptor)
        os.set_inheritable(copy, True)
        monkeypatch.setattr(socket_activation, "_FIRST_DESCRIPTOR", copy)
        monkeypatch.setenv("LISTEN_PID", pid or str(os.getpid()))
        monkeypatch.setenv("LISTEN_FDS", count)
        monkeypatch.setenv("LISTEN_FDNAMES", "hermes-actor.socket")
        return copy

    monkeypatch.delenv("_HERMES_ACTOR_KEEP_SOCKET", raising=False)
    yield pass_on
    assert not {name for name in os.environ if name.startswith("LISTEN_")}


def test_listener_is_taken_and_its_path_kept(paths, pass_on):
    with closing(listening(paths)) as theirs:
        copy = pass_on(theirs.fileno())
        with closing(socket_activation.passed_listener()) as ours:
            assert ours.fileno() == copy
            assert not os.get_inheritable(copy)
            assert not ours.getblocking()
            assert not socket_activation.path_is_kept()
            assert socket_activation.verify_listener(ours, paths) is ours
            assert socket_activation.path_is_kept()
            # Once only: what is started by this process must not take it too.
            assert socket_activation.passed_listener() is None
            assert not socket_activation.path_is_kept()


def test_listener_of_another_process_is_left_alone(paths, pass_on):
    with closing(listening(paths)) as theirs:
        copy = pass_on(theirs.fileno(), pid="1")
        assert socket_activation.passed_listener() is None
        os.close(copy)


@pytest.mark.parametrize("kind", ["datagram", "internet", "deaf", "file", "two", "junk"])
def test_what_is_no_listener_is_not_used(tmp_path, pass_on, caplog, kind):
    if kind == "file":
        descriptor = os.open(tmp_path, os.O_RDONLY)
    else:
        family = socket.AF_INET if kind == "internet" else socket.AF_UNIX
        form = socket.SOCK_DGRAM if kind == "datagram" else socket.SOCK_STREAM
        descriptor = socket.socket(family, form).detach()
    copy = pass_on(descriptor, count={"two": "2", "junk": "x"}.get(kind, "1"))
    assert socket_activation.passed_listener() is None
    assert kind == "junk" or "service manager has passed" in caplog.text
    os.close(descriptor)
    try:
        assert kind == "junk" or not os.get_inheritable(copy)
        os.close(copy)
    except OSError:
        pass  # it was closed


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_listener_that_no_client_reaches_is_not_used(paths, pass_on, caplog, what):
    with closing(listening(paths)) as theirs:
        pass_on(theirs.fileno())
        ours = socket_activation.passed_listener()
        paths.sock.unlink()
        if what == "replaced":
            listening(paths).close()
        assert socket_activation.verify_listener(ours, paths) is None
        assert ours.fileno() == -1
        assert not socket_activation.path_is_kept()
    assert str(paths.sock) in caplog.text


def test_clients_that_wait_learn_who_owns_the_store(paths, pass_on):
    with closing(listening(paths)) as theirs:
        pass_on(theirs.fileno())
        with closing(socket_activation.passed_listener()) as ours:
            clients = [socket.socket(socket.AF_UNIX) for _ in range(3)]
            for client in clients:
                client.connect(str(paths.sock))
                client.sendall(b"hello")
            socket_activation.reject_pending(ours, AlreadyOwned("it is owned by process 4711"))
            for client in clients:
                with client:
                    assert b"owned by process 4711" in client.recv(4096)


# --- where an actor is started -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("0::/user.slice/user-1000.slice/session-3.scope", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/gateway.service", True),
        ("0::/system.slice/gateway.service", True),
        ("0::/system.slice/gateway.service/workers", True),
        ("0::/system.slice/system-gateway.slice/gateway@2.service", True),
        ("12:pids:/system.slice/gateway.service\n0::/", False),
        ("0::/docker/0123456789abcdef", False),
        ("", False),
    ],
)
def test_whether_we_are_part_of_a_service(monkeypatch, tmp_path, text, inside):
    monkeypatch.setattr(spawn, "_CGROUP", tmp_path / "cgroup")
    assert spawn._in_a_service() is False
    (tmp_path / "cgroup").write_text(text + "\n")
    assert spawn._in_a_service() is inside


def test_user_bus_is_there_when_it_answers(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert spawn._user_bus() is None
    with closing(socket.socket(socket.AF_UNIX)) as bus:
        bus.bind(str(tmp_path / "bus"))
        assert spawn._user_bus() is None
        bus.listen()
        assert spawn._user_bus() == {"XDG_RUNTIME_DIR": str(tmp_path)}


# --- files for systemd ---------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user's home, whose store is in its usual place."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HERMES_HOME", str(home / ".hermes"))
    for name in ("XDG_CONFIG_HOME", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    return home


def units(db):
    return {path.name: text for path, text in Systemd(resolve_paths(db)).files.items()}


def settings(text):
    """key → values of a unit."""
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def test_unit_has_what_a_service_needs(home):
    db = home / ".hermes" / "state.db"
    found = units(db)
    assert list(found) == ["hermes-actor.service", "hermes-actor.socket"]
    service, sock = (settings(text) for text in found.values())
    command = f"{sys.executable} -P -m hermes_actor"
    assert service["Type"] == ["notify"]
    assert service["NotifyAccess"] == ["all"]
    assert service["ExecStart"] == [f"{command} serve --plain --db {db}"]
    assert service["ExecReload"] == [f"{command} handoff --db {db}"]
    assert service["KillMode"] == ["mixed"]
    assert service["After"] == service["Wants"] == service["PartOf"] == ["hermes-actor.socket"]
    assert sock["ListenStream"] == ["%t/hermes-actor/hermes-actor"]
    assert sock["SocketMode"] == ["0600"]
    assert sock["DirectoryMode"] == ["0700"]
    assert "Environment" not in service


def test_package_that_was_found_through_the_path_is_found_by_the_service(home, monkeypatch):
    root = str(Path(service.__file__).parents[4])
    monkeypatch.setenv("PYTHONPATH", f"{root}{os.pathsep}/else where")
    found = settings(units(home / "state.db")["hermes-actor-" + digest(home) + ".service"])
    assert found["Environment"] == [f'"PYTHONPATH={root}:/else where"']
    monkeypatch.setenv("PYTHONPATH", "/else where")
    assert "Environment" not in "".join(units(home / "state.db").values())


def digest(home):
    return unit_name(resolve_paths(home / "state.db")).rpartition("-")[2]


def test_every_store_has_a_unit_of_its_own(home):
    stores = [home / ".hermes" / "state.db", home / ".hermes" / "b.db", home / "state.db"]
    names = [unit_name(resolve_paths(db)) for db in stores]
    assert names[0] == "hermes-actor"
    assert len(set(names)) == 3


def test_odd_characters_are_quoted():
    home = Path("/nowhere")
    db = home / 'a %h $HOME "x" \\ é' / "state.db"
    service, sock = (settings(text) for text in units(db).values())
    quoted = f'"{home}/a %%h $$HOME \\"x\\" \\\\ é/state.db"'
    assert service["ExecStart"][0].endswith(f"--db {quoted}")
    assert sock["ListenStream"] == [f"%t/hermes-actor/{unit_name(resolve_paths(db))}"]
    assert service["Description"][0].endswith(f'{home}/a %%h $HOME "x" \\ é/state.db')


def test_path_that_no_unit_can_hold_is_refused(home, capsys):
    assert run(["service", "install", "--db", str(home / "a\nb.db")]) == 1
    assert "a\\nb.db" in capsys.readouterr().err
    assert not (home / ".config").exists()


def test_socket_of_a_long_path_is_as_short_as_any(home):
    (found,) = settings(list(units(home / ("d" * 200) / "state.db").values())[1])["ListenStream"]
    assert len(found) < 60


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("folder", [".hermes", "with %h $HOME spaces"])
def test_systemd_understands_every_line(home, open_folder, monkeypatch, folder):
    monkeypatch.setenv("XDG_RUNTIME_DIR", open_folder)
    target = home / "units"
    target.mkdir()
    for name, text in units(home / folder / "state.db").items():
        (target / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "--user", "--man=no", "verify", *target.iterdir()],
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stderr.splitlines() if "hermes-actor" in line]
    assert (done.returncode, said) == (0, [])


# --- installing ----------------------------------------------------------------------------------

FAKE = """#!{python}
import json, os, sys
with open({log!r}, "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
answers = json.load(open({answers!r}))
for words, (code, text) in answers.items():
    if words in " ".join(sys.argv[1:]):
        print(text, file=sys.stderr if code else sys.stdout)
        sys.exit(code)
"""


class Fake:
    """A program of a service manager that records how it is called."""

    def __init__(self, folder):
        self.folder = folder / "bin"
        self.folder.mkdir()
        self._log, self._answers = folder / "called", folder / "answers"
        self.answer({})

    def add(self, name):
        program = self.folder / name
        program.write_text(
            FAKE.format(python=sys.executable, log=str(self._log), answers=str(self._answers))
        )
        program.chmod(0o755)

    def answer(self, answers):
        self._answers.write_text(json.dumps(answers))

    def changes(self):
        """The calls since the last time that were no questions."""
        calls = [json.loads(line) for line in self._log.read_text().splitlines()]
        self._log.write_text("")
        questions = {"show", "print"}
        return [call[1:] for call in calls if not questions & set(call)]


@pytest.fixture
def fake(tmp_path, monkeypatch):
    fake = Fake(tmp_path)
    monkeypatch.setenv("PATH", str(fake.folder))
    monkeypatch.setattr("hermes_actor.cli.actor.service._STARTED_SECONDS", 0.0)
    return fake


UNITS = ["hermes-actor.service", "hermes-actor.socket"]
RELOAD = ["--user", "daemon-reload"]
ENABLE = ["--user", "--no-block", "enable", "--now", *UNITS]


def test_install_writes_and_starts_and_does_no_harm_the_second_time(home, fake, capsys):
    fake.add("systemctl")
    assert run(["service", "install"]) == 0
    folder = home / ".config" / "systemd" / "user"
    assert sorted(path.name for path in folder.iterdir()) == UNITS
    assert fake.changes() == [RELOAD, ENABLE]
    assert f"wrote {folder / UNITS[0]}" in capsys.readouterr().out
    before = [path.stat().st_mtime_ns for path in folder.iterdir()]
    assert run(["service", "install"]) == 0
    assert fake.changes() == [RELOAD, ENABLE]
    assert [path.stat().st_mtime_ns for path in folder.iterdir()] == before
    assert "wrote" not in capsys.readouterr().out


def test_install_repairs_a_unit_of_another_version(home, fake, capsys):
    fake.add("systemctl")
    folder = home / "config" / "systemd" / "user"
    folder.mkdir(parents=True)
    (folder / UNITS[0]).write_text("[Service]\nExecStart=/old\n")
    os.environ["XDG_CONFIG_HOME"] = str(home / "config")
    fake.answer({"show --property=ActiveState": [0, "ActiveState=active\nMainPID=1"]})
    assert run(["service", "install"]) == 0
    assert "Type=notify" in (folder / UNITS[0]).read_text()
    assert "restart the service to apply the changes" in capsys.readouterr().out


@pytest.fixture(autouse=True)
def no_config_home(monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


@pytest.mark.parametrize("what", ["no systemctl", "no user manager"])
def test_without_a_manager_the_commands_are_shown(home, fake, capsys, what):
    if what == "no user manager":
        fake.add("systemctl")
        fake.answer({"show": [1, "Failed to connect to bus: No medium found\nmore"]})
    assert run(["service", "install"]) == 0
    said = capsys.readouterr().out
    assert (home / ".config" / "systemd" / "user" / UNITS[0]).exists()
    reason = "is not installed" if what == "no systemctl" else "No medium found"
    assert reason in said
    assert f"  systemctl {' '.join(RELOAD)}\n  systemctl {' '.join(ENABLE)}\n" in said
    assert run(["service", "status"]) == 1
    assert reason in capsys.readouterr().out
    assert run(["service", "uninstall"]) == 0
    assert list((home / ".config" / "systemd" / "user").iterdir()) == []
    assert "systemctl --user stop" in capsys.readouterr().out


def test_dry_run_shows_everything_and_does_nothing(home, fake, capsys):
    fake.add("systemctl")
    assert run(["service", "install", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Type=notify" in said
    assert "ListenStream=" in said
    assert f"systemctl {' '.join(ENABLE)}" in said
    assert list(home.iterdir()) == []
    assert run(["service", "install"]) == 0
    fake.changes()
    assert run(["service", "uninstall", "--dry-run"]) == 0
    assert "would remove" in capsys.readouterr().out
    assert fake.changes() == []
    assert (home / ".config" / "systemd" / "user" / UNITS[0]).exists()


def test_failure_of_the_manager_is_shown(home, fake, capsys):
    fake.add("systemctl")
    fake.answer({"enable": [1, "Failed to enable unit: reason"]})
    assert run(["service", "install"]) == 1
    assert "Failed to enable unit: reason" in capsys.readouterr().err


def test_uninstall_stops_and_removes(home, fake, capsys):
    fake.add("systemctl")
    assert run(["service", "uninstall"]) == 0
    assert "not installed" in capsys.readouterr().out
    assert run(["service", "install"]) == 0
    fake.changes()
    folder = home / ".config" / "systemd" / "user"
    other = folder / "default.target.wants" / "other.service"
    other.parent.mkdir()
    other.symlink_to("/x")
    (folder / "default.target.wants" / UNITS[0]).symlink_to(folder / UNITS[0])
    assert run(["service", "uninstall"]) == 0
    disable = ["--user", "disable", "--now", *UNITS]
    assert fake.changes() == [disable, RELOAD]
    assert [path.name for path in folder.rglob("*.s*")] == ["other.service"]


def test_status_is_what_the_manager_says(home, fake, capsys):
    fake.add("systemctl")
    show = {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"}
    show |= {"MainPID": "4711", "StatusText": "serving = all is well"}
    text = "\n".join(f"{key}={value}" for key, value in show.items())
    fake.answer({"show --property=ActiveState": [0, text]})
    assert run(["service", "status"]) == 3
    assert run(["service", "install"]) == 0
    capsys.readouterr()
    assert run(["service", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "installed": True,
        "file": str(home / ".config" / "systemd" / "user" / UNITS[0]),
        "reason": None,
        "state": "active (running), enabled",
        "active": True,
        "pid": 4711,
        "status": "serving = all is well",
    }
    fake.answer({"show --property=ActiveState": [0, "ActiveState=inactive\nMainPID=0"]})
    assert run(["service", "status"]) == 3
    assert "inactive" in capsys.readouterr().out


def test_restart_of_a_service_is_its_managers_business(home, fake, capsys):
    fake.add("systemctl")
    path = home / ".hermes" / "state.db"
    path.parent.mkdir()
    with serving(path) as actor:
        fake.answer({"show --property=ActiveState": [0, "ActiveState=active\nMainPID=1"]})
        assert run(["service", "install"]) == 0
    with serving(path) as actor:
        answer = f"ActiveState=active\nMainPID={actor.pid}"
        fake.answer({"show --property=ActiveState": [0, answer]})
        fake.changes()
        # The manager of the test does nothing, so the actor goes on.
        assert run(["restart", "--timeout", "0.1"]) == 0
        assert fake.changes() == [["--user", "restart", UNITS[0]]]
        assert actor.lives
        fake.answer({"show --property": [0, answer], "restart": [1, "no such unit"]})
        assert run(["restart", "--timeout", "0.1"]) == 1
        assert "no such unit" in capsys.readouterr().err


def test_folder_of_another_user_gets_no_service(home, fake, capsys, monkeypatch):
    fake.add("systemctl")
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert run(["service", "install"]) == 1
    assert "only that user" in capsys.readouterr().err
    assert not (home / ".config").exists()


# --- launchd -------------------------------------------------------------------------------------


@pytest.fixture
def mac(home, fake, monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    fake.add("launchctl")
    return home / "Library" / "LaunchAgents" / "hermes-actor.plist"


DOMAIN = f"gui/{os.getuid()}"
NOT_LOADED = {f"print {DOMAIN}/": [113, "Could not find service"]}


def test_agent_has_what_a_service_needs(mac, fake, home):
    fake.answer(NOT_LOADED)
    assert run(["service", "install"]) == 0
    assert fake.changes() == [["bootstrap", DOMAIN, str(mac)]]
    agent = plistlib.loads(mac.read_bytes())
    assert agent["Label"] == "hermes-actor"
    assert agent["ProgramArguments"][0] == sys.executable
    assert agent["ProgramArguments"][-2:] == ["--db", str(home / ".hermes" / "state.db")]
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["Umask"] == 0o077
    assert agent["StandardErrorPath"].startswith(str(home / "Library" / "Logs"))


def test_agent_is_loaded_again_only_if_it_has_changed(mac, fake):
    assert run(["service", "install"]) == 0
    bootout, bootstrap = ["bootout", f"{DOMAIN}/hermes-actor"], ["bootstrap", DOMAIN, str(mac)]
    assert fake.changes() == [bootout, bootstrap]
    assert run(["service", "install"]) == 0
    assert fake.changes() == []


def test_agent_is_taken_out_and_removed(mac, fake, capsys):
    assert run(["service", "install"]) == 0
    fake.changes()
    fake.answer({f"print {DOMAIN}/": [0, "\tstate = running\n\tpid = 4711\n"]})
    assert run(["service", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["pid"] == 4711
    assert run(["service", "uninstall"]) == 0
    assert ["bootout", f"{DOMAIN}/hermes-actor"] in fake.changes()
    assert not mac.exists()
    assert run(["service", "status"]) == 3


def test_without_launchctl_the_command_is_shown(mac, fake, capsys):
    (fake.folder / "launchctl").unlink()
    assert run(["service", "install"]) == 0
    assert f"launchctl bootstrap {DOMAIN}" in capsys.readouterr().out
    assert mac.exists()
