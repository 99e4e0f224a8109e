"""Transactions of connect() begin, upgrade, fail and end as those of ``sqlite3`` do."""

import itertools
import sqlite3
from contextlib import closing

import pytest
from support.actors import end_actors

from hermes_actor import dbapi

LEVELS = ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE", None]

SETUP = [
    "PRAGMA journal_mode = WAL",
    "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, x UNIQUE)",
]

INSERT = "INSERT INTO t (x) VALUES (?)"


class Twin:
    """Runs one program on two connections of ``sqlite3`` and two of ours, and compares."""

    def __init__(self, folder, level, timeout=0.0):
        self.files = {}
        for name, module in (("native", sqlite3), ("ours", dbapi)):
            made = {}
            for who in "ab":
                conn = module.connect(folder / f"{name}.db", isolation_level=level, timeout=timeout)
                made[who] = conn
                for sql in SETUP:
                    conn.execute(sql)
                conn.commit()
            self.files[name] = made

    def do(self, who, method, *arguments):
        seen = {name: outcome(made[who], method, arguments) for name, made in self.files.items()}
        assert seen["ours"] == seen["native"], (who, method, arguments)
        return seen["ours"]

    def sql(self, who, sql, *parameters):
        return self.do(who, "execute", sql, parameters)

    def close(self):
        for made in self.files.values():
            for conn in made.values():
                conn.close()


def outcome(conn, method, arguments):
    """Everything that a program can see of one call."""
    try:
        result = getattr(conn, method)(*arguments)
    except sqlite3.Error as error:
        # Ours may have more to say after SQLite's own words.
        words = str(error).partition(":")[0] if "locked" in str(error) else str(error)
        return type(error), words, error.sqlite_errorname, conn.in_transaction
    shown = None
    if isinstance(result, sqlite3.Cursor):
        shown = (result.fetchall(), result.rowcount, result.description)
    counters = conn.execute("SELECT last_insert_rowid(), changes(), total_changes()").fetchall()
    # The set-up of ours has changed no row; that of sqlite3 neither.
    return shown, conn.in_transaction, conn.total_changes, counters


@pytest.fixture
def twin(request, tmp_path, long_lived):
    made = Twin(tmp_path, request.param)
    yield made
    made.close()
    end_actors(tmp_path / "ours.db")


BEGINS = ["", "BEGIN", "BEGIN DEFERRED", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "SAVEPOINT s"]
ENDS = ["commit", "rollback"]


@pytest.mark.parametrize("twin", LEVELS, indirect=True)
def test_every_begin_and_every_end(twin):
    for number, (begin, end) in enumerate(itertools.product(BEGINS, ENDS)):
        if begin:
            twin.sql("a", begin)
        twin.sql("a", "SELECT count(*) FROM t")
        twin.sql("a", INSERT, f"first {number}")
        twin.sql("a", "SELECT x FROM t ORDER BY id")
        twin.sql("b", "SELECT x FROM t ORDER BY id")
        twin.sql("a", INSERT, f"first {number}")  # not unique: the statement fails, alone
        twin.sql("a", "UPDATE t SET x = x || '!' WHERE x LIKE ?", f"%{number}%")
        twin.do("a", end)
        twin.sql("a", "SELECT x FROM t ORDER BY id")
        twin.sql("b", "SELECT x FROM t ORDER BY id")


@pytest.mark.parametrize("twin", LEVELS, indirect=True)
@pytest.mark.parametrize("begin", BEGINS[1:])
def test_transactions_of_two_connections(twin, begin):
    twin.sql("a", begin)
    twin.sql("b", begin)
    twin.sql("a", INSERT, "a")
    twin.sql("b", INSERT, "b")
    twin.do("b", "rollback")
    twin.do("a", "commit")
    twin.sql("b", INSERT, "b")
    twin.do("b", "commit")
    twin.sql("a", "SELECT x FROM t ORDER BY id")


@pytest.mark.parametrize("twin", [None], indirect=True)
def test_snapshot_that_is_overtaken_cannot_write(twin):
    twin.sql("a", "BEGIN")
    twin.sql("a", "SELECT count(*) FROM t")
    twin.sql("b", INSERT, "b")
    twin.sql("a", "SELECT count(*) FROM t")
    seen = twin.sql("a", INSERT, "a")
    assert seen[2] == "SQLITE_BUSY_SNAPSHOT"
    twin.do("a", "rollback")
    twin.sql("a", INSERT, "a")
    twin.sql("a", "SELECT x FROM t ORDER BY id")


