"""Statements of programs' connections: runs, in a lease and on their own, as sqlite3 shows them."""

import sqlite3
from contextlib import contextmanager

import pytest
from support.actors import stop_actor
from support.files import query

from hermes_actor.client.actor_client import acquire
from hermes_actor.embedded import share
from hermes_actor.errors import DeadlineExceeded, LeaseLost, NotAllowed, RequestError
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import SqlRun, SqlStep
from hermes_protocol.values import Blob

TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE)"


@contextmanager
def opened(path, mode):
    paths = resolve_paths(path)
    port = share(paths, "plain") if mode == "embedded" else acquire(paths, 30.0, "plain")
    try:
        yield port
    finally:
        port.release()


@pytest.fixture
def port(path, mode):
    with opened(path, mode) as port:
        port.run(run(TABLE), 30.0)
        yield port


@pytest.fixture
def actor(path):
    with opened(path, "actor") as port:
        port.run(run(TABLE), 30.0)
        yield port


def run(*statements, **fields):
    steps = [
        SqlStep(sql=one) if isinstance(one, str) else SqlStep(sql=one[0], parameters=list(one[1:]))
        for one in statements
    ]
    return SqlRun(steps=steps, **fields)


def in_sqlite3(sql):
    """The error of *sql* in a database of its own."""
    conn = sqlite3.connect(":memory:")
    conn.execute(TABLE)
    conn.execute("INSERT INTO t(a) VALUES (1)")
    with pytest.raises((sqlite3.Error, sqlite3.Warning)) as raised:
        conn.execute(sql)
    return raised.value


def commit_no(path):
    return query(path, "SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'")


# --- runs of their own ----------------------------------------------------------------------------


def test_a_run_is_one_change_with_the_counters_of_each_statement(path, port):
    before = commit_no(path)
    reply = port.run(
        run(("INSERT INTO t(a) VALUES (?), (?)", 1, 2), "UPDATE t SET a = a + 10 RETURNING a"), 30.0
    )
    insert, update = reply.results
    assert (insert.rowcount, insert.lastrowid, insert.changes, insert.total_changes) == (2, 2, 2, 2)
    assert (update.columns, sorted(update.rows), update.total_changes) == (["a"], [[11], [12]], 2)
    assert reply.error is None
    assert query(path, "SELECT a FROM t ORDER BY a") == [(11,), (12,)]
    assert commit_no(path) == [(before[0][0] + 1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT FROM",
        "SELECT * FROM missing",
        "INSERT INTO t(a) VALUES (?)",
        "INSERT INTO t(a) VALUES (1)",
        "INSERT INTO t(id) VALUES ('x')",
        "SELECT 1; SELECT 2",
        "SELECT abs(-9223372036854775808)",
    ],
)
def test_an_error_is_that_of_sqlite3_and_what_came_before_it_is_kept(path, port, sql):
    reply = port.run(run("INSERT INTO t(a) VALUES (1)", sql, "DELETE FROM t"), 30.0)
    error, expected = reply.error, in_sqlite3(sql)
    assert (error.kind, error.message) == (type(expected).__name__, str(expected))
    assert error.code == getattr(expected, "sqlite_errorcode", None)
    assert error.name == getattr(expected, "sqlite_errorname", None)
    assert len(reply.results) == 1
    assert query(path, "SELECT a FROM t") == [(1,)]


def test_a_statement_that_ends_the_transaction_keeps_what_came_before_it(path, port):
    reply = port.run(
        run("INSERT INTO t(a) VALUES (1)", "INSERT OR ROLLBACK INTO t(a) VALUES (2), (1)"), 30.0
    )
    assert reply.error.kind == "IntegrityError"
    assert query(path, "SELECT a FROM t") == [(1,)]


def test_rows_before_the_failing_one_of_a_repeated_statement_are_kept(path, port):
    rows = [[1], [2], [1], [3]]
    step = SqlStep(sql="INSERT INTO t(a) VALUES (?)", rows=rows)
    reply = port.run(SqlRun(steps=[step]), 30.0)
    assert reply.error.kind == "IntegrityError"
    assert reply.failed.total_changes == 2
    assert query(path, "SELECT a FROM t") == [(1,), (2,)]


