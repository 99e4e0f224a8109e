"""R5: another process has taken the file over. The old owner acknowledges nothing more and ends."""

import json
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing, nullcontext, suppress

import pytest
from support.actor_process import served
from support.actors import actor_pid, contents, own, stop_actor, wait_for, wait_gone
from support.files import query, raw
from support.wire import Wire, append, create, request, select
from support.writer_load import writer_load

from hermes_actor import SessionDB, exit_codes
from hermes_actor.errors import ActorBroken
from hermes_actor.paths import resolve_paths

ROWS = 12
OURS = [f"walrus {n}" for n in range(ROWS)]


def take_over(path):
    with raw(path) as conn:
        conn.execute("UPDATE hermes_actor_meta SET value = value + 1 WHERE key = 'epoch'")


def epoch_of(path):
    """The epoch that the actor itself tells, once it serves."""
    with suppress(OSError, ValueError):
        return json.loads(resolve_paths(path).owner_lock.read_text())["epoch"]
    return 0


@pytest.fixture
def client(path):
    opened = []

    def open_():
        opened.append(SessionDB(path, mode="actor"))
        return opened[-1]

    yield open_
    for db in opened:
        db.close()


ASKED = {
    "changes": [request(seq, append("s", f"void {seq}")) for seq in range(2, 7)],
    "statement": [request(2, select("DELETE FROM messages"))],
    "transaction": [{"t": "lease.open", "ask": -2, "lease": 2}],
    "vacuum": [request(2, {"op": "upkeep.vacuum"})],
    "search": [{"t": "catch-up", "ask": -2, "through": ROWS}],
}


@pytest.mark.parametrize("asked", ASKED)
def test_fenced_actor_does_nothing_more_and_ends(path, client, asked):
    with served(path) as actor, Wire(path) as wire:
        assert wire.do(1, create("s"))["t"] == "ok"
        db = client()
        for text in OURS:
            db.append_message("s", "user", text)
        take_over(path)
        epoch = own(path, "epoch")
        # Its look at the file once a second may find the other owner before the request arrives.
        with suppress(BrokenPipeError, ConnectionResetError):
            wire.send(*ASKED[asked])
        assert actor.exit_code() == exit_codes.FENCED
        assert [m for m in wire.until_end() if m["t"] in ("ok", "done")] == []
        assert "another owner" in actor.last_words()
        assert own(path, "epoch") == epoch
        assert contents(path, "s") == OURS

        # The next client's start serves, under an epoch of its own.
        number = db.append_message("s", "user", "after")
        assert contents(path, "s") == [*OURS, "after"]
        assert number == ROWS + 1
        assert own(path, "epoch") == epoch + 1
        assert len(db.search_messages("walrus", limit=100)) == ROWS


def test_fenced_actor_without_requests_does_not_index(path, client):
    """It may find out by itself, and whatever it finds, the file is no longer its own."""
    with served(path) as actor:
        db = client()
        db.create_session("s", "cli")
        db.search_messages("walrus")
        take_over(path)
        with raw(path) as conn:
            conn.execute("INSERT INTO messages (session_id, role, timestamp) VALUES ('s', 'u', 1)")
            watermark = own(path, "watermark")
        assert db.append_message("s", "user", "walrus") == 2
        assert actor.exit_code() == exit_codes.FENCED
        assert watermark == 0
    assert query(path, "SELECT COUNT(*) FROM messages") == [(2,)]


def test_embedded_writer_is_fenced_too(path):
    db = SessionDB(path, mode="embedded")
    db.create_session("s", "cli")
    db.append_message("s", "user", "walrus")
    take_over(path)
    for _ in range(2):
        with pytest.raises(ActorBroken) as caught:
            db.append_message("s", "user", "void")
        assert caught.value.executed == "no"
    assert [m["content"] for m in db.get_messages("s")] == ["walrus"]
    db.close()
    db = SessionDB(path, mode="embedded")
    db.append_message("s", "user", "after")
    db.close()
    assert contents(path, "s") == ["walrus", "after"]


def test_takeovers_under_load_lose_and_double_nothing(path):
    with writer_load(path, 4) as load:
        for _ in range(5):
            load.goes_on()
            pid = actor_pid(path)
            take_over(path)
            wait_gone(pid)
            # An actor that is only coming up would take our epoch for that of a dead one.
            wait_for(lambda gone=pid: actor_pid(path) not in (None, gone) and epoch_of(path) > 0)
        load.pool.wait_for_more()


def tables_of_ours(conn):
    own = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'hermes_actor%'"
    return [name for (name,) in conn.execute(own)]


def by_the_program(copy, path):
    subprocess.run(["sqlite3", path, ".timeout 60000", f".restore {copy}"], check=True)


def by_python(copy, path):
    with closing(sqlite3.connect(copy)) as source, raw(path) as target:
        source.backup(target)


RESTORES = [by_the_program, by_python] if shutil.which("sqlite3") else [by_python]
COPIES = ["of this owner", "of an earlier owner", "without an owner"]


def copy_of(path, target):
    with raw(path) as conn, closing(sqlite3.connect(target)) as copy:
        conn.backup(copy)


class Load(threading.Thread):
    """Writes to the session that every content has, for as long as the block lasts."""

    def __init__(self, path):
        super().__init__()
        self._db, self._ends, self.written = SessionDB(path, mode="actor"), threading.Event(), []

    def run(self):
        while not self._ends.is_set():
            self.written.append(self._db.append_message("s", "user", "load"))

    def __enter__(self):
        self.start()
        wait_for(lambda: len(self.written) > 3)

    def __exit__(self, *_):
        count = len(self.written)
        wait_for(lambda: len(self.written) > count + 3 or not self.is_alive())
        self._ends.set()
        self.join()
        self._db.close()


@pytest.mark.parametrize("restore", RESTORES)
@pytest.mark.parametrize("made", COPIES)
@pytest.mark.parametrize("load", [Load, nullcontext], ids=["under load", "idle"])
def test_content_that_another_program_restores_is_served_by_the_next_actor(
    path, client, tmp_path, restore, made, load
):
    """SQLite's own ways keep the file whole, but what the actor has in memory is of the old one."""
    copy, log = tmp_path / "copy.db", tmp_path / "log"
    db = client()
    db.create_session("s", "cli")
    db.append_message("s", "user", "walrus 0")
    assert len(db.search_messages("walrus")) == 1
    copy_of(path, copy)
    if made == "without an owner":
        with closing(sqlite3.connect(copy)) as conn:
            for name in tables_of_ours(conn):
                conn.execute(f"DROP TABLE {name}")
            conn.commit()
    wait_gone(stop_actor(path))
    with served(path, log=log) as actor:
        db.append_message("s", "user", "walrus 1")
        if made == "of this owner":
            copy_of(path, copy)
        db.append_message("s", "user", "walrus 2")
        with load(path):
            restore(copy, path)
        number = db.append_message("s", "user", "after it")
        assert actor.exit_code() == exit_codes.FENCED
    assert f"another program has replaced the content of {path} by" in log.read_text()
    assert "hermes-actor restore --list" in log.read_text()
    kept = ["walrus 0", "walrus 1"] if made == "of this owner" else ["walrus 0"]
    found = contents(path, "s")
    assert [text for text in found if text != "load"] == [*kept, "after it"]
    assert ("load" in found) == (load is Load)
    assert [one["id"] for one in db.search_messages("after")] == [number]
    assert len(db.search_messages("walrus")) == len(kept)
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