@pytest.mark.parametrize("twin", [None], indirect=True)
def test_snapshot_that_is_current_can_write(twin):
    twin.sql("b", INSERT, "b")
    twin.sql("a", "BEGIN")
    twin.sql("a", "SELECT count(*) FROM t")
    twin.sql("a", INSERT, "a")
    twin.sql("a", "SELECT x FROM t ORDER BY id")
    twin.sql("a", "COMMIT")
    twin.sql("b", "SELECT x FROM t ORDER BY id")


@pytest.mark.parametrize("twin", ["", None], indirect=True)
def test_unfinished_cursor_is_part_of_the_transaction(twin):
    twin.do("b", "executemany", INSERT, [("x",), ("y",), ("z",)])
    twin.do("b", "commit")
    open_cursors = [made["a"].execute("SELECT x FROM t") for made in twin.files.values()]
    assert [cursor.fetchone() for cursor in open_cursors] == [("x",), ("x",)]
    twin.sql("b", INSERT, "b")
    twin.do("b", "commit")
    twin.sql("a", "BEGIN")
    twin.sql("a", INSERT, "a")
    assert [cursor.fetchall() for cursor in open_cursors] == [[("y",), ("z",)]] * 2
    twin.do("a", "rollback")
    twin.sql("a", "SELECT x FROM t ORDER BY id")


@pytest.mark.parametrize("twin", LEVELS, indirect=True)
def test_savepoints(twin):
    for sql in [
        "SAVEPOINT a", "INSERT INTO t (x) VALUES (1)", "SAVEPOINT b",
        "INSERT INTO t (x) VALUES (2)", "ROLLBACK TO b", "SELECT x FROM t", "RELEASE nothing",
        "RELEASE b", "INSERT INTO t (x) VALUES (3)", "RELEASE a", "SELECT x FROM t",
        "SAVEPOINT a", "SAVEPOINT b", "ROLLBACK TO a", "INSERT INTO t (x) VALUES (4)",
        "ROLLBACK TO nothing", "COMMIT", "SELECT x FROM t", "ROLLBACK", "COMMIT", "BEGIN", "BEGIN",
        "ROLLBACK",
    ]:  # fmt: skip
        twin.sql("a", sql)
        if sql in ("RELEASE a", "COMMIT"):
            twin.sql("b", "SELECT x FROM t")


@pytest.mark.parametrize("twin", LEVELS, indirect=True)
def test_many_rows_and_scripts(twin):
    twin.do("a", "executemany", INSERT, [("1",), ("2",)])
    twin.sql("a", "SELECT x FROM t")
    twin.do("a", "executemany", INSERT, [("3",), ("1",), ("4",)])  # the second one is not unique
    twin.sql("a", "SELECT x FROM t")
    twin.do("a", "executescript", "INSERT INTO t (x) VALUES ('5'); INSERT INTO t (x) VALUES ('6')")
    twin.sql("a", "SELECT x FROM t")
    twin.do("a", "executescript", "INSERT INTO t (x) VALUES ('7'); INSERT INTO t (x) VALUES ('1');")
    twin.do("a", "executescript", "BEGIN; INSERT INTO t (x) VALUES ('8'); SAVEPOINT s;")
    twin.sql("a", "SELECT x FROM t")
    twin.sql("b", "SELECT x FROM t")
    twin.do("a", "executescript", "INSERT INTO t (x) VALUES ('9'); ROLLBACK")
    twin.do("a", "rollback")
    twin.sql("a", "SELECT x FROM t")


@pytest.mark.parametrize("level", LEVELS)
def test_with_block_commits_or_rolls_back(level, path):
    with closing(dbapi.connect(path, isolation_level=level)) as conn:
        conn.execute(SETUP[1])
        with conn:
            conn.execute("BEGIN")
            conn.execute(INSERT, ("kept",))
        conn.execute("BEGIN")
        conn.execute(INSERT, ("gone",))
        with pytest.raises(ZeroDivisionError), conn:
            raise ZeroDivisionError
        assert not conn.in_transaction
        assert conn.execute("SELECT x FROM t").fetchall() == [("kept",)]


