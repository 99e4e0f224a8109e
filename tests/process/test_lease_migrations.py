"""What changes the schema takes as long as it takes; others wait, and can see for whom."""

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from support.actor_process import served
from support.actors import wait_for
from support.files import query
from support.wire import status

from hermes_actor import SessionDB, dbapi
from hermes_actor.client.actor_client import acquire
from hermes_actor.errors import DeadlineExceeded, NotAllowed
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import SqlRun, SqlStep

SHORT = """
from hermes_actor import limits
limits.PLAIN_LEASE_TOTAL_SECONDS = limits.LEASE_TOTAL_SECONDS = 0.2
limits.PLAIN_LEASE_IDLE_SECONDS = limits.LEASE_IDLE_SECONDS = 0.1
limits.STATEMENT_BESIDE_OTHERS_SECONDS = 0.05
"""
BRIEF_PAUSES = "\nfrom hermes_actor import limits\nlimits.MIGRATION_PAUSE_SECONDS = 0.1\n"
COUNT = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1500000)"
SLOW = [f"CREATE TABLE copy AS {COUNT} SELECT i FROM n", "CREATE INDEX by_i ON copy (i)"]
INSERT = "INSERT INTO t (a) VALUES (1)"


@pytest.fixture(params=["plain", "sessions"])
def kind(request, path):
    """Of a file that is there, with a table of a program in it."""
    if request.param == "sessions":
        SessionDB(path).close()
    with closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.execute("CREATE TABLE t (a)")
    subprocess.run([sys.executable, "-m", "hermes_actor", "stop", "--db", path], check=True)
    return request.param


def run(*statements):
    return SqlRun(steps=[SqlStep(sql=one) for one in statements])


class Beside(threading.Thread):
    """A program that writes all the time, and waits for as long as it has to."""

    def __init__(self, path):
        super().__init__()
        self._path, self._ends, self.made = path, threading.Event(), 0

    def run(self):
        with closing(dbapi.connect(self._path, isolation_level=None, timeout=120)) as conn:
            while not self._ends.is_set():
                conn.execute(INSERT)
                self.made += 1

    def __enter__(self):
        self.start()
        wait_for(lambda: self.made > 3)
        return self

    def __exit__(self, *_):
        self._ends.set()
        self.join()


def alone(conn):
    for sql in SLOW:
        conn.execute(sql)
    conn.execute("UPDATE copy SET i = i + 1")


def in_a_script(conn):
    conn.executescript(";".join([*SLOW, "UPDATE copy SET i = i + 1"]))


def in_a_transaction(conn):
    conn.execute("BEGIN IMMEDIATE")
    assert conn.execute("SELECT count(*) FROM sqlite_master WHERE name = 'copy'").fetchone() == (0,)
    for sql in SLOW:
        conn.execute(sql)
    conn.execute("UPDATE copy SET i = i + 1")
    conn.execute("COMMIT")


@pytest.mark.parametrize("migrate", [alone, in_a_script, in_a_transaction])
def test_a_migration_beside_writers_is_made_once(path, kind, migrate):
    """Each part of it is far longer than the limits, and than the timeout, which is for locks."""
    with served(path, SHORT, kind=kind), Beside(path) as beside:
        with closing(dbapi.connect(path, isolation_level=None, timeout=0.5)) as conn:
            migrate(conn)
        made = beside.made
        wait_for(lambda: beside.made > made)
    assert query(path, "SELECT count(*), min(i), max(i) FROM copy") == [(1_500_000, 2, 1_500_001)]
    assert query(path, "SELECT count(*) FROM t") == [(beside.made,)]
    assert query(path, "SELECT count(*) FROM sqlite_master WHERE name = 'by_i'") == [(1,)]


def test_a_program_may_pause_inside_a_migration(path, kind):
    with served(path, SHORT, kind=kind), closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("ALTER TABLE t ADD COLUMN b")
        wait_for(lambda: status(path).lease is None)  # by the short limit
        conn.execute("UPDATE t SET b = 1")
        wait_for(lambda: status(path).lease.long)
        conn.execute("INSERT INTO t VALUES (2, 2)")
        conn.execute("COMMIT")
    assert query(path, "SELECT b FROM t") == [(2,)]


def test_what_changes_no_schema_keeps_the_limits(path, kind):
    with served(path, SHORT, kind=kind), closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        assert conn.execute(INSERT).rowcount == 1  # asked for: it has been sent
        wait_for(lambda: status(path).lease is None)
        with pytest.raises(sqlite3.OperationalError, match=r"^database is locked: .* paused for"):
            conn.execute(INSERT)
    assert query(path, "SELECT * FROM t") == []


def test_an_attached_program_may_migrate_data_alone(path, kind):
    """A new release may change rows and no table, with the first that it does."""
    with served(path, SHORT, kind=kind), closing(dbapi.connect(path, isolation_level=None)) as conn:
        conn.expect_migration()
        conn.execute("BEGIN IMMEDIATE")
        conn.execute(INSERT)
        wait_for(lambda: status(path).lease is None)
        conn.execute(INSERT)
        conn.execute("COMMIT")
    assert query(path, "SELECT count(*) FROM t") == [(2,)]


def command(*words):
    done = subprocess.run(
        [sys.executable, "-m", "hermes_actor", *words], capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    return " ".join((done.stdout + done.stderr).split())


def test_who_waits_can_see_for_whom(path, kind):
    """In the status, by `doctor`, by `top`, and in the error of one that has waited too long."""
    with served(path, kind=kind):
        client = acquire(resolve_paths(path), 30.0, kind)
        lease = client.open_lease({}, 30.0, first=run("CREATE TABLE u (a)"), seconds=60, pause=10)
        found = status(path).lease
        assert (found.pid, found.long, found.statement) == (os.getpid(), True, "CREATE TABLE u (a)")
        held = rf"held by pid {found.pid} \(.*\) for .* s, 1 statements, a long one: CREATE TABLE u"
        with (
            closing(dbapi.connect(path, isolation_level=None, timeout=0.2)) as other,
            pytest.raises(sqlite3.OperationalError, match=f"^database is locked: .*{held}"),
        ):
            other.execute(INSERT)
        for words in (["status"], ["doctor", "--quick"]):
            lease.run(run("SELECT 1"))  # a sign of life
            told = command(*words, "--db", str(path))
            assert f"held by pid {found.pid} (" in told, words
            assert "a long one: SELECT 1" in told, words
        lease.commit()
        assert status(path).lease is None
        client.release()


def test_a_pause_that_is_too_long_for_a_migration_names_limit_and_statement(path, kind):
    with served(path, BRIEF_PAUSES, kind=kind):
        client = acquire(resolve_paths(path), 30.0, kind)
        lease = client.open_lease({}, 30.0, first=run("CREATE TABLE u (a)"), seconds=60, pause=10)
        wait_for(lambda: status(path).lease is None)
        named = r"the last: CREATE TABLE u \(a\): it paused for 0\.1 s, the longest pause\. It may"
        with pytest.raises(DeadlineExceeded, match=f"{named} take 60 s in all and pause for 0.1 s"):
            lease.run(run(INSERT))
        client.release()
    assert query(path, "SELECT count(*) FROM sqlite_master WHERE name = 'u'") == [(0,)]


def test_long_transactions_that_are_no_migration_stay_refused_beside_messages(path):
    SessionDB(path).close()
    client = acquire(resolve_paths(path), 30.0, "sessions")
    with pytest.raises(NotAllowed, match="others wait"):
        client.open_lease({}, 30.0, seconds=60)
    client.release()
