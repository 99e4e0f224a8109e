"""Plain files from outside: their actor, its clients, and every command about a store."""

import asyncio
import contextlib
import json
import os

import pytest
from support.actors import actor_pid, end_actors, wait_no_actor
from support.fake_builds import command, serving
from support.files import names, query, raw
from support.foreign_files import SCRIPTS, changed, make_foreign, shape

from hermes_actor import AsyncSessionDB, SessionDB, exit_codes
from hermes_actor.client.actor_client import acquire
from hermes_actor.client.control import ask_status
from hermes_actor.errors import WrongKind
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import SqlStatement

OURS = {"hermes_actor_meta", "hermes_actor_receipts", "hermes_actor_stage"}


@pytest.fixture
def home(tmp_path, monkeypatch, long_lived):
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def board(home):
    """The file of another program. At the end no actor of it is left."""
    path = home / "boards" / "kanban.db"
    path.parent.mkdir()
    make_foreign(path, "triggers")
    yield path
    end_actors(path)


@contextlib.contextmanager
def client(path):
    port = acquire(resolve_paths(path), 30, "plain")
    try:
        yield port
    finally:
        port.release()


def add(path, *texts):
    with client(path) as port:
        for text in texts:
            sql = "INSERT INTO notes (text) VALUES (?)"
            port.submit(SqlStatement(sql=sql, parameters=[text]), 30)


def texts(path):
    return [text for (text,) in query(path, "SELECT text FROM notes ORDER BY id")]


def run(path, *words):
    done = command(words[0], "--db", path, *words[1:])
    assert "Traceback" not in done.stderr, done.stderr
    return done


