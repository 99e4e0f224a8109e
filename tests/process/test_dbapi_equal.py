"""Corners in which a connection must do exactly what ``sqlite3`` does."""

import signal
import sqlite3
from contextlib import closing

import pytest
from support.actors import stop_actor, wait_for
from support.files import query
from support.wire import Wire

from hermes_actor import dbapi


@pytest.fixture
def conn(path):
    with closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
        conn.execute("INSERT INTO t (x) VALUES ('a'), ('b'), ('c')")
        yield conn


@pytest.fixture
def other(conn, path):
    with closing(dbapi.connect(path, isolation_level=None)) as other:
        yield other


def is_refused_as_old(conn):
    with pytest.raises(sqlite3.OperationalError) as error:
        conn.execute("INSERT INTO t (x) VALUES ('mine')")
    assert error.value.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT


def boom(_):
    raise RuntimeError


def read(conn):
    conn.execute("SELECT * FROM t").fetchall()


def read_blob(conn):
    with conn.blobopen("t", "x", 1, readonly=True) as blob:
        blob.read()


def fail_to_read(conn):
    conn.create_function("boom", 1, boom)
    with pytest.raises(sqlite3.OperationalError):
        conn.execute("SELECT boom(x) FROM t").fetchall()
    conn.create_function("boom", 1, None)


@pytest.mark.parametrize("first", [read, read_blob, fail_to_read])
def test_snapshot_of_any_read_is_compared(conn, other, first):
    conn.execute("BEGIN")
    first(conn)
    other.execute("INSERT INTO t (x) VALUES ('other')")
    is_refused_as_old(conn)
    conn.execute("ROLLBACK")
    conn.execute("INSERT INTO t (x) VALUES ('mine')")


def test_commit_of_a_foreign_writer_is_noticed(conn, path):
    conn.execute("BEGIN")
    conn.execute("SAVEPOINT s")
    read(conn)
    with closing(sqlite3.connect(path)) as foreign, foreign:
        foreign.execute("INSERT INTO t (x) VALUES ('foreign')")
    is_refused_as_old(conn)
    conn.execute("ROLLBACK")
    conn.execute("BEGIN")
    conn.execute("SAVEPOINT s")
    read(conn)
    conn.execute("INSERT INTO t (x) VALUES ('mine')")
    conn.execute("RELEASE s")
    conn.execute("COMMIT")
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (5,)


def test_last_rowid_in_a_trigger_of_an_update(conn, other):
    conn.execute("CREATE TABLE seen (rowid_then)")
    conn.execute(
        "CREATE TRIGGER note AFTER UPDATE ON t"
        " BEGIN INSERT INTO seen VALUES (last_insert_rowid()); END"
    )
    conn.execute("INSERT INTO t (id, x) VALUES (70, 'mine')")
    other.execute("INSERT INTO t (id, x) VALUES (90, 'other')")
    conn.execute("UPDATE t SET x = 'new' WHERE id = 1")
    assert conn.execute("SELECT rowid_then FROM seen").fetchall() == [(70,)]


@pytest.fixture
def with_private(conn):
    conn.create_function("twice", 1, lambda x: 2 * x)
    conn.execute("CREATE TEMP TABLE mine (x)")
    conn.execute("BEGIN IMMEDIATE")
    return conn


def test_schema_of_the_transaction_beside_private_objects(with_private):
    conn = with_private
    conn.execute("CREATE TABLE made (a, b)")
    names = "SELECT name FROM sqlite_master WHERE name = 'made'"
    assert conn.execute(names).fetchall() == [("made",)]
    assert [row[1] for row in conn.execute("PRAGMA table_info(made)")] == ["a", "b"]
    assert [row[1] for row in conn.execute("PRAGMA table_info(mine)")] == ["x"]
    conn.execute("PRAGMA user_version = 7")
    assert conn.execute("PRAGMA user_version").fetchall() == [(7,)]
    assert conn.execute("SELECT name FROM sqlite_temp_master").fetchall() == [("mine",)]


def test_many_rows_beside_private_objects(with_private):
    conn = with_private
    cursor = conn.executemany("INSERT INTO mine VALUES (?)", [(1,), (2,)])
    assert cursor.rowcount == 2
    assert conn.execute("SELECT x FROM mine").fetchall() == [(1,), (2,)]
    conn.executemany("INSERT INTO t (x) VALUES (?)", [("d",), ("e",)])
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (5,)
    with pytest.raises(sqlite3.NotSupportedError):
        conn.executemany("INSERT INTO t SELECT x, ? FROM mine", [(1,)])


def test_mixture_with_a_table_of_the_transaction(with_private, other):
    conn = with_private
    conn.execute("CREATE TABLE made (x)")
    conn.execute("CREATE TABLE main.mine (x)")
    with pytest.raises(sqlite3.NotSupportedError):
        conn.execute("INSERT INTO made SELECT x FROM mine")
    with pytest.raises(sqlite3.NotSupportedError):
        conn.execute("INSERT INTO made SELECT twice(1)")


def test_half_read_cursor_keeps_its_error(conn):
    conn.create_function("refuse_c", 1, lambda x: x if x != "c" else boom(x))
    cursor = conn.execute("SELECT refuse_c(x) FROM t ORDER BY id")
    conn.execute("INSERT INTO t (x) VALUES ('d')")
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (4,)
    assert cursor.fetchone() == ("a",)
    # A cursor of sqlite3 is one row ahead: the error takes the place of the row before it.
    with pytest.raises(sqlite3.OperationalError):
        cursor.fetchone()
    assert cursor.fetchone() is None


