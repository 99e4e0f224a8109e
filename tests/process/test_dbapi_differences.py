"""The differences from ``sqlite3`` are those of the table in docs/reference/dbapi.md."""

import os
import re
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from support.actors import stop_actor

from hermes_actor import dbapi

PAGE = Path(__file__).parents[2] / "docs/reference/dbapi.md"

CHECKS = {}


def difference(row):
    """Register a check of the row of the table whose first cell is *row*."""

    def register(check):
        CHECKS[row] = check
        return check

    return register


def table():
    section = PAGE.read_text().partition("## Differences")[2]
    cells = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    return [cell for cell in cells[1:] if set(cell) - set("-")]


@pytest.fixture
def conn(path):
    with closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
        conn.execute("INSERT INTO t (x) VALUES ('a'), ('b'), ('c')")
        yield conn


def not_supported(call, *arguments, **more):
    with pytest.raises(sqlite3.NotSupportedError) as error:
        call(*arguments, **more)
    assert len(str(error.value).split()) > 5, "a sentence"


@difference("`sqlite_master`")
def lists_own_tables(conn):
    names = {
        name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    }
    own = {"hermes_actor_meta", "hermes_actor_receipts", "hermes_actor_stage"}
    assert own <= names
    assert not any("hermes_actor" in sql for sql in conn.iterdump())


@difference("functions, aggregates and collations of the connection")
def functions_only_read(conn):
    class Longest:
        def __init__(self):
            self.found = ""

        def step(self, value):
            self.found = max(self.found, value, key=len)

        def finalize(self):
            return self.found

    conn.create_function("twice", 1, lambda x: 2 * x)
    conn.create_aggregate("longest", 1, Longest)
    conn.create_collation("mine", lambda a, b: (a > b) - (a < b))
    conn.execute("SELECT twice(x), longest(x) FROM t ORDER BY x COLLATE mine").fetchall()
    not_supported(conn.execute, "UPDATE t SET x = twice(x)")
    not_supported(conn.execute, "INSERT INTO t (x) SELECT longest(x) FROM t")
    not_supported(conn.execute, "DELETE FROM t WHERE x = 'a' COLLATE mine")
    conn.execute("BEGIN IMMEDIATE")
    not_supported(conn.execute, "SELECT twice(x) FROM t")
    assert conn.execute("SELECT twice(4)").fetchall() == [(8,)]
    conn.execute("ROLLBACK")


@difference("temporary tables, attached databases")
def private_tables_only_read(conn):
    conn.execute("CREATE TEMP TABLE mine AS SELECT x FROM t")
    conn.execute("ATTACH ':memory:' AS other")
    conn.execute("CREATE TABLE other.u AS SELECT x FROM mine")
    assert conn.execute(
        "SELECT count(*) FROM mine JOIN u USING (x) JOIN t USING (x)"
    ).fetchall() == [(3,)]
    not_supported(conn.execute, "INSERT INTO t (x) SELECT x FROM mine")
    not_supported(conn.execute, "UPDATE t SET x = (SELECT max(x) FROM other.u)")


@difference("`ATTACH` of a file that has an actor")
def attached_file_is_read_only(conn):
    with closing(dbapi.connect(conn._target.paths.db.with_name("second.db"))) as second:
        second.execute("CREATE TABLE s (x)")
        second.commit()
        conn.execute("ATTACH ? AS second", (str(second._target.paths.db),))
        assert conn.execute("SELECT x FROM second.s").fetchall() == []
        not_supported(conn.execute, "INSERT INTO second.s VALUES (1)")


@difference("`blobopen`")
def blobs_are_read_only(conn):
    with conn.blobopen("t", "x", 1, readonly=True) as blob:
        assert blob.read() == b"a"
    not_supported(conn.blobopen, "t", "x", 1)
    conn.execute("BEGIN IMMEDIATE")
    not_supported(conn.blobopen, "t", "x", 1, readonly=True)
    conn.execute("ROLLBACK")


@difference("`backup`")
def backup_of_and_into(conn):
    with closing(sqlite3.connect(":memory:")) as copy:
        conn.backup(copy)
        assert copy.execute("SELECT count(*) FROM t").fetchone() == (3,)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            copy.backup(conn)
    with closing(dbapi.connect(conn._target.paths.db.with_name("other.db"))) as other:
        conn.backup(other)
        assert other.execute("SELECT count(*) FROM t").fetchone() == (3,)
    conn.execute("BEGIN IMMEDIATE")
    not_supported(conn.backup, sqlite3.connect(":memory:"))
    conn.execute("ROLLBACK")


@difference("`serialize`")
def serialize_outside(conn):
    assert conn.serialize().startswith(b"SQLite format 3")
    conn.execute("BEGIN IMMEDIATE")
    not_supported(conn.serialize)
    conn.execute("ROLLBACK")


@difference("`deserialize`")
def deserialize_is_refused(conn):
    not_supported(conn.deserialize, b"")


