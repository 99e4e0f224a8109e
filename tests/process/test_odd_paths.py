"""A path need not be UTF-8: errors, logs, status and every command survive one."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.actors import actor_pid, end_actors, folder_of, wait_for
from support.fake_builds import command, serving
from support.wire import frame, status

from hermes_actor import SessionDB
from hermes_actor.client.control import ask_status
from hermes_actor.errors import Busy
from hermes_actor.paths import resolve_paths


@pytest.fixture(params=[b"bad\xff", b"\xed\xa0\x80", b"\xc3"], ids=["byte", "surrogate", "cut"])
def odd(tmp_path, long_lived, request):
    """A home whose name is not UTF-8."""
    home = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + request.param))
    home.mkdir()
    path = home / "state.db"
    yield path
    end_actors(path)


@pytest.fixture
def locale(monkeypatch):
    """One in which Python encodes strictly."""
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")


def test_error_that_quotes_the_path_reaches_the_client(odd):
    with serving(odd) as actor:
        with (
            closing(SessionDB(odd, mode="actor", timeout=60)) as db,
            closing(sqlite3.connect(odd, isolation_level=None)) as foreign,
        ):
            db.create_session("s", "cli")
            foreign.execute("BEGIN IMMEDIATE")
            db._timeout = 1.0
            with pytest.raises(Busy) as caught:
                db.append_message("s", "user", "text")
            assert caught.value.executed == "no"
            assert "state.db" in str(caught.value)
            foreign.execute("ROLLBACK")
            db._timeout = 60.0
            db.append_message("s", "user", "text")
        assert actor.lives


def test_status_names_the_store(odd):
    with closing(SessionDB(odd, mode="actor")) as db:
        db.create_session("s", "cli")
        found = ask_status(resolve_paths(odd))
        assert found.database.endswith("/state.db")
        document = found.document()
        assert document == json.loads(json.dumps(document))
        assert status(odd).database == found.database
    log = (folder_of(odd) / "log").read_bytes()
    assert b"owns" in log
    assert b"UnicodeEncodeError" not in log


COMMANDS = [
    ("status",), ("status", "--json"), ("doctor",), ("doctor", "--json"),
    ("top", "--json", "--count", "1"), ("ps",), ("ps", "--json"), ("logs",), ("handoff",),
    ("drain",), ("status",), ("status", "--json"),
]  # fmt: skip


def test_commands_survive_the_path(odd, locale):
    with closing(SessionDB(odd, mode="actor")) as db:
        db.create_session("s", "cli")
    for words in COMMANDS:
        where = () if words[0] == "ps" else ("--db", odd)
        done = command(*words, *where)
        assert "Traceback" not in done.stderr, (words, done.stderr)
        assert done.returncode in (0, 1, 3), (words, done)
        if "--json" in words and words[0] != "ps":
            json.loads(done.stdout)
    wait_for(lambda: actor_pid(odd) is None)


def test_actor_in_the_foreground_survives_the_path(odd, locale):
    words = [sys.executable, "-P", "-m", "hermes_actor", "serve", "--plain", "--db", odd]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline().startswith(b"serving")
            with closing(SessionDB(odd, mode="actor")) as db:
                db.create_session("s", "cli")
        finally:
            process.terminate()
        assert process.wait(60) == 0


# --- ps beside actors that are broken -------------------------------------------------------------

SAYS = {
    "no JSON": {"t": "status.reply", "ask": -1, "status": "{"},
    "no document": {"t": "status.reply", "ask": -1, "status": "[1]"},
    "half a document": {"t": "status.reply", "ask": -1, "status": "{}"},
    "a refusal": {"t": "failed", "seq": -1, "code": "error", "message": "no"},
    "nonsense": b"\xff" * 8,
    "nothing": b"",
}


WELCOME = {
    "t": "welcome", "protocol": 1, "phase": "serving", "epoch": 1, "file_id": b"f" * 16,
    "limits": {}, "durability": "fsync", "schema_version": 11, "build": "0", "pid": 1,
}  # fmt: skip


@contextlib.contextmanager
def impostor(path, says):
    """A process that holds the owner lock of a store and answers as it likes."""
    code = """
import contextlib, socket, sys
from pathlib import Path
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.paths import resolve_paths
from hermes_actor.system.sockets import reach
place = resolve_paths(Path(sys.argv[1]))
lock = OwnerLock.acquire(place)
listener = socket.socket(socket.AF_UNIX)
with reach(place.sock) as address:
    listener.bind(address)
listener.listen()
print("ready", flush=True)
while True:
    sock, _ = listener.accept()
    with sock, contextlib.suppress(OSError):
        for part in sys.argv[2:]:
            sock.recv(65536)
            sock.sendall(bytes.fromhex(part))
"""
    answers = [frame(WELCOME), says if isinstance(says, bytes) else frame(says)]
    words = [sys.executable, "-c", code, str(path), *(data.hex() for data in answers)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("says", SAYS.values(), ids=SAYS)
def test_ps_lists_all_others_beside_a_broken_actor(path, tmp_path, says):
    (tmp_path / "broken").mkdir()
    broken = tmp_path / "broken" / "state.db"
    with closing(SessionDB(path, mode="actor")) as db, impostor(broken, says) as pid:
        db.create_session("s", "cli")
        done = command("ps", "--json")
        assert done.returncode == 0, done.stderr
        found = {one["pid"]: one for one in json.loads(done.stdout)}
        assert found[actor_pid(path)]["phase"] == "serving"
        assert found[pid]["database"] == str(broken)
        assert found[pid]["phase"] in ("?", "not answering", "embedded")
        text = command("ps")
        assert text.returncode == 0
        assert str(path) in text.stdout
        for words in (("status",), ("doctor",), ("top", "--json", "--count", "1")):
            done = command(*words, "--db", broken)
            assert "Traceback" not in done.stderr, (words, done.stderr)
