"""repair, vacuum and detach through the real command, with and without an actor."""

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.actors import contents, folder_of, wait_for
from support.fake_builds import command, serving
from support.files import query
from support.peer import run_peer
from support.processes import own_mounts

from hermes_actor import SessionDB, exit_codes

MESSAGES = 400


@pytest.fixture
def store(path):
    """A store of many pages."""
    db = SessionDB(path, mode="embedded")
    for name in ("s", "t"):
        db.create_session(name, "cli")
    with db.pipeline() as pipeline:
        for number in range(MESSAGES):
            text = f"message {number} " + "x" * 700
            pipeline.append_message("s" if number % 2 else "t", "user", text)
    db.search_messages("message")
    db.close()
    return path


def pages_of(path, name):
    with contextlib.closing(sqlite3.connect(path)) as conn:
        sql = "SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf' ORDER BY pageno"
        return [page for (page,) in conn.execute(sql, (name,))]


def overwrite(path, *pages, with_=b"\xff" * 4096):
    with path.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * 4096)
            file.write(with_)


def run(path, *words):
    done = command(words[0], "--db", path, *words[1:])
    assert "Traceback" not in done.stderr, done.stderr
    return done


# --- repair --------------------------------------------------------------------------------------


def test_a_sound_store_is_left_alone(store):
    before = store.read_bytes()
    done = run(store, "repair")
    assert (done.returncode, done.stdout) == (0, f"nothing to repair: no damage found in {store}\n")
    assert run(store, "repair", "--check").stdout == f"no damage found in {store}\n"
    assert store.read_bytes() == before