def test_names_of_columns_with_declared_types(path):
    with closing(dbapi.connect(path, detect_types=sqlite3.PARSE_DECLTYPES)) as conn:
        conn.execute("CREATE TABLE d (a date, b)")
        conn.execute("INSERT INTO d VALUES ('2024-01-02', 1)")
        cursor = conn.execute("SELECT a, a, b AS a, max(b) FROM d WHERE b = ?", (1,))
        assert [column[0] for column in cursor.description] == ["a", "a", "a", "max(b)"]
        (row,) = cursor.fetchall()
        assert row[0] == row[1] != "2024-01-02"
        conn.rollback()


def test_lost_lock_of_a_transaction_that_only_read(conn, other, path):
    conn.execute("BEGIN IMMEDIATE")
    read(conn)
    conn._client._connection._disconnect()
    other.execute("INSERT INTO t (x) VALUES ('other')")
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked"):
        conn.execute("COMMIT")
    assert not conn.in_transaction


def test_semicolon_before_a_statement(conn):
    conn.execute("; INSERT INTO t (x) VALUES ('d')")
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (4,)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE c (k REFERENCES hermes_actor_meta(key))",
        "ALTER TABLE t ADD COLUMN k REFERENCES Hermes_Actor_receipts",
        "ALTER TABLE t RENAME TO hermes_actor_x",
    ],
)
def test_names_of_the_actor_are_not_for_others(conn, sql):
    with pytest.raises(sqlite3.Error):
        conn.execute(sql)
    conn.execute("INSERT INTO t (x) VALUES ('d')")


def reads_and_writes(path, between=lambda: None):
    with closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.execute("BEGIN")
        read(conn)
        between()
        conn.execute("INSERT INTO t (x) VALUES ('mine')")
        conn.execute("COMMIT")


def test_maintenance_of_the_actor_is_no_change(conn, path):
    """The receipts of a client that leaves are removed, which is a commit."""
    conn.close()
    leaving = Wire(path)
    assert (
        leaving.do(1, {"op": "sql.run", "steps": [{"sql": "INSERT INTO t (x) VALUES ('d')"}]})["t"]
        == "ok"
    )

    def leave():
        leaving.send({"t": "bye"})
        leaving.until_end()
        leaving.close()
        count = "SELECT count(*) FROM hermes_actor_receipts WHERE client = ?"
        wait_for(lambda: query(path, count, leaving.client_id) == [(0,)])

    reads_and_writes(path, leave)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_start_of_the_actor_is_no_change(conn, path, how):
    conn.close()
    stop_actor(path, how)
    reads_and_writes(path)


def test_foreign_commit_before_the_first_change_of_an_actor_is_noticed(conn, path):
    conn.close()
    stop_actor(path, signal.SIGTERM)

    def commit():
        with closing(sqlite3.connect(path)) as foreign, foreign:
            foreign.execute("INSERT INTO t (x) VALUES ('foreign')")

    with pytest.raises(sqlite3.OperationalError) as error:
        reads_and_writes(path, commit)
    assert error.value.sqlite_errorcode == sqlite3.SQLITE_BUSY_SNAPSHOT
    reads_and_writes(path)


KEYS = """
PRAGMA foreign_keys = ON;
CREATE TABLE parent (id PRIMARY KEY);
CREATE TABLE child (parent REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
"""
COUNTED = "CREATE TABLE item (id INTEGER PRIMARY KEY AUTOINCREMENT, name UNIQUE);"

ALONE = {
    "a script up to a deferred key": (KEYS, [
        ("executescript", "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (9);"
                          "INSERT INTO parent VALUES (9)"),
    ]),
    "rows up to a deferred key": (KEYS, [
        ("executescript", "INSERT INTO parent VALUES (1)"),
        ("executemany", "INSERT INTO child VALUES (?)", [(1,), (9,), (1,)]),
        ("executemany", "INSERT INTO parent VALUES (:id)", [{"id": 2}, {"id": 3}]),
    ]),
    "rows up to a conflict that rolls back": (COUNTED, [
        ("executemany", "INSERT OR ROLLBACK INTO item (name) VALUES (?)", [(1,), (2,), (1,), (3,)]),
    ]),
    "an id that is used up": (COUNTED, [
        ("execute", "INSERT INTO item (name) VALUES (1)"),
        ("execute", "INSERT OR IGNORE INTO item (name) VALUES (1)"),
        ("execute", "INSERT INTO item (name) VALUES (1) ON CONFLICT DO NOTHING"),
        ("execute", "INSERT INTO item (name) VALUES (2)"),
    ]),
}  # fmt: skip
"""Without a transaction each statement and each row is one."""


@pytest.mark.parametrize("name", ALONE)
def test_each_statement_is_a_transaction(path, name):
    schema, calls = ALONE[name]
    seen = []
    for module, file in ((dbapi, path), (sqlite3, path.with_name("native.db"))):
        with closing(module.connect(file, isolation_level=None)) as conn:
            conn.executescript(schema)
            before = conn.total_changes
            answers = []
            for method, *arguments in calls:
                cursor = conn.cursor()
                try:
                    getattr(cursor, method)(*arguments)
                    answers.append((cursor.rowcount, cursor.lastrowid))
                except sqlite3.IntegrityError as error:
                    answers.append(str(error))
            tables = [
                table
                for (table,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                if not table.startswith("hermes_actor_")
            ]
            rows = {one: conn.execute(f"SELECT * FROM {one}").fetchall() for one in tables}
            seen.append((answers, conn.total_changes - before, rows))
    assert seen[0] == seen[1]