def test_a_repeated_statement_takes_names(path, port):
    step = SqlStep(sql="INSERT INTO t(a) VALUES (:a)", named_rows=[{"a": 1}, {"a": "x"}])
    (result,) = port.run(SqlRun(steps=[step]), 30.0).results
    assert (result.rowcount, result.lastrowid) == (2, 2)
    assert query(path, "SELECT a FROM t") == [(1,), ("x",)]


@pytest.mark.parametrize(
    "sql", ["SELECT 1", "UPDATE t SET a = 1", "CREATE TABLE IF NOT EXISTS t (x)", "SELECT missing"]
)
def test_what_changes_nothing_costs_no_commit(path, port, sql):
    before = commit_no(path)
    port.run(run(sql), 30.0)
    assert commit_no(path) == before


def test_the_last_rowid_is_that_of_the_connection_that_asks(port):
    port.run(run("INSERT INTO t(id) VALUES (70)"), 30.0)
    port.run(run("CREATE TABLE w (a PRIMARY KEY) WITHOUT ROWID"), 30.0)
    (result,) = port.run(run("INSERT INTO w VALUES (1)", lastrowid=5), 30.0).results
    assert result.lastrowid == 5
    (result,) = port.run(run("UPDATE t SET a = 1", lastrowid=5), 30.0).results
    assert result.lastrowid == 5
    asked = port.run(run("INSERT INTO t(a) SELECT last_insert_rowid()", lastrowid=7), 30.0)
    assert asked.results[0].lastrowid == 71
    assert port.run(run("SELECT a FROM t WHERE id = 71"), 30.0).results[0].rows == [[7]]


def test_text_that_is_not_utf_8_is_returned_as_it_is(port):
    reply = port.run(run("SELECT CAST(x'61ff' AS TEXT), x'ff', 'ä'"), 30.0)
    assert reply.results[0].rows == [[Blob(b"a\xff", text=True), Blob(b"\xff"), "ä"]]


@pytest.mark.parametrize("sql", ["BEGIN", "COMMIT", "END", "ATTACH 'x' AS y", "SAVEPOINT s"])
def test_transactions_are_not_controlled_by_text(path, port, sql):
    with pytest.raises(NotAllowed):
        port.run(run("INSERT INTO t(a) VALUES (1)", sql), 30.0)
    assert query(path, "SELECT a FROM t") == []


def test_own_tables_are_refused_as_sqlite3_refuses(port):
    error = port.run(run("DELETE FROM hermes_actor_receipts"), 30.0).error
    assert (error.kind, error.name) == ("DatabaseError", "SQLITE_AUTH")


def test_pragmas_that_ask_and_those_that_the_file_keeps(path, port):
    reply = port.run(run("PRAGMA user_version = 7", "PRAGMA table_info(t)"), 30.0)
    assert [row[1] for row in reply.results[1].rows] == ["id", "a"]
    assert query(path, "PRAGMA user_version") == [(7,)]
    assert port.run(run("PRAGMA synchronous = OFF"), 30.0).error.name == "SQLITE_AUTH"


def test_a_large_run_travels_in_parts(path, port):
    rows = [["x" * 1000 + str(n)] for n in range(3000)]
    step = SqlStep(sql="INSERT INTO t(a) VALUES (?)", rows=rows)
    assert port.run(SqlRun(steps=[step]), 60.0).results[0].rowcount == 3000
    lease = port.open_lease({}, 30.0, first=SqlRun(steps=[SqlStep(sql="DELETE FROM t"), step]))
    assert [result.rowcount for result in lease.reply.results] == [3000, 3000]
    lease.commit()
    assert query(path, "SELECT COUNT(*) FROM t") == [(3000,)]


# --- in a lease -----------------------------------------------------------------------------------


def test_a_lease_begins_with_its_first_run(path, port):
    lease = port.open_lease({}, 30.0, first=run("INSERT INTO t(a) VALUES (1)"))
    assert lease.reply.results[0].lastrowid == 1
    assert lease.run(run("SELECT a FROM t")).results[0].rows == [[1]]
    assert query(path, "SELECT a FROM t") == []
    lease.commit()
    assert query(path, "SELECT a FROM t") == [(1,)]


