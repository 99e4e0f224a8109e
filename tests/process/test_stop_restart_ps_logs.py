"""stop, restart, ps, logs, export-schema: what people type, through the real command."""

import contextlib
import importlib
import io
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from support.actors import actor_pid, folder_of, pause, paused, wait_for
from support.fake_builds import around, command, serving, wait_until
from support.writer_load import writer_load

from hermes_actor import SessionDB, exit_codes
from hermes_actor.cli import run
from hermes_actor.system.processes import ProcessEnd

EMBEDDED = """
import sys
from pathlib import Path
from hermes_actor import SessionDB
db = SessionDB(Path(sys.argv[1]), mode="embedded")
print("open", flush=True)
sys.stdin.read()
"""

ACTIVATED = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.executable, [sys.executable, "-m", "hermes_actor", "serve", "--db", sys.argv[2]])
"""


# --- stop and drain ------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["stop", "drain"])
def test_it_ends_and_is_gone_when_the_command_returns(path, word):
    with serving(path) as actor:
        done = command(word, "--db", path)
        assert (done.returncode, done.stdout) == (0, f"stopped the actor (pid {actor.pid})\n")
        assert actor.exit_code(5) == 0
    done = command(word, "--db", path, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (exit_codes.NOT_RUNNING, {"ended": False})


@pytest.mark.parametrize("word", ["stop", "drain"])
def test_a_socket_that_a_manager_holds_is_left_alone_after_the_end(path, word):
    """To ask it whether the actor is gone would start the next one."""
    folder_of(path).mkdir(0o700)
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(folder_of(path) / "sock"))
        listener.listen(16)
        listener.setblocking(False)
        fd = str(listener.fileno())
        with subprocess.Popen(
            [sys.executable, "-c", ACTIVATED, fd, path],
            pass_fds=[listener.fileno()], stdout=subprocess.PIPE, text=True,
        ) as actor:  # fmt: skip
            assert actor.stdout.readline().startswith("serving")
            done = command(word, "--db", path)
            assert (done.returncode, done.stdout) == (0, f"stopped the actor (pid {actor.pid})\n")
            assert actor.wait(60) == 0
        # Once for the actor that has ended, once for none.
        assert command(word, "--db", path).returncode == exit_codes.NOT_RUNNING
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_stop_tells_what_it_waits_for_and_gives_up_in_time(path, tmp_path):
    go = tmp_path / "go"
    prelude = around("hermes_actor.engine.writer:Writer.close", before=wait_until(go))
    with serving(path, prelude=prelude) as actor:
        done = command("stop", "--db", path, "--timeout", "4")
        go.touch()
        assert done.returncode == exit_codes.REFUSED
        assert f"waiting: pid {actor.pid} is draining" in done.stderr
        assert (
            f"Error: the actor of {path} (pid {actor.pid}) did not stop within 4 s" in done.stderr
        )
        assert "hermes-actor stop --force" in done.stderr
        assert actor.exit_code() == 0


def test_stop_ends_one_that_does_not_answer(path):
    with serving(path) as actor:
        pause(actor.pid)
        done = command("stop", "--db", path, "--timeout", "0.1", "--force")
        assert (done.returncode, done.stdout) == (0, f"stopped the actor (pid {actor.pid})\n")
        assert actor.exit_code() == -signal.SIGKILL


def test_restart_beside_one_that_does_not_answer_keeps_its_timeout(path):
    with serving(path) as actor, paused(actor.pid):
        done = command("restart", "--db", path, "--timeout", "0.2")
    assert done.returncode == 1
    (seconds,) = re.findall(r"has not answered for ([0-9.]+) s", done.stderr)
    assert float(seconds) < 5.0, "the time of a status request"


def test_stop_names_a_program_that_owns_the_store_without_serving(path):
    with subprocess.Popen(
        [sys.executable, "-c", EMBEDDED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout.readline() == b"open\n"
        done = command("stop", "--db", path)
        assert done.returncode == exit_codes.REFUSED
        assert f"is owned by process {owner.pid} " in done.stderr
        listed = json.loads(command("ps", "--json").stdout)
        (mine,) = [one for one in listed if one["database"] == str(path)]
        assert (mine["pid"], mine["phase"]) == (owner.pid, "embedded")
        owner.stdin.close()


def test_the_end_of_a_process_is_seen_without_pidfd(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with subprocess.Popen(["sleep", "60"]) as sleeper, ProcessEnd(sleeper.pid) as end:
        assert not end.wait(0.05)
        sleeper.kill()
        sleeper.wait()
        assert end.wait(60)


# --- restart -------------------------------------------------------------------------------------


def test_restart_under_load_loses_nothing(path):
    SessionDB(path).close()
    with writer_load(path, 2) as running:
        old = actor_pid(path)
        done = command("restart", "--db", path, "--json")
        found = json.loads(done.stdout)
        assert (done.returncode, found["ended"], found["phase"]) == (0, old, "serving")
        assert found["pid"] == actor_pid(path) != old
        running.goes_on()


def test_restart_starts_one_and_makes_new_settings_take_effect(path):
    done = command("restart", "--db", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"started: pid {actor_pid(path)} serves {path}, build ")


# --- ps ------------------------------------------------------------------------------------------


def test_ps_lists_every_store(path, tmp_path):
    other = tmp_path / "other home" / "state.db"
    other.parent.mkdir()
    with serving(path) as first, serving(other) as second:
        db = SessionDB(path)
        mine = {}

        def clients():
            listed = json.loads(command("ps", "--json").stdout)
            mine.update(
                (one["database"], one) for one in listed if str(tmp_path) in one["database"]
            )
            return [mine[str(p)]["clients"] for p in (path, other)]

        # Another command of this user may be asking at the same moment.
        wait_for(lambda: clients() == [1, 0])
        assert {name: one["pid"] for name, one in mine.items()} == {
            str(path): first.pid, str(other): second.pid,
        }  # fmt: skip
        assert {one["phase"] for one in mine.values()} == {"serving"}
        lines = command("ps").stdout.splitlines()
        assert lines[0].split() == ["PID", "BUILD", "KIND", "PHASE", "CLIENTS", "FILE"]
        assert {one["kind"] for one in mine.values()} == {"sessions"}
        (line,) = [line for line in lines if line.endswith(f" {path}")]
        assert line.split()[:1] == [str(first.pid)]
        db.close()


@pytest.mark.parametrize("arguments", [["ps"], ["status", "--all"]])
def test_silent_actors_are_waited_for_together(tmp_path, monkeypatch, arguments):
    """One was asked after the other, for seconds each."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    paths = [tmp_path / f"{number}" / "state.db" for number in range(3)]
    for one in paths:
        one.parent.mkdir()
    module = importlib.import_module(f"hermes_actor.cli.actor.{arguments[0]}")
    whole, all_are_asked = module.ask_status, threading.Barrier(len(paths))

    def ask(store, *timeout):
        # Of the machine there may be others: ps asks every actor of this user.
        if store.db in paths:
            all_are_asked.wait(60.0)
        return whole(store, *timeout)

    with contextlib.ExitStack() as stack:
        actors = [stack.enter_context(serving(one)) for one in paths]
        for silent in actors[:2]:
            stack.enter_context(paused(silent.pid))
        monkeypatch.setattr(module, "ask_status", ask)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run([*arguments, "--json"])
    found = [one.get("result", one) for one in json.loads(out.getvalue())]
    mine = {one["database"]: one["phase"] for one in found}
    phases = [mine[str(one)] for one in paths]
    assert phases == ["not answering", "not answering", "serving"]


