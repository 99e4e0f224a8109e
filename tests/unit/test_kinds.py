"""Kinds of files: which one a file is of, and what the engine does differently for a plain one."""

import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from support.files import query, raw
from support.foreign_files import SCRIPTS, changed, make_foreign, shape

from hermes_actor import SessionDB, limits
from hermes_actor.embedded import share
from hermes_actor.engine.admin_tasks import detach, maintain
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.kinds import KINDS, PLAIN, SESSIONS
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import IncompatibleFormat, NotAllowed, WrongKind
from hermes_actor.paths import resolve_paths
from hermes_protocol import features
from hermes_protocol.operations import MetaSet, SqlLease, SqlStatement, Vacuum

DATA = Path(__file__).parent.parent / "data"
OURS = ["hermes_actor_meta", "hermes_actor_receipts", "hermes_actor_stage"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plain.db"


@pytest.fixture
def open_writer(path):
    opened = []

    def open_(kind="plain"):
        opened.append(Writer(resolve_paths(path), kind=kind))
        return opened[-1]

    yield open_
    for writer in opened:
        writer.connection.conn.close()


def statement(sql, *parameters):
    return SqlStatement(sql=sql, parameters=list(parameters))


def run(writer, *operations):
    outcomes = writer.run_batch([Request(operation) for operation in operations])
    assert [outcome.error for outcome in outcomes] == [None] * len(operations)
    return [outcome.result for outcome in outcomes]


def refusal(writer, operation):
    (outcome,) = writer.run_batch([Request(operation)])
    return outcome.error


def lease(writer, *statements):
    """Run *statements* in one lease and commit it."""
    writer.leases.begin(float("inf"))
    results = [writer.leases.run(statement(sql)) for sql in statements]
    assert writer.leases.end(Request(SqlLease(lease=1))).error is None
    return results


# --- which kind ----------------------------------------------------------------------------------


def test_kinds_have_the_names_of_the_protocol():
    assert tuple(KINDS) == features.KINDS
    assert (SESSIONS.name, PLAIN.name) == (features.SESSIONS, features.PLAIN)
    assert features.needed_features("plain") == []
    assert features.kind_in(features.needed_features("sessions")) == "sessions"
    assert features.kind_in(["window", "kind=later"]) == "later"
    assert features.kind_in(["window"]) is None


@pytest.mark.parametrize("kind", KINDS)
def test_new_file_is_of_the_kind_that_is_asked_for_and_stays_so(path, open_writer, kind):
    writer = open_writer(kind)
    writer.recover()
    assert writer.kind is KINDS[kind]
    assert query(path, "SELECT value FROM hermes_actor_meta WHERE key = 'kind'") == [(kind,)]
    writer.close()
    for other in KINDS:
        again = open_writer(other)
        assert again.kind is KINDS[kind]
        again.close()


def test_new_plain_file_is_private_and_holds_three_tables(path, open_writer):
    open_writer().recover()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [name for (name,) in query(path, "SELECT name FROM sqlite_master ORDER BY 1")] == OURS


def test_file_of_an_earlier_build_has_sessions(path, open_writer):
    open_writer("sessions").close()
    with raw(path) as conn:
        conn.execute("DELETE FROM hermes_actor_meta WHERE key = 'kind'")
    assert open_writer("plain").kind is SESSIONS


def test_file_of_hermes_agent_has_sessions(path, open_writer):
    shutil.copy(DATA / "hermes-agent-0.14.0.db", path)
    assert open_writer("plain").kind is SESSIONS


@pytest.mark.parametrize(("key", "value"), [("kind", "'later'"), ("format", "99")])
def test_kind_of_a_newer_build_is_refused_and_untouched(path, open_writer, key, value):
    open_writer().close()
    with raw(path) as conn:
        conn.execute("PRAGMA journal_mode = DELETE")
        conn.execute(f"UPDATE hermes_actor_meta SET value = {value} WHERE key = '{key}'")
    before = path.read_bytes()
    with pytest.raises(IncompatibleFormat, match="this build knows sessions, plain, agents"):
        open_writer()
    assert path.read_bytes() == before


# --- a caller that needs another kind ------------------------------------------------------------


def test_session_db_refuses_a_plain_file(path, mode, open_writer):
    writer = open_writer()
    run(writer, statement("CREATE TABLE t (x)"))
    writer.close()
    before = shape(path)
    with pytest.raises(WrongKind, match=r"plain\.db is a file of kind 'plain', and 'sessions' is"):
        SessionDB(path, mode=mode)
    assert shape(path)["schema"] == before["schema"]


def test_writer_of_this_process_is_shared_by_callers_that_take_any_kind(path):
    paths = resolve_paths(path)
    first = share(paths, "plain")
    try:
        with pytest.raises(WrongKind):
            share(paths, "sessions")
        second = share(paths, "plain")
        assert second is first
        second.release()
        first.submit(statement("CREATE TABLE t (x)"), 10)
    finally:
        first.release()
    with SessionStore(path.with_name("state.db")) as store:
        any_kind = share(resolve_paths(store), "plain")
        assert any_kind.kind == "sessions"
        any_kind.release()


class SessionStore:
    """An embedded store, open for the block."""

    def __init__(self, path):
        self._db = SessionDB(path, mode="embedded")

    def __enter__(self):
        return self._db.db_path

    def __exit__(self, *_):
        self._db.close()


def test_operations_of_sessions_are_refused_on_a_plain_file(open_writer):
    writer = open_writer()
    error = refusal(writer, MetaSet(key="k", value="v"))
    assert isinstance(error, WrongKind)
    assert error.executed == "no"
    assert writer.commit_no == 0


# --- what is different ---------------------------------------------------------------------------


def test_plain_file_has_no_index_and_no_idle_work(path, open_writer):
    writer = open_writer()
    run(writer, statement("CREATE TABLE messages (id INTEGER PRIMARY KEY, content)"))
    run(writer, statement("INSERT INTO messages VALUES (1, 'walrus')"))
    commits = writer.connection.commits
    for _ in range(5):
        writer.idle_slice()
    assert writer.connection.commits == commits
    assert writer.index.status().newest == 0
    writer.index.complete()
    with pytest.raises(NotAllowed, match="no full-text indexes"):
        maintain(writer, "rebuild-index", "", float("inf"))
    maintain(writer, "reindex", "", float("inf"))
    run(writer, Vacuum())
    schema = query(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    assert [name for (name,) in schema] == [*OURS, "messages"]


def test_foreign_keys_are_enforced_as_each_kind_expects(open_writer, path):
    writer = open_writer()
    parent = statement("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
    child = statement("CREATE TABLE child (of REFERENCES parent)")
    orphan = statement("INSERT INTO child VALUES (1)")
    run(writer, parent, child, orphan)
    writer.close()
    path.unlink()
    writer = open_writer("sessions")
    run(writer, parent, child)
    assert "FOREIGN KEY" in str(refusal(writer, orphan))


def test_change_of_a_plain_file_is_reported_by_its_operation(open_writer):
    writer = open_writer()
    position, _ = writer.changes.position_after(None)
    run(writer, statement("CREATE TABLE t (session_id)"))
    (change,), _ = writer.changes.read(position, 10)
    assert (change.op, change.commit_no, change.session_id) == ("sql.statement", 1, None)


def test_limits_of_leases():
    assert SESSIONS.leases.total == limits.LEASE_TOTAL_SECONDS
    assert SESSIONS.leases.beside_others == limits.STATEMENT_BESIDE_OTHERS_SECONDS
    assert PLAIN.leases == (5.0, 1.0, None)


# --- SQL of guests -------------------------------------------------------------------------------


def test_savepoints_inside_a_lease(path, open_writer):
    writer = open_writer()
    run(writer, statement("CREATE TABLE t (x)"))
    lease(
        writer,
        "SAVEPOINT a",
        "INSERT INTO t VALUES (1)",
        "SAVEPOINT b",
        "INSERT INTO t VALUES (2)",
        "ROLLBACK TO b",
        "RELEASE a",
    )
    assert query(path, "SELECT x FROM t") == [(1,)]


@pytest.mark.parametrize("sql", ["SAVEPOINT a", "RELEASE a", "ROLLBACK TO a", "ROLLBACK"])
def test_savepoints_outside_of_a_lease_are_refused(open_writer, sql):
    writer = open_writer()
    run(writer, statement("CREATE TABLE t (x)"))
    lease(writer, "SAVEPOINT a", "ROLLBACK TO a", "RELEASE a")  # compiled now, and cached
    assert isinstance(refusal(writer, statement(sql)), NotAllowed)
    run(writer, statement("INSERT INTO t VALUES (1)"))


@pytest.mark.parametrize(
    "sql",
    [
        "BEGIN", "COMMIT", "END", "ROLLBACK", "ATTACH 'other.db' AS other", "VACUUM",
        "CREATE TEMP TABLE x (y)", "DELETE FROM hermes_actor_receipts",
        "UPDATE hermes_actor_meta SET value = 0", "DROP TABLE hermes_actor_stage",
        "PRAGMA journal_mode = DELETE", "PRAGMA synchronous = OFF", "PRAGMA wal_checkpoint",
        "PRAGMA writable_schema = ON", "PRAGMA schema_version = 4", "PRAGMA foreign_keys = ON",
        "PRAGMA locking_mode = EXCLUSIVE",
    ],
)  # fmt: skip
def test_statements_that_no_guest_may_run(path, open_writer, sql):
    writer = open_writer()
    run(writer, statement("CREATE TABLE t (x)"))
    before = shape(path)
    writer.leases.begin(float("inf"))
    with pytest.raises((NotAllowed, sqlite3.DatabaseError)) as caught:
        writer.leases.run(statement(sql))
    assert isinstance(writer.connection.explain(caught.value), NotAllowed)
    writer.leases.end(None)
    assert isinstance(refusal(writer, statement(sql)), NotAllowed)
    assert shape(path) == before


def test_pragmas_of_the_file_and_pragmas_that_ask(path, open_writer):
    writer = open_writer()
    run(writer, statement("CREATE TABLE t (x)"), statement("PRAGMA user_version = 12"))
    (version, mode, info), *_ = [
        run(
            writer,
            statement("PRAGMA user_version"),
            statement("PRAGMA journal_mode"),
            statement("PRAGMA table_info(t)"),
        )
    ]
    assert (version.rows, mode.rows, info.rows[0][1]) == ([[12]], [["wal"]], "x")
    assert query(path, "PRAGMA user_version") == [(12,)]
    lease(writer, "PRAGMA defer_foreign_keys = ON")


# --- a file of another program -------------------------------------------------------------------


@pytest.mark.parametrize("by", ["statement", "lease", "nothing"])
@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_foreign_file_is_as_before_after_detach(path, open_writer, name, mode, by):
    sql = make_foreign(path, name, mode)
    expected = shape(path)
    if by != "nothing":
        expected = changed(path, path.with_name("copy.db"), sql)
    writer = open_writer()
    writer.recover()
    if by == "statement":
        run(writer, statement(sql))
    elif by == "lease":
        lease(writer, "SELECT 1", sql)
    assert sorted(detach(writer)) == OURS
    writer.close()
    assert writer.connection.broken is None
    assert shape(path) == expected
    assert not list(path.parent.glob("*orphan*"))


def test_reader_in_the_way_keeps_the_wal_after_detach(path, open_writer, caplog):
    make_foreign(path, "numbers")
    writer = open_writer()
    run(writer, statement("INSERT INTO t VALUES (1)"))
    with raw(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()
        detach(writer)
        writer.close()
        assert "stays in WAL mode" in caplog.text
        reader.execute("ROLLBACK")
    assert shape(path)["journal_mode"] == [("wal",)]
    assert query(path, "SELECT x FROM t") == [(1,)]
    # The record of the mode went with our tables: the next owner finds what is there.
    again = open_writer()
    again.recover()
    detach(again)
    again.close()
    assert shape(path)["journal_mode"] == [("wal",)]


def test_opening_an_owned_plain_file_writes_only_its_epoch(path, open_writer):
    make_foreign(path, "triggers")
    writer = open_writer()
    writer.recover()
    writer.close()
    before = shape(path)
    again = open_writer()
    again.recover()
    again.close()
    changed_lines = set(shape(path)["dump"]) ^ set(before["dump"])
    assert len(changed_lines) == 2
    assert all("'epoch'" in line for line in changed_lines)