def ok(path, *words):
    done = run(path, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- the actor and its clients -------------------------------------------------------------------


def test_clients_start_an_actor_of_their_kind(board):
    add(board, "a", "b")
    status = ask_status(resolve_paths(board))
    assert (status.kind, status.commit_no) == ("plain", 2)
    assert texts(board) == ["one", "a", "b"]
    assert query(board, "SELECT count(*) FROM log") == [(4,)]  # its own triggers have run


def test_serve_adopts_the_file_of_another_program_only_by_its_kind(board):
    before = shape(board)
    done = run(board, "serve", "--plain")
    assert done.returncode == exit_codes.REFUSED
    assert "is not a store: it has no table sessions" in done.stderr
    assert shape(board) == before
    with serving(board, "--kind", "plain"):
        assert json.loads(ok(board, "status", "--json"))["kind"] == "plain"
        assert "kind      plain" in (shown := ok(board, "status"))
        assert "index" not in shown


async def _async_use(path):
    async with AsyncSessionDB(path) as db:
        await db.create_session("s", "cli")


def test_callers_of_sessions_are_refused_by_the_actor(board):
    with client(board):
        with pytest.raises(WrongKind, match=r"kanban\.db is a file of kind 'plain'"):
            SessionDB(board)
        with pytest.raises(WrongKind):
            asyncio.run(_async_use(board))
    with pytest.raises(WrongKind):
        SessionDB(board)
    assert names(board, "table", "sess%") == set()


def test_caller_that_takes_any_kind_shares_the_client_of_a_session_db(home):
    path = home / "state.db"
    db = SessionDB(path)
    try:
        with client(path) as port:
            port.submit(SqlStatement(sql="CREATE TABLE extra (x)"), 30)
        db.create_session("s", "cli")
        assert len(ask_status(resolve_paths(path)).clients(except_pid=0)) == 2  # and the question
    finally:
        db.close()
        end_actors(path)


def test_hand_off_keeps_the_kind(board):
    with client(board) as port:
        port.submit(SqlStatement(sql="INSERT INTO notes (text) VALUES ('a')"), 30)
        before = actor_pid(board)
        ok(board, "handoff")
        port.submit(SqlStatement(sql="INSERT INTO notes (text) VALUES ('b')"), 30)
    status = ask_status(resolve_paths(board))
    assert status.kind == "plain"
    assert status.pid != before
    assert texts(board) == ["one", "a", "b"]


def test_killed_actor_loses_nothing(board):
    with client(board) as port:
        for number in range(20):
            if number % 7 == 3:
                os.kill(actor_pid(board), 9)
            sql = "INSERT INTO notes (text) VALUES (?)"
            port.submit(SqlStatement(sql=sql, parameters=[f"n{number}"]), 30)
    assert texts(board) == ["one", *(f"n{number}" for number in range(20))]


# --- commands ------------------------------------------------------------------------------------


@pytest.fixture
def store(board):
    """A plain store that no actor serves."""
    add(board, "a")
    stop(board)
    return board


def stop(path):
    ok(path, "stop")
    wait_no_actor(path)


@pytest.mark.parametrize("served", [True, False], ids=["actor", "no actor"])
def test_backup_change_restore(store, served):
    with client(store) if served else contextlib.nullcontext():
        copy = json.loads(ok(store, "backup", "--json"))["path"]
        if served:
            add(store, "b")
        else:
            with raw(store) as conn:
                conn.execute("INSERT INTO notes (text) VALUES ('b')")
        assert texts(store) == ["one", "a", "b"]
        done = json.loads(ok(store, "restore", copy, "--yes", "--json"))
        assert texts(store) == ["one", "a"]
        assert texts(done["before"]) == ["one", "a", "b"]
        add(store, "c")
    assert texts(store) == ["one", "a", "c"]
    kinds = query(store, "SELECT value FROM hermes_actor_meta WHERE key = 'kind'")
    assert kinds == [("plain",)]


def test_restore_makes_a_new_store_of_the_kind_of_the_copy(store, home):
    copy = json.loads(ok(store, "backup", "--json"))["path"]
    new = home / "new.db"
    assert "2 tables" in ok(new, "restore", copy, "--yes")
    assert texts(new) == ["one", "a"]
    kinds = query(new, "SELECT value FROM hermes_actor_meta WHERE key = 'kind'")
    assert kinds == [("plain",)]


def test_copy_of_another_kind_is_not_restored(store, home):
    sessions = home / "state.db"
    db = SessionDB(sessions, mode="embedded")
    db.create_session("s", "cli")
    db.close()
    before = shape(store)
    for target, source in ((store, sessions), (sessions, store)):
        done = run(target, "restore", source, "--yes")
        assert done.returncode == exit_codes.REFUSED
        assert "is a file of kind" in done.stderr
    assert shape(store) == before
    assert query(sessions, "SELECT id FROM sessions") == [("s",)]


@pytest.mark.parametrize("served", [True, False], ids=["actor", "no actor"])
def test_vacuum(store, served):
    with client(store) if served else contextlib.nullcontext():
        found = json.loads(ok(store, "vacuum", "--yes", "--json"))
    assert found["bytes_after"] <= found["bytes"]
    assert texts(store) == ["one", "a"]


def test_doctor_finds_a_plain_store_sound(store):
    found = json.loads(run(store, "doctor", "--json").stdout)["findings"]
    assert {one["level"] for one in found} <= {"ok", "note"}
    assert run(store, "doctor").returncode == 0


def test_repair_of_a_sound_store_does_nothing(store):
    before = shape(store)
    assert "nothing to repair" in ok(store, "repair")
    for option in ("--index", "--orphans"):
        done = run(store, "repair", option)
        assert "are for stores with sessions" in done.stderr
        assert done.returncode == exit_codes.REFUSED
    assert shape(store) == before


@pytest.mark.parametrize("name", SCRIPTS)
def test_salvaged_rows_replace_the_content(home, name):
    path = home / "odd.db"
    sql = make_foreign(path, name)
    expected = changed(path, home / "expected.db", sql)
    with client(path) as port:
        port.submit(SqlStatement(sql=sql), 30)
    stop(path)
    document = json.loads(ok(path, "repair", "--salvage", "--swap", "--yes", "--json"))
    assert document["swapped"]
    assert document["messages"] is None
    ok(path, "detach", "--yes")
    found = shape(path)
    assert found["schema"] == expected["schema"]
    assert sorted(found["dump"]) == sorted(expected["dump"])
    assert {key: found[key] for key in ("encoding", "user_version", "application_id")} == {
        key: expected[key] for key in ("encoding", "user_version", "application_id")
    }


def test_damaged_index_of_a_plain_file_is_rebuilt(store):
    with raw(store) as conn:
        conn.execute("PRAGMA writable_schema = ON")
        conn.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', 'NULL')")
    with raw(store) as conn:  # rows that the index, under its true condition, lacks
        conn.execute("INSERT INTO notes (text) VALUES ('b')")
        conn.execute("PRAGMA writable_schema = ON")
        conn.execute("UPDATE sqlite_master SET sql = replace(sql, 'IS NULL', 'IS NOT NULL')")
    assert run(store, "repair", "--check").returncode == exit_codes.BROKEN
    ok(store, "repair")
    ok(store, "repair", "--check")


@pytest.mark.parametrize("served", [True, False], ids=["actor", "no actor"])
def test_detach_leaves_the_file_as_it_was(board, home, served):
    expected = changed(board, home / "expected.db", "INSERT INTO notes (text) VALUES ('a')")
    add(board, "a")
    if not served:
        stop(board)
    removed = json.loads(ok(board, "detach", "--yes", "--json"))["removed"]
    assert set(removed) == OURS
    assert shape(board) == expected
    assert not board.with_name("kanban.db-wal").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("sessions", "list"), ("sessions", "stats"), ("search", "walrus"), ("insights",),
        ("sessions", "export", "-"), ("sessions", "optimize"), ("export-schema",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_commands_about_sessions_refuse_a_plain_file(store, words):
    before = shape(store)
    done = command(*words, "--db", store)
    assert done.returncode == exit_codes.REFUSED
    assert f"{store} is a plain file: it holds no sessions" in done.stderr
    assert shape(store) == before


def test_restart_logs_ps(store):
    assert "serves" in ok(store, "restart")
    assert "owns" in ok(store, "logs")
    listed = json.loads(command("ps", "--json").stdout)
    (mine,) = [one for one in listed if one["database"] == str(store)]
    assert (mine["kind"], mine["phase"]) == ("plain", "serving")


# --- all stores of a home ------------------------------------------------------------------------


@pytest.fixture
def stores(store, home):
    """Two stores of one home: a plain one, and one with sessions."""
    sessions = home / "state.db"
    db = SessionDB(sessions, mode="embedded")
    db.create_session("s", "cli")
    db.close()
    (home / "notes.db").write_bytes(store.read_bytes())  # has no side folder: never had an owner
    yield [store, sessions]
    end_actors(sessions)


def everywhere(*words):
    done = command(*words, "--all", "--json")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, {one["database"]: one for one in json.loads(done.stdout)}


def test_all_stores_of_a_home(stores):
    plain, sessions = map(str, stores)
    code, found = everywhere("status")
    assert code == exit_codes.NOT_RUNNING
    assert {one["result"]["phase"] for one in found.values()} == {"not running"}
    assert set(found) == {plain, sessions}
    with client(stores[0]):
        code, found = everywhere("status")
        assert code == 0
        assert found[plain]["result"]["kind"] == "plain"
        shown = command("status", "--all").stdout
        assert shown.index(f"== {plain}") < shown.index(f"== {sessions}")
        listed = json.loads(command("ps", "--all", "--json").stdout)
        phases = {one["database"]: one["phase"] for one in listed}
        assert (phases[plain], phases[sessions]) == ("serving", "not running")
        code, found = everywhere("backup")
        assert code == 0
        assert query(found[sessions]["result"]["path"], "SELECT id FROM sessions") == [("s",)]
        assert texts(found[plain]["result"]["path"]) == ["one", "a"]
        code, found = everywhere("vacuum", "--yes")
        assert (code, found[sessions]["error"], found[plain]["error"]) == (0, None, None)
    code, found = everywhere("doctor", "--quick")
    assert all(one["result"]["findings"] for one in found.values())
    code, found = everywhere("stop")
    assert (code, found[plain]["result"]["ended"]) == (0, True)
    assert found[sessions]["code"] == exit_codes.NOT_RUNNING


def test_failure_of_one_store_is_its_own(stores):
    plain, sessions = stores
    plain.write_bytes(b"")
    code, found = everywhere("backup")
    assert code == exit_codes.REFUSED
    assert "is empty" in found[str(plain)]["error"]
    assert found[str(sessions)]["error"] is None
    done = command("backup", "--all")
    assert "is empty" in done.stderr
    assert done.returncode == exit_codes.REFUSED


def test_home_without_stores(home):
    assert everywhere("backup") == (0, {})
    assert command("stop", "--all").stdout == f"there is no store below {home}\n"


@pytest.mark.parametrize("words", [("status", "--db", "x.db"), ("backup", "--to", "x.db")])
def test_all_and_one_exclude_each_other(home, words):
    done = command(*words, "--all")
    assert done.returncode == exit_codes.USAGE
    assert f"--all cannot be combined with {words[1]}" in done.stderr