@pytest.mark.parametrize("served", [False, True], ids=["no actor", "actor"])
def test_a_damaged_ordinary_index_is_built_again(store, served):
    with contextlib.closing(sqlite3.connect(store)) as conn:
        # An index that lacks rows: what a torn write leaves behind.
        conn.execute("PRAGMA writable_schema = ON")
        sql = "SELECT sql FROM sqlite_master WHERE name = 'idx_messages_session'"
        (text,) = conn.execute(sql).fetchone()
        conn.execute("DROP INDEX idx_messages_session")
        conn.execute("CREATE INDEX idx_messages_session ON messages(session_id, timestamp)"
                     " WHERE session_id = 's'")  # fmt: skip
        conn.execute(
            "UPDATE sqlite_master SET sql = ? WHERE name = 'idx_messages_session'", (text,)
        )
        conn.commit()
    assert run(store, "repair", "--check").returncode == exit_codes.BROKEN
    with serving(store) if served else contextlib.nullcontext():
        done = run(store, "repair", "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["mended"], report["findings"]) == (
            ["rebuilt the indexes of the tables"], [],
        )  # fmt: skip
    assert query(store, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("served", [False, True], ids=["no actor", "actor"])
def test_full_text_indexes_are_made_again_on_demand(store, served):
    with serving(store) if served else contextlib.nullcontext():
        done = run(store, "repair", "--index", "--json")
        assert done.returncode == 0, done.stderr
        assert f"up to message {MESSAGES}" in json.loads(done.stdout)["mended"][0]
        sql = "SELECT COUNT(*) FROM messages_fts WHERE messages_fts MATCH 'message'"
        assert query(store, sql) == [(MESSAGES,)]


@pytest.mark.parametrize("served", [False, True], ids=["no actor", "actor"])
def test_rows_of_a_damaged_table_are_saved_and_swapped_in_on_demand(store, served):
    whole = dict(query(store, "SELECT id, content FROM messages"))
    leaves = pages_of(store, "messages")
    overwrite(store, *leaves[10:13])
    damaged = store.read_bytes()
    with serving(store) if served else contextlib.nullcontext():
        done = run(store, "repair", "--json")
        assert done.returncode == exit_codes.BROKEN
        found = json.loads(done.stdout)
        tables = {one["table"]: one for one in found["tables"]}
        lost = tables["messages"]["lost"]
        # Three pages of a few rows each: those and no others.
        assert 3 <= lost <= 30
        assert tables["messages"]["read"] == MESSAGES - lost
        saved = dict(query(found["salvaged"], "SELECT id, content FROM messages"))
        assert saved.items() <= whole.items()
        assert len(saved) == MESSAGES - lost
        assert store.read_bytes()[: len(damaged)] == damaged
        done = run(store, "repair", "--swap", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{lost} of {MESSAGES} messages are missing" in done.stdout
        # No file is named that is gone, and none is left.
        assert "salvaged-" not in done.stdout
        beside = {p.name for p in store.parent.glob("state.db*")} - {found["salvaged"]}
        assert beside - {"state.db", "state.db-wal", "state.db-shm"} == {
            Path(found["salvaged"]).name
        }
        assert list(folder_of(store).glob("restore-*")) == []
        assert dict(query(store, "SELECT id, content FROM messages")) == saved
        there = query(store, "SELECT session_id, COUNT(*) FROM messages GROUP BY session_id")
        assert dict(query(store, "SELECT id, message_count FROM sessions")) == dict(there)
        assert run(store, "repair", "--check").returncode == 0
        db = SessionDB(store)
        last = db.append_message("s", "user", "after the repair")
        assert [hit["id"] for hit in db.search_messages("repair")] == [last]
        assert len(db.search_messages("message", limit=1000)) == len(saved)
        db.close()
    assert list(store.with_name("backups").iterdir())


EMPTY_LEAF = b"\x0d\0\0\0\0\x10" + bytes(4090)
"""A page of a table without a row: SQLite finds nothing wrong with it."""


@pytest.mark.parametrize(
    ("which", "with_"),
    [
        (slice(10, 13), EMPTY_LEAF),
        (slice(10, 13), b"\xff" * 64),
        (slice(-2, None), EMPTY_LEAF),
        (slice(-2, None), b"\xff" * 64),
        (slice(None, None, 7), EMPTY_LEAF),
        (slice(None, None, 7), b"\xff" * 64),
    ],
    ids=["empty", "torn", "empty at the end", "torn at the end", "many empty", "many torn"],
)
def test_every_message_that_is_lost_is_counted(store, which, with_):
    """By the counts of the sessions: not every damaged page gives an error when it is read."""
    overwrite(store, *pages_of(store, "messages")[which], with_=with_)
    done = run(store, "repair", "--salvage", "--json")
    found = json.loads(done.stdout)
    saved = dict(
        query(found["salvaged"], "SELECT session_id, COUNT(*) FROM messages GROUP BY session_id")
    )
    missing = {name: MESSAGES // 2 - saved.get(name, 0) for name in ("s", "t")}
    lost = sum(missing.values())
    assert lost > 0
    assert found["messages"] == {
        "missing": lost, "of": MESSAGES, "sessions": missing, "perhaps_more": 0,
    }  # fmt: skip
    # The next message gets an id that none of the lost ones had.
    assert query(found["salvaged"], "SELECT seq FROM sqlite_sequence WHERE name = 'messages'") == [
        (MESSAGES,)
    ]
    again = run(store, "repair", "--salvage")
    assert f"{lost} of {MESSAGES} messages are missing, in these sessions: " in again.stdout
    assert f"s ({missing['s']})" in again.stdout
    names = {p.name for p in store.parent.glob("state.db.salvaged-*")}
    assert len(names) == 2, "each run has a file of its own, and nothing beside it"


def test_deleted_messages_are_not_taken_for_lost(store):
    with contextlib.closing(SessionDB(store, mode="embedded")) as db:
        db.clear_messages("t")
    found = json.loads(run(store, "repair", "--salvage", "--json").stdout)
    assert found["messages"] == {
        "missing": 0, "of": MESSAGES // 2, "sessions": {}, "perhaps_more": 0,
    }  # fmt: skip


def test_messages_without_their_session_get_one_again(store):
    overwrite(store, *pages_of(store, "sessions"), with_=b"\x0d" + bytes(4095))
    done = run(store, "repair", "--salvage", "--json")
    found = json.loads(done.stdout)
    rows = query(found["salvaged"], "SELECT id, source FROM sessions ORDER BY id")
    assert rows == [("s", "recovered"), ("t", "recovered")]
    assert len(contents(Path(found["salvaged"]), "s")) == MESSAGES // 2


def test_a_store_whose_list_of_tables_is_gone_is_sent_to_its_copies(store):
    overwrite(store, 1, with_=store.read_bytes()[:100] + b"\xff" * 3996)
    done = run(store, "repair")
    assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
    assert "malformed" in done.stderr


# --- vacuum --------------------------------------------------------------------------------------


def test_full_disk_names_the_file(tmp_path):
    """People need the figures of a report when the disk is full, and the name to act on."""
    prefix = own_mounts()
    assert prefix, "mounting is not possible here"
    script = """
        mount -t tmpfs -o size=3m none "$1" && export HERMES_HOME="$1" || exit 99
        "$2" -c 'from hermes_actor import SessionDB
db = SessionDB(mode="embedded"); db.create_session("s", "cli"); db.close()' || exit 98
        "$2" -m hermes_actor vacuum --report; echo "code $?"
        ls -A "$1" | grep trial
    """
    done = subprocess.run(
        [*prefix, "sh", "-c", script, "sh", str(tmp_path), sys.executable],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    trial = rf"{re.escape(str(tmp_path))}/\.state\.db\.trial-\d+"
    assert re.fullmatch(rf"Error: {trial}: No space left on device\n", done.stderr), done
    assert done.stdout == "code 1\n"


@pytest.mark.parametrize("served", [False, True], ids=["no actor", "actor"])
def test_vacuum_gives_room_back(store, served):
    db = SessionDB(store, mode="embedded")
    # Messages in a row: whole pages become free, whatever the indexes make of theirs.
    db.create_session("u", "cli")
    with db.pipeline() as pipeline:
        for _ in range(MESSAGES // 2):
            pipeline.append_message("u", "user", "x" * 700)
    db.delete_session("u")
    wait_for(lambda: query(store, "SELECT count(*) FROM hermes_actor_stale") == [(0,)])
    db.close()
    size = store.stat().st_size
    with serving(store) if served else contextlib.nullcontext():
        report = json.loads(run(store, "vacuum", "--report", "--json").stdout)
        assert report["bytes"] == size
        assert report["unused_bytes"] > 50 * 1024
        assert report["needed_bytes"] == int(2.2 * size)
        assert report["pause_s"] >= 1
        done = run(store, "vacuum")
        assert done.returncode == 2
        assert done.stderr.startswith("Error: needs --yes without a terminal: ")
        done = run(store, "vacuum", "--yes", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["bytes_after"] == store.stat().st_size < size - 50 * 1024
    assert len(contents(store, "s")) == MESSAGES // 2


def test_vacuum_is_refused_without_room(store):
    code = """
        import shutil, sys
        from hermes_actor.__main__ import main
        shutil.disk_usage = lambda _path: type("Usage", (), {"free": 1000})
        sys.exit(main())
    """
    before = store.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines()),
         "vacuum", "--db", store, "--yes"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == exit_codes.REFUSED
    assert "not enough free space" in done.stderr
    assert store.read_bytes() == before


def test_a_vacuum_that_waits_for_a_foreign_lock_names_its_holder(store):
    hold = """
import sqlite3, sys, time
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
"""
    words = [sys.executable, "-m", "hermes_actor", "vacuum", "--db", store, "--yes"]
    with (
        serving(store),
        subprocess.Popen(
            [sys.executable, "-c", hold, store], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as holder,
    ):
        assert holder.stdout.readline() == b"held\n"
        with subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as waiter:
            # On a slow machine it first waits for an answer.
            wanted = f"waiting: another program holds the write lock: pid {holder.pid}\n"
            assert wanted in iter(waiter.stderr.readline, "")
            holder.communicate(b"\n")
            assert waiter.wait(60) == 0


# --- detach --------------------------------------------------------------------------------------

PEER = """
db = SessionDB(db_path=path)
before = db.message_count()
db.append_message(session_id="s", role="user", content="written outside")
found = [row["session_id"] for row in db.search_messages("outside")]
old = len(db.search_messages("message", limit=5))
db.close()
tell([before, found, old])
"""


@pytest.mark.parametrize("served", [False, True], ids=["no actor", "actor"])
def test_detached_file_is_as_the_peer_left_it_and_works_there(path, tmp_path, served):
    theirs = tmp_path / "theirs.db"
    for file in (theirs, path):
        run_peer(file, """
            db = SessionDB(db_path=path)
            db.create_session(session_id="s", source="cli")
            db.append_message(session_id="s", role="user", content="message of the peer")
            db.close()
            tell()
        """)  # fmt: skip
    with serving(path) if served else contextlib.nullcontext():
        db = SessionDB(path, mode="actor" if served else "embedded")
        db.append_message("s", "user", "message of ours")
        db.close()
        done = run(path, "detach", "--yes")
        assert done.returncode == 0, done.stderr
    assert not path.with_name("state.db-wal").exists()
    names = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    assert query(path, names) == query(theirs, names)
    assert query(path, "SELECT COUNT(*) FROM messages_fts_docsize") == [(2,)]
    assert run_peer(path, PEER) == [2, ["s"], 2]
    # And the way back: the next owner finds everything.
    db = SessionDB(path, mode="embedded")
    assert len(db.get_messages("s")) == 3
    db.close()


def test_detach_names_who_is_still_connected(path):
    with serving(path) as actor:
        db = SessionDB(path)
        done = run(path, "detach", "--yes")
        assert (done.returncode, done.stdout) == (exit_codes.REFUSED, "")
        assert "Error: stop the programs that are still connected first: pid " in done.stderr
        assert actor.lives
        db.close()


def test_commands_on_a_store_that_is_not_there(path):
    for words in (["repair"], ["vacuum"], ["detach", "--yes"], ["backup"]):
        done = run(path, *words)
        assert (done.returncode, done.stdout) == (exit_codes.REFUSED, ""), words
        assert f"there is no store at {path}" in done.stderr
    assert not folder_of(path).exists()
