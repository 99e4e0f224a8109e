"""How an actor ends: without clients, on a signal, and when its home is gone."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.actors import (
    actor_pid,
    actors_of,
    contents,
    folder_of,
    own,
    socket_of,
    stop_actor,
    wait_for,
    wait_gone,
    wait_no_actor,
)
from support.files import query, write_lock
from support.wire import Wire, append, request
from support.writer_load import writer_load

from hermes_actor import SessionDB
from hermes_actor.client.control import ask_status
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import resolve_paths


def command(*words, **kwargs):
    """``hermes-actor`` with these words, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "hermes_actor", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=60,
        **kwargs,
    )


@contextmanager
def serving(path):
    """``hermes-actor serve`` in the foreground; its first line says that it serves."""
    words = [sys.executable, "-m", "hermes_actor", "serve", "--db", str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            line = child.stdout.readline()
            assert str(path) in line
            assert str(child.pid) in line
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def wal_bytes(path):
    """How much the WAL holds; a WAL that is gone holds nothing."""
    wal = path.with_name(f"{path.name}-wal")
    return wal.stat().st_size if wal.exists() else 0


# --- idleness ------------------------------------------------------------------------------------


def test_actor_without_clients_ends_and_leaves_the_store_in_order(path, monkeypatch):
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "0.2")
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        db.append_message("s", "user", "x")
        pid = actor_pid(path)
        lock = (folder_of(path) / "owner.lock").stat().st_ino
    wait_gone(pid)
    assert not socket_of(path).exists()
    assert wal_bytes(path) == 0
    # A second lock file would be a second lock.
    assert (folder_of(path) / "owner.lock").stat().st_ino == lock
    assert contents(path, "s") == ["x"]
    # And it begins again.
    with closing(SessionDB(path, mode="actor")) as db:
        db.append_message("s", "user", "y")
        assert db._port.statistics()["epoch"] == 2


def test_actor_that_is_only_watched_ends(path, monkeypatch):
    """Metrics are scraped for as long as the machine is up."""
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "2")
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
    assert ask_status(resolve_paths(path), 60.0)
    wait_for(lambda: ask_status(resolve_paths(path), 60.0) is None)


def test_actor_stays_for_as_long_as_a_client_is_connected(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "0.2")
    used, unused = tmp_path / "used.db", tmp_path / "unused.db"
    with closing(SessionDB(used, mode="actor")) as db:
        pid = actor_pid(used)
        # The life of an actor without clients is the clock.
        for _ in range(2):
            SessionDB(unused, mode="actor").close()
            wait_no_actor(unused)
        assert actors_of(used) == {pid}
        db.create_session("s", "cli")
        assert db._port.statistics()["pid"] == pid
    wait_no_actor(used)


def test_service_does_not_end_for_idleness(tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "0.2")
    service, unused = tmp_path / "service.db", tmp_path / "unused.db"
    with serving(service) as child:
        for _ in range(2):
            SessionDB(unused, mode="actor").close()
            wait_no_actor(unused)
        assert child.poll() is None
        child.terminate()
        assert child.wait(60) == 0


# --- the home is gone ----------------------------------------------------------------------------


def outcome(call):
    """What a call gave; an error must be one of ours, and says what is known of the change."""
    try:
        return call()
    except HermesActorError as error:
        assert error.executed in ("no", "yes", "unknown")
        return error


def test_actor_ends_when_its_home_is_deleted(tmp_path):
    path = tmp_path / "home" / "state.db"
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        pid = actor_pid(path)
        shutil.rmtree(path.parent)
        wait_gone(pid)
        # The client finds a fresh store, or learns what is wrong.
        outcome(lambda: db.append_message("s", "user", "x"))
        outcome(lambda: db.create_session("t", "cli"))
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("u", "cli")
        assert db.get_session("s") is None
        assert db.get_session("u") is not None
    stop_actor(path)
    wait_no_actor(path)


def test_writes_into_a_deleted_home_are_not_acknowledged(tmp_path):
    path = tmp_path / "home" / "state.db"
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        pid = actor_pid(path)
        shutil.rmtree(path.parent)
        # At once, before the actor can have noticed by itself.
        result = outcome(lambda: db.append_message("s", "user", "x"))
        if not isinstance(result, Exception):
            assert db.get_messages("s")[-1]["content"] == "x"
        wait_gone(pid)
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("u", "cli")
    stop_actor(path)
    wait_no_actor(path)


@pytest.mark.parametrize("told", [False, True], ids=["by itself", "SIGTERM"])
def test_actor_of_a_home_that_was_made_again_ends_and_leaves_its_successor_alone(path, told):
    """Deleted and made again between two looks: the path is there, and another store is in it."""
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("old", "cli")
        old = actor_pid(path)
    # It has done all that there is to do, so it has no reason to look at the file again.
    wait_for(lambda: wal_bytes(path) == 0)
    for entry in path.parent.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    with closing(SessionDB(path, mode="actor")) as db:
        db.create_session("new", "cli")
        new = actor_pid(path)
        assert new != old
        if told:
            os.kill(old, signal.SIGTERM)
        wait_for(lambda: actors_of(path) == {new}, timeout=60)
        # Its end has taken nothing away from the one that serves now.
        with closing(Wire(path)) as wire:
            assert wire.welcome["pid"] == new
        assert query(path, "SELECT id FROM sessions") == [("new",)]
        assert own(path, "epoch") == 1