def test_isolation_level_none_commits(path):
    with closing(dbapi.connect(path)) as conn, closing(dbapi.connect(path)) as other:
        conn.execute(SETUP[1])
        conn.execute(INSERT, ("a",))
        assert conn.in_transaction
        conn.isolation_level = None
        assert not conn.in_transaction
        assert other.execute("SELECT x FROM t").fetchall() == [("a",)]


def test_statement_that_ends_the_transaction_ends_its_lease(path):
    """Others could only wait for the end of a lease that its holder has forgotten."""
    with closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.lease_seconds = 600
        conn.execute("CREATE TABLE t (x UNIQUE)")
        conn.execute("INSERT INTO t VALUES (1)")
        conn.execute("BEGIN")
        conn.execute("INSERT INTO t VALUES (2)")
        with pytest.raises(sqlite3.IntegrityError):
            conn.execute("INSERT OR ROLLBACK INTO t VALUES (1)")
        assert not conn.in_transaction
        with closing(dbapi.connect(path, isolation_level=None, timeout=30)) as other:
            other.execute("INSERT INTO t VALUES (3)")
        assert conn.execute("SELECT x FROM t").fetchall() == [(1,), (3,)]


def test_comment_in_a_rollback_to_a_savepoint_changes_nothing(path):
    with closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.execute("CREATE TABLE t (x)")
        conn.execute("BEGIN")
        conn.execute("INSERT INTO t VALUES (1)")
        conn.execute("SAVEPOINT s")
        conn.execute("INSERT INTO t VALUES (2)")
        conn.execute("ROLLBACK /* a part */ TO s")
        conn.execute("COMMIT")
        assert conn.execute("SELECT x FROM t").fetchall() == [(1,)]


def test_temporary_virtual_table_does_not_reach_the_writer(path):
    """It would hide a table from the writes of all others."""
    with closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.execute("CREATE VIRTUAL TABLE words USING fts5(x)")
        conn.execute("CREATE TABLE users (x)")
        conn.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.Error):
            conn.execute("CREATE VIRTUAL TABLE temp.users USING fts5vocab(main, words, row)")
        conn.execute("ROLLBACK")
        with closing(dbapi.connect(path, isolation_level=None)) as other:
            other.execute("INSERT INTO users VALUES (1)")


def test_setting_of_deferred_keys_reaches_a_commit_that_follows(tmp_path):
    """Switched off inside a transaction it forgives what was broken: so a table is exchanged."""
    seen = []
    for module in (sqlite3, dbapi):
        with closing(module.connect(tmp_path / f"{module.__name__}.db")) as conn:
            conn.executescript(
                "CREATE TABLE a (id INTEGER PRIMARY KEY); INSERT INTO a VALUES (1);"
                "CREATE TABLE b (a REFERENCES a); INSERT INTO b VALUES (1)"
            )
            conn.commit()
            conn.execute("PRAGMA foreign_keys = ON")
            conn.execute("BEGIN")
            conn.execute("PRAGMA defer_foreign_keys = ON")
            conn.execute("CREATE TABLE new (id INTEGER PRIMARY KEY)")
            conn.execute("INSERT INTO new SELECT * FROM a")
            conn.execute("DROP TABLE a")
            conn.execute("ALTER TABLE new RENAME TO a")
            conn.execute("PRAGMA defer_foreign_keys = OFF")
            conn.commit()
            seen.append(conn.execute("SELECT * FROM a").fetchall())
    assert seen == [[(1,)], [(1,)]]


def test_statement_that_waits_runs_under_the_settings_of_its_time(path):
    with closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.execute("CREATE TABLE t (x)")
        conn.execute("INSERT INTO t VALUES ('A')")
        conn.prompt = False
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("UPDATE t SET x = 'b' WHERE x LIKE 'a'")
        conn.execute("PRAGMA case_sensitive_like = ON")
        conn.execute("UPDATE t SET x = 'c' WHERE x LIKE 'B'")
        conn.commit()
        assert conn.execute("SELECT x FROM t").fetchall() == [("b",)]