def test_an_error_in_a_lease_leaves_it_open(path, port):
    lease = port.open_lease({}, 30.0, first=run("INSERT INTO t(a) VALUES (1)"))
    reply = lease.run(run("INSERT INTO t(a) VALUES (1)"))
    assert (reply.error.name, reply.open) == ("SQLITE_CONSTRAINT_UNIQUE", True)
    lease.commit()
    assert query(path, "SELECT a FROM t") == [(1,)]


def test_an_error_that_ends_the_transaction_is_distinct_from_others(path, port):
    lease = port.open_lease({}, 30.0, first=run("INSERT INTO t(a) VALUES (1)"))
    reply = lease.run(run("INSERT OR ROLLBACK INTO t(a) VALUES (1)"))
    assert (reply.error.name, reply.open) == ("SQLITE_CONSTRAINT_UNIQUE", False)
    with pytest.raises(RequestError):
        lease.run(run("SELECT 1"))
    lease.rollback()
    assert query(path, "SELECT a FROM t") == []


def test_a_first_run_that_is_refused_leaves_no_lease(path, port):
    with pytest.raises(NotAllowed):
        port.open_lease({}, 30.0, first=run("INSERT INTO t(a) VALUES (1)", "COMMIT"))
    port.run(run("INSERT INTO t(a) VALUES (2)"), 30.0)
    assert query(path, "SELECT a FROM t") == [(2,)]


def test_savepoints_in_a_lease(path, port):
    lease = port.open_lease({}, 30.0, first=run("SAVEPOINT a", "INSERT INTO t(a) VALUES (1)"))
    lease.run(run("SAVEPOINT b", "INSERT INTO t(a) VALUES (2)", "ROLLBACK TO b", "RELEASE a"))
    assert lease.run(run("ROLLBACK")).error.name == "SQLITE_AUTH"
    lease.commit()
    assert query(path, "SELECT a FROM t") == [(1,)]


def test_two_connections_of_one_thread_wait_for_each_other(path, port):
    lease = port.open_lease({}, 30.0, first=run("INSERT INTO t(a) VALUES (1)"))
    with pytest.raises(DeadlineExceeded):
        port.run(run("INSERT INTO t(a) VALUES (2)"), 0.05)
    with pytest.raises(DeadlineExceeded):
        port.open_lease({}, 0.05)
    lease.rollback()
    port.run(run("INSERT INTO t(a) VALUES (3)"), 30.0)
    assert query(path, "SELECT a FROM t") == [(3,)]


def test_a_lease_goes_with_the_actor_and_says_so(path, actor):
    lease = actor.open_lease({}, 30.0, first=run("INSERT INTO t(a) VALUES (1)"))
    stop_actor(path, 9)
    with pytest.raises(LeaseLost):
        lease.run(run("INSERT INTO t(a) VALUES (2)"))
    with pytest.raises(LeaseLost):
        lease.rollback()
    lease = actor.open_lease({}, 30.0, first=run("INSERT INTO t(a) VALUES (3)"))
    stop_actor(path, 9)
    with pytest.raises(LeaseLost):
        lease.commit()
    assert query(path, "SELECT a FROM t") == []


def test_settings_travel_with_each_transaction(path, port):
    port.run(run("CREATE TABLE child (p REFERENCES t(id))"), 30.0)
    large = run(
        ("INSERT INTO child VALUES (7), (?)", "x" * 2_000_000), settings={"foreign_keys": 1}
    )
    assert port.run(large, 60.0).error.name == "SQLITE_CONSTRAINT_FOREIGNKEY"
    assert port.run(run("INSERT INTO child VALUES (8)"), 30.0).error is None
    lease = port.open_lease({"foreign_keys": 1}, 30.0)
    reply = lease.run(run("INSERT INTO child VALUES (9)", settings={"foreign_keys": 1}))
    assert reply.error.name == "SQLITE_CONSTRAINT_FOREIGNKEY"
    lease.rollback()
    with pytest.raises(NotAllowed):
        port.open_lease({"synchronous": 0}, 30.0)
    assert query(path, "SELECT p FROM child") == [(8,)]