@difference("`interrupt` of `executemany` outside of a transaction")
def interrupted_rows_are_undone_together(conn):
    conn.execute("PRAGMA busy_timeout = 60000")
    threading.Timer(0.2, conn.interrupt).start()
    count = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < ?)"
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        conn.executemany(f"INSERT INTO t (x) {count} SELECT max(x) FROM c", [(1,), (10**10,)])
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (3,)


@difference("a cursor with rows left, when its connection writes")
def rows_left_are_kept(conn):
    cursor = conn.execute("SELECT x FROM t ORDER BY id")
    assert cursor.fetchone() == ("a",)
    conn.execute("DELETE FROM t")
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert cursor.fetchall() == [("b",), ("c",)]


@difference("rows of `executemany` that ask the connection while they are made")
def rows_are_gathered_first(conn):
    def rows():
        for _ in range(2):
            yield conn.execute("SELECT count(*) FROM t").fetchone()

    conn.executemany("INSERT INTO t (x) VALUES (?)", rows())
    assert conn.execute("SELECT x FROM t WHERE id > 3").fetchall() == [(3,), (3,)]


@difference("`COMMIT` that a deferred foreign key forbids")
def forbidden_commit_rolls_back(conn):
    conn.execute("CREATE TABLE u (t REFERENCES t DEFERRABLE INITIALLY DEFERRED)")
    conn.execute("PRAGMA foreign_keys = ON")
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO u VALUES (99)")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY constraint failed"):
        conn.execute("COMMIT")
    assert not conn.in_transaction
    assert conn.execute("SELECT * FROM u").fetchall() == []


@difference("a write transaction")
def pauses_are_limited(conn):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("DELETE FROM t")
    time.sleep(1.5)
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked"):
        conn.execute("COMMIT")
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (3,)


@difference("the first write of a transaction that has read, after another actor has started")
def new_actor_overtakes_a_snapshot(conn):
    for expected in ("SQLITE_BUSY_SNAPSHOT", None):
        conn.execute("BEGIN")
        conn.execute("SELECT * FROM t").fetchall()
        if expected is not None:
            stop_actor(conn._target.paths.db, signal.SIGKILL)
        try:
            conn.execute("DELETE FROM t")
            found = None
        except sqlite3.OperationalError as error:
            found = error.sqlite_errorname
        assert found == expected
        conn.rollback()


@difference("`fork`")
def child_is_refused(conn):
    child = os.fork()
    if child == 0:
        try:
            conn.execute("SELECT 1")
        except sqlite3.ProgrammingError:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@difference("`total_changes()` in a statement that writes, or in a trigger")
def counts_of_all_programs(conn):
    not_supported(conn.execute, "UPDATE t SET x = total_changes()")
    conn.execute("CREATE TABLE log (n)")
    conn.execute(
        "CREATE TRIGGER logs AFTER DELETE ON t BEGIN INSERT INTO log VALUES (total_changes()); END"
    )
    not_supported(conn.execute, "DELETE FROM t WHERE id = 1")
    conn.execute("INSERT INTO log VALUES ('total_changes()')")
    assert conn.execute("SELECT count(*), total_changes() FROM t").fetchone() == (3, 4)
    conn.execute("UPDATE t SET x = 'd' WHERE id < 3")
    conn.execute("INSERT INTO log SELECT changes()")
    assert conn.execute("SELECT n FROM log").fetchall() == [("total_changes()",), (2,)]


@difference("`PRAGMA page_size`, `encoding` and `auto_vacuum` of a new file")
def layout_of_a_new_file(conn):
    ((_, _, file),) = conn.execute("PRAGMA database_list")
    folder = Path(file).parent
    with closing(dbapi.connect(folder / "new.db")) as new:
        for pragma in ("page_size = 8192", "encoding = 'UTF-16'", "auto_vacuum = FULL"):
            not_supported(new.execute, f"PRAGMA {pragma}")
        for pragma in ("page_size = 4096", "encoding = 'utf8'", "auto_vacuum = 0"):
            new.execute(f"PRAGMA {pragma}")
    conn.execute("PRAGMA page_size = 8192")  # it has tables: nothing happens
    with closing(sqlite3.connect(folder / "native.db")) as native:
        for pragma in ("page_size = 8192", "encoding = 'UTF-16le'", "auto_vacuum = FULL"):
            native.execute(f"PRAGMA {pragma}")
        native.execute("CREATE TABLE t (x)")
    with closing(dbapi.connect(folder / "native.db")) as ours, ours:
        ours.execute("INSERT INTO t VALUES ('ä')")
        assert ours.execute("PRAGMA page_size").fetchone() == (8192,)
        assert ours.execute("PRAGMA encoding").fetchone() == ("UTF-16le",)
        assert ours.execute("PRAGMA auto_vacuum").fetchone() == (1,)


def test_table_has_every_difference():
    assert table() == list(CHECKS)


@pytest.mark.parametrize("row", CHECKS, ids=lambda row: re.sub(r"\W+", " ", row).strip())
def test_difference(row, conn):
    CHECKS[row](conn)