# --- logs ----------------------------------------------------------------------------------------


def test_logs_show_the_newest_lines_also_of_rotated_files(path):
    folder_of(path).mkdir(0o700)
    log = folder_of(path) / "log"
    log.with_name("log.1").write_text("one\ntwo\n")
    log.write_text("three\nfour\n")
    assert command("logs", "--db", path).stdout == "one\ntwo\nthree\nfour\n"
    assert command("logs", "--db", path, "-n", 3).stdout == "two\nthree\nfour\n"
    assert command("logs", "--db", path, "-n", 0).stdout == ""


def test_logs_without_a_log(path):
    done = command("logs", "--db", path)
    assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
    assert done.stderr.startswith("Error: there is no log")


def test_logs_follow_also_over_a_rotation(path):
    SessionDB(path).close()
    log = folder_of(path) / "log"
    words = [sys.executable, "-m", "hermes_actor", "logs", "--db", path, "-f"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as shown:
        assert "owns" in shown.stdout.readline()
        # What follows is written once it is known to be followed.
        with log.open("a") as file:
            file.write("first\n")
        while "first" not in shown.stdout.readline():
            pass
        log.rename(log.with_name("log.1"))
        log.write_text("second\n")
        assert shown.stdout.readline() == "second\n"
        shown.send_signal(signal.SIGINT)
        assert shown.wait(60) == exit_codes.INTERRUPTED


# --- export-schema -------------------------------------------------------------------------------


def test_exported_schema_makes_an_equal_store(path, tmp_path):
    SessionDB(path, mode="embedded").close()
    done = command("export-schema", "--db", path)
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(copy)) as conn:
        conn.executescript(done.stdout)
    shape = "SELECT type, name, sql FROM sqlite_master WHERE name NOT GLOB 'sqlite_*' ORDER BY 1, 2"
    with closing(sqlite3.connect(copy)) as mine, closing(sqlite3.connect(path)) as theirs:
        assert mine.execute(shape).fetchall() == theirs.execute(shape).fetchall()
    new = json.loads(command("export-schema", "--new", "--json").stdout)
    old = json.loads(command("export-schema", "--db", path, "--json").stdout)
    assert {one["name"] for one in new} == {one["name"] for one in old}
    assert {one["type"] for one in new} == {"table", "index", "trigger"}


def test_export_schema_of_nothing(path):
    done = command("export-schema", "--db", path)
    assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
    assert "there is no store" in done.stderr


def test_status_of_an_owner_that_cannot_be_asked(path):
    """Neither is "not running, the next client starts one": the next client would wait."""
    with serving(path) as actor, paused(actor.pid):
        shown = command("status", "--db", path)
        found = command("status", "--db", path, "--json")
    assert shown.returncode == found.returncode == exit_codes.NOT_SERVING
    assert shown.stdout.startswith("not answering: ")
    assert f"pid {actor.pid}" in shown.stdout
    assert "hermes-actor stop --force" in shown.stdout
    assert json.loads(found.stdout)["pid"] == actor.pid
    with closing(SessionDB(path, mode="embedded")):
        shown = command("status", "--db", path)
    assert shown.returncode == exit_codes.NOT_SERVING
    assert shown.stdout.startswith(f"embedded: pid {os.getpid()} uses {path}")
