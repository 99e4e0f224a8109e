"""``interrupt()`` from another thread, while a statement runs in the actor."""

import sqlite3
import threading
from contextlib import closing

import pytest

from hermes_actor import dbapi

COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 1000000000)"
ENDLESS = f"{COUNT} INSERT INTO t (x) SELECT x FROM c WHERE x < 0"
ENDLESS_READ = f"{COUNT} SELECT count(*) FROM c"


@pytest.fixture(params=[dbapi, sqlite3], ids=["ours", "sqlite3"])
def open_(request, path):
    """Open a connection to a file of a table with one row: ours, and as control, the real one."""
    opened = []

    def open_(isolation_level=None):
        conn = request.param.connect(path, isolation_level=isolation_level, timeout=30)
        opened.append(conn)
        return conn

    first = open_()
    first.execute("PRAGMA journal_mode = WAL")
    first.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
    first.execute("INSERT INTO t (x) VALUES ('before')")
    yield open_
    for conn in opened:
        conn.close()


def interrupted(conn, call, *arguments):
    """Interrupt *conn* until *call* has raised, and return the error."""
    over = threading.Event()

    def interrupt():
        while not over.wait(0.05):
            conn.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(sqlite3.OperationalError) as error:
            call(*arguments)
    finally:
        over.set()
        thread.join()
    return error.value


def said(error):
    return type(error), str(error), error.sqlite_errorcode, error.sqlite_errorname


INTERRUPTED = (sqlite3.OperationalError, "interrupted", 9, "SQLITE_INTERRUPT")


def rows(conn):
    return [x for (x,) in conn.execute("SELECT x FROM t ORDER BY id")]


def test_autocommit_write_is_interrupted(open_):
    conn = open_()
    assert said(interrupted(conn, conn.execute, ENDLESS)) == INTERRUPTED
    conn.execute("INSERT INTO t (x) VALUES ('after')")
    assert rows(conn) == ["before", "after"]


def test_script_keeps_what_came_before(open_):
    conn = open_()
    script = f"INSERT INTO t (x) VALUES ('one'); {ENDLESS}; INSERT INTO t (x) VALUES ('two');"
    assert said(interrupted(conn, conn.executescript, script)) == INTERRUPTED
    assert rows(conn) == ["before", "one"]


def test_write_of_a_transaction_rolls_it_back(open_):
    conn = open_()
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES ('lost')")
    assert said(interrupted(conn, conn.execute, ENDLESS)) == INTERRUPTED
    assert not conn.in_transaction
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES ('after')")
    conn.execute("COMMIT")
    assert rows(conn) == ["before", "after"]


def test_read_of_a_transaction_leaves_it_open(open_):
    conn = open_()
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES ('kept')")
    assert said(interrupted(conn, lambda: conn.execute(ENDLESS_READ).fetchall())) == INTERRUPTED
    assert conn.in_transaction
    conn.execute("COMMIT")
    assert rows(conn) == ["before", "kept"]


def test_first_write_of_a_transaction_that_python_began(open_):
    conn = open_("")
    sql = f"INSERT INTO t (x) {COUNT} SELECT x FROM c WHERE x < 0"
    assert said(interrupted(conn, conn.execute, sql)) == INTERRUPTED
    assert not conn.in_transaction
    with conn:
        conn.execute("INSERT INTO t (x) VALUES ('after')")
    assert rows(conn) == ["before", "after"]


def test_writers_beside_it_are_not_interrupted(open_):
    conn = open_()
    ((_, _, path),) = conn.execute("PRAGMA database_list")
    started = threading.Event()

    def insert():
        started.wait()
        module = dbapi if isinstance(conn, dbapi.Connection) else sqlite3
        with closing(module.connect(path, isolation_level=None, timeout=30)) as beside:
            beside.execute("INSERT INTO t (x) VALUES ('beside')")

    thread = threading.Thread(target=insert)
    thread.start()
    started.set()
    assert said(interrupted(conn, conn.execute, ENDLESS)) == INTERRUPTED
    thread.join()
    assert rows(conn) == ["before", "beside"]


def test_interrupt_of_nothing_changes_nothing(open_):
    conn = open_()
    conn.interrupt()
    conn.execute("INSERT INTO t (x) VALUES ('after')")
    conn.execute("BEGIN IMMEDIATE")
    conn.interrupt()
    conn.execute("INSERT INTO t (x) VALUES ('more')")
    conn.execute("COMMIT")
    assert rows(conn) == ["before", "after", "more"]