# --- signals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_the_service(path, number):
    with serving(path) as child:
        with closing(SessionDB(path, mode="actor")) as db:
            db.create_session("s", "cli")
            assert db._port.statistics()["pid"] == child.pid
        child.send_signal(number)
        assert child.wait(60) == 0
        # One line when it served, and not another word.
        assert child.stdout.read() == ""
    assert not socket_of(path).exists()
    assert wal_bytes(path) == 0
    assert query(path, "SELECT id FROM sessions") == [("s",)]


def test_drain_commits_what_was_admitted_and_answers_it(path):
    """Signalled while requests wait behind a foreign lock, it answers all of them first."""
    with serving(path) as child, closing(Wire(path)) as wire:
        wire.send(request(1, {"op": "session.create", "id": "s", "source": "cli", "started_at": 1}))
        assert wire.answer(1)["t"] == "ok"
        with write_lock(path):
            wire.send(*[request(n, append("s", str(n))) for n in range(2, 42)])
            with closing(Wire(path)) as other:
                wait_for(lambda: sum(c.requests for c in other.status().connections) == 41)
                child.terminate()
                assert other.until_end()[-1]["t"] == "goaway"
        told = wire.until_end()
        assert child.wait(60) == 0
    assert [m["seq"] for m in told if m["t"] == "ok"] == list(range(2, 42))
    (farewell,) = [m for m in told if m["t"] != "ok"]
    assert (farewell["t"], farewell["last_seq"]) == ("goaway", 41)
    assert contents(path, "s") == [str(n) for n in range(2, 42)]


def test_drain_is_not_cut_short_by_more_signals(path):
    with serving(path) as child, closing(Wire(path)) as wire:
        wire.send(request(1, {"op": "session.create", "id": "s", "source": "cli", "started_at": 1}))
        assert wire.answer(1)["t"] == "ok"
        with write_lock(path):
            wire.send(*[request(n, append("s", str(n))) for n in range(2, 42)])
            with closing(Wire(path)) as other:
                wait_for(lambda: sum(c.requests for c in other.status().connections) == 41)
                for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
                    child.send_signal(number)
                assert other.until_end()[-1]["t"] == "goaway"
        # It may be in more of a hurry with its answers, not with what it has admitted.
        assert child.wait(60) == 0
    assert contents(path, "s") == [str(n) for n in range(2, 42)]
    assert wal_bytes(path) == 0


def test_writers_go_on_by_themselves_through_three_drains(path):
    with writer_load(path, 4) as load:
        for _ in range(3):
            load.goes_on(100)
            pid = actor_pid(path)
            os.kill(pid, signal.SIGTERM)
            wait_gone(pid)
            wait_for(lambda pid=pid: actor_pid(path) not in (None, pid))
        load.goes_on(100)
    assert own(path, "epoch") == 4


# --- the command line ----------------------------------------------------------------------------


def test_status_shows_by_its_exit_code_whether_an_actor_serves(path):
    def status():
        done = command("status", "--json", "--db", path)
        return done.returncode, json.loads(done.stdout)

    code, found = status()
    assert (code, found["phase"]) == (3, "not running")
    with serving(path) as child:
        code, found = status()
        assert (code, found["phase"], found["pid"]) == (0, "serving", child.pid)
        assert found["database"] == str(path)
        child.terminate()
        assert child.wait(60) == 0
    code, found = status()
    assert (code, found["phase"]) == (3, "not running")
    # Asking starts no actor.
    assert actors_of(path) == set()


def test_status_of_a_killed_actor_is_not_running(path):
    with closing(SessionDB(path, mode="actor")):
        stop_actor(path, signal.SIGKILL)
        assert command("status", "--db", path).returncode == 3


def test_second_service_of_a_store_names_the_first_and_leaves(path):
    with serving(path) as child:
        second = command("serve", "--db", path)
        assert second.returncode == 4
        assert str(child.pid) in second.stdout + second.stderr
        # The first one has not been disturbed.
        with closing(SessionDB(path, mode="actor")) as db:
            db.create_session("s", "cli")
            assert db._port.statistics()["pid"] == child.pid
        child.terminate()
        assert child.wait(60) == 0


def test_service_that_cannot_open_its_file_says_why(path):
    path.write_bytes(b"a letter" * 1000)
    done = command("serve", "--db", path)
    assert done.returncode not in (0, 4)
    assert "file is not a database" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout


def test_service_and_clients_on_demand_are_one(path):
    """A store that is served already gets no second actor; after the service one is started."""
    with serving(path) as child, closing(SessionDB(path, mode="actor")) as db:
        db.create_session("s", "cli")
        assert actors_of(path) == {child.pid}
        child.terminate()
        assert child.wait(60) == 0
        db.append_message("s", "user", "x")
        assert actors_of(path) == {actor_pid(path)} != {child.pid}
    assert contents(path, "s") == ["x"]


def test_home_of_the_environment_is_the_default(tmp_path):
    path = tmp_path / "home" / "state.db"
    done = command("status", "--json", env={**os.environ, "HERMES_HOME": str(path.parent)})
    assert json.loads(done.stdout)["database"] == str(Path(path))
    assert not path.parent.exists()
