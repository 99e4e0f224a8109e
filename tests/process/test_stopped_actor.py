"""Clients of an actor that stands still, and clients that are interrupted, end to end."""

import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.actors import actor_pid, contents, pause
from support.interrupts import Interrupt, every_instruction
from support.processes import run_python
from support.scripted_actor import AnsweringActor

import hermes_actor.client
from hermes_actor import SessionDB, limits
from hermes_actor.client import control
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.errors import DeadlineExceeded, HermesActorError, OutcomeUnknown
from hermes_actor.paths import resolve_paths
from hermes_actor.recovery.store_owner import run_maintenance

SECONDS = 60.0
CLIENT = Path(hermes_actor.client.__file__).parent


@pytest.fixture
def db(path):
    db = SessionDB(path, mode="actor", timeout=SECONDS)
    db.create_session("s", "cli")
    yield db
    db.close()


@contextmanager
def stopped(path):
    pid = actor_pid(path)
    try:
        pause(pid)
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)


def test_every_thread_returns_with_the_truth(db, path):
    told = {}

    def write(name, size):
        text = name + "x" * size
        try:
            db.append_message("s", "user", text)
            told[text] = "yes"
        except HermesActorError as error:
            told[text] = error.executed
            assert str(path) in str(error)

    with stopped(path) as pid:
        db._timeout = 1.0
        sizes = {"large": 900_000, "parts": 5_000_000, "small": 1, "other": 2}
        threads = [threading.Thread(target=write, args=one, daemon=True) for one in sizes.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive(), "a call does not return"
        with pytest.raises((OutcomeUnknown, DeadlineExceeded), match=f"pid {pid}"):
            db.set_meta("k", "v")
        with pytest.raises(DeadlineExceeded, match=f"pid {pid}"):
            SessionDB(path, mode="actor", timeout=0.5)._port.statistics()
    db._timeout = SECONDS
    db.append_message("s", "user", "after")
    found = Counter(contents(path, "s"))
    assert found["after"] == 1
    assert max(found.values()) == 1
    assert len(told) == len(sizes)
    for text, executed in told.items():
        assert executed != "yes", text[:10]
        assert executed != "no" or text not in found, text[:10]


def test_an_hour_of_work_is_not_waited_for_when_the_actor_says_nothing(db, path, monkeypatch):
    monkeypatch.setattr(control, "_WELCOME_SECONDS", 0.5)
    paths = resolve_paths(path)
    with stopped(path) as pid:
        with pytest.raises(DeadlineExceeded, match=f"pid {pid}") as caught:
            run_maintenance(paths, "vacuum")
        assert caught.value.executed == "no"
        with pytest.raises(DeadlineExceeded, match=f"pid {pid}"):
            control.request_handoff(paths, sys.executable)


def test_time_of_a_silent_actor_does_not_count_against_the_next_owner(path, monkeypatch):
    """Or else a new actor, which does not listen yet, would pass for one in embedded mode."""
    monkeypatch.setattr(limits, "OWNED_SECONDS", 1.0)
    paths = resolve_paths(path)
    paths.folder.mkdir(mode=0o700)
    lock, answered = OwnerLock.acquire(paths), []
    with closing(socket.socket(socket.AF_UNIX)) as silent:
        silent.bind(str(paths.sock))
        silent.listen()
        asking = threading.Thread(target=lambda: answered.append(run_maintenance(paths, "state")))
        asking.start()
        client, _ = silent.accept()
        time.sleep(1.5 * limits.OWNED_SECONDS)  # as long as an owner that does not listen may take
        paths.sock.unlink()
        client.close()
    time.sleep(0.5 * limits.OWNED_SECONDS)
    actor = AnsweringActor(paths)  # the next owner, which has taken its time
    asking.join(SECONDS)
    actor.close()
    lock.release()
    assert answered == [{"task": "state"}]


EXITS = """
import os, signal, sys, threading, time
from pathlib import Path
from support.actors import pause
from support.subprocess_env import tell
from hermes_actor import SessionDB

db = SessionDB(Path(sys.argv[1]), mode="actor", timeout=600)
db.create_session("s", "cli")
pid = db._port.statistics()["pid"]
pause(pid)
threading.Thread(target=db.append_message, args=("s", "user", "x" * 900_000), daemon=True).start()
while not db._port._connection.protocol.in_flight:
    time.sleep(0.01)
tell(pid)
"""


def test_interpreter_ends_while_a_daemon_thread_waits(path):
    try:
        assert run_python(EXITS, path) == actor_pid(path)
    finally:
        os.kill(actor_pid(path), signal.SIGCONT)


def test_interrupted_anywhere_the_answer_agrees_with_the_file(db, path):
    told = {}

    def write():
        text = f"m{len(told)}"
        told[text] = "unknown"
        db.append_message("s", "user", text)
        told[text] = "yes"

    for where, outcome in every_instruction(write, CLIENT, step=5):
        assert outcome is None or isinstance(outcome, Interrupt), where
        write()
    found = Counter(contents(path, "s"))
    assert max(found.values()) == 1
    assert {text for text, executed in told.items() if executed == "yes"} <= set(found)
    assert db._port._connection.protocol.is_idle


# Python reports what an interrupt raises in a finalizer, and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_transaction_leaves_the_client_usable(db, path):
    told = {}

    def insert(conn):
        conn.execute("INSERT INTO state_meta (key, value) VALUES (?, '')", (f"k{len(told)}",))

    def write():
        db._execute_write(insert)
        told[f"k{len(told)}"] = "yes"

    for number, (where, outcome) in enumerate(every_instruction(write, CLIENT, step=41)):
        assert outcome is None or isinstance(outcome, Interrupt), where
        told[f"i{number}"] = "unknown"  # the next key is another one
        db.set_meta("after", str(number))
        assert db.get_meta("after") == str(number)
    assert told
    for key, executed in told.items():
        assert executed == "unknown" or db.get_meta(key) == "", key
