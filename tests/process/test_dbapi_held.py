"""Statements that wait for the next request (``Connection.prompt = False``)."""

import signal
import sqlite3
from contextlib import closing

import pytest
from support.actors import stop_actor

from hermes_actor import dbapi
from hermes_actor.client import leases as client_leases
from hermes_actor.client.connection import ActorConnection

SETUP = """
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT UNIQUE, n INTEGER);
INSERT INTO item (name, n) VALUES ('a', 1), ('b', 1), ('c', 1);
"""


@pytest.fixture
def conn(path):
    with closing(dbapi.connect(path, isolation_level=None, timeout=30)) as conn:
        conn.executescript(SETUP)
        conn.prompt = False
        yield conn


@pytest.fixture
def waits(monkeypatch):
    """The number of times that the program has waited for the actor."""
    counted = []

    def wait(self, steps, plain=ActorConnection.wait):
        counted.append(len(steps))
        return plain(self, steps)

    monkeypatch.setattr(ActorConnection, "wait", wait)
    return counted


def rows(path):
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        return reader.execute("SELECT name, n FROM item ORDER BY id").fetchall()


def test_transaction_takes_two_round_trips(conn, path, waits):
    conn.execute("BEGIN IMMEDIATE")
    assert conn.execute("INSERT INTO item (name, n) VALUES ('d', 0)").lastrowid == 4
    conn.execute("UPDATE item SET n = n + 1 WHERE name = 'd'")
    conn.execute("DELETE FROM item WHERE name = 'a'")
    conn.commit()
    assert len(waits) == 2
    assert rows(path) == [("b", 1), ("c", 1), ("d", 1)]


def test_transaction_without_statements_asks_for_nothing(conn, waits):
    for end in (conn.commit, conn.rollback):
        conn.execute("BEGIN IMMEDIATE")
        assert conn.in_transaction
        end()
        assert not conn.in_transaction
    assert waits == []


def test_counters_are_those_of_sqlite3_whenever_they_are_asked_for(conn, tmp_path):
    with closing(sqlite3.connect(tmp_path / "native.db", isolation_level=None)) as native:
        native.executescript(SETUP)
        seen = []
        for connection in (conn, native):
            before = connection.total_changes
            connection.execute("BEGIN IMMEDIATE")
            first = connection.execute("UPDATE item SET n = 5 WHERE name > 'a'")
            second = connection.execute("INSERT INTO item (name) VALUES (?)", ("d",))
            third = connection.execute("INSERT OR IGNORE INTO item (name) VALUES (:name)",
                                       {"name": "a"})  # fmt: skip
            inner = [first.rowcount, second.lastrowid, connection.total_changes - before]
            last = connection.execute("DELETE FROM item WHERE n = 5")
            counted = connection.execute("SELECT changes(), last_insert_rowid()").fetchall()
            fourth = connection.execute("REPLACE INTO item (id, name) VALUES (9, 'z')")
            connection.commit()
            seen.append([
                inner, counted, second.rowcount, third.rowcount, third.lastrowid, last.rowcount,
                fourth.rowcount, fourth.lastrowid, fourth.fetchone(), fourth.description,
                connection.total_changes - before,
                connection.execute("SELECT * FROM item ORDER BY id").fetchall(),
            ])  # fmt: skip
        assert seen[0] == seen[1]


def test_reads_of_the_transaction_see_what_waits(conn):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("UPDATE item SET n = 7")
    assert conn.execute("SELECT sum(n) FROM item").fetchone() == (21,)
    conn.execute("UPDATE item SET n = 8")
    conn.execute("SAVEPOINT s")
    conn.execute("UPDATE item SET n = 9")
    conn.execute("ROLLBACK TO s")
    assert conn.execute("SELECT sum(n) FROM item").fetchone() == (24,)
    conn.rollback()
    assert conn.execute("SELECT sum(n) FROM item").fetchone() == (3,)


def test_error_comes_with_the_next_request(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("UPDATE item SET n = 2")
    conn.execute("INSERT INTO item (name) VALUES ('a')")
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: item.name"):
        conn.execute("SELECT 1 FROM item")
    # As in sqlite3: only the statement is undone.
    assert conn.in_transaction
    conn.commit()
    assert rows(path) == [("a", 2), ("b", 2), ("c", 2)]


def test_error_at_the_commit_rolls_back(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    changed = conn.execute("UPDATE item SET n = 2")
    conn.execute("SELECT 1 FROM item").fetchall()
    wrong = conn.execute("INSERT INTO item (name) VALUES ('a')")
    after = conn.execute("UPDATE item SET n = 3")
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: item.name"):
        conn.commit()
    assert not conn.in_transaction
    assert rows(path) == [("a", 1), ("b", 1), ("c", 1)]
    assert [cursor.rowcount for cursor in (changed, wrong, after)] == [3, -1, -1]
    # Its lease is over: another program writes at once.
    conn.prompt = True
    conn.execute("UPDATE item SET n = 4")
    assert rows(path) == [("a", 4), ("b", 4), ("c", 4)]


def test_lock_is_taken_with_the_first_statement(conn, path):
    with closing(dbapi.connect(path, isolation_level=None, timeout=0)) as other:
        other.prompt = False
        conn.execute("BEGIN IMMEDIATE")
        other.execute("BEGIN IMMEDIATE")
        conn.execute("SELECT 1 FROM item").fetchall()
        other.execute("UPDATE item SET n = 5")
        with pytest.raises(sqlite3.OperationalError, match=r"^database is locked"):
            other.commit()
        assert not other.in_transaction
        conn.execute("UPDATE item SET n = 6")
        conn.commit()
    assert rows(path) == [("a", 6), ("b", 6), ("c", 6)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_waits_outlives_the_actor(conn, path, how):
    conn.execute("BEGIN IMMEDIATE")
    assert conn.execute("UPDATE item SET n = n + 1").rowcount == 3
    conn.execute("UPDATE item SET n = n * 10")
    stop_actor(path, how)
    conn.commit()
    assert rows(path) == [("a", 20), ("b", 20), ("c", 20)]


def test_commit_whose_answer_is_lost_is_made_once(conn, path, monkeypatch):
    """The actor is killed when the commit is in the file; its receipt has the counters."""

    def commit(self, *words, plain=client_leases._Steps.commit, **more):
        plain(self, *words, **more)
        stop_actor(path, signal.SIGKILL)
        connection = self._connection
        # What was sent is sent again, as if its answer had not come.
        self._taken = [self._number]
        connection.protocol._reserved.add(self._number)
        return plain(self, *words, **more)

    conn.execute("BEGIN IMMEDIATE")
    conn.execute("SELECT 1 FROM item").fetchall()
    changed = conn.execute("UPDATE item SET n = n + 1")
    monkeypatch.setattr(client_leases._Steps, "commit", commit)
    conn.commit()
    assert changed.rowcount == 3
    assert rows(path) == [("a", 2), ("b", 2), ("c", 2)]


def test_actor_that_takes_nothing_with_a_commit(conn, path, monkeypatch):
    monkeypatch.setattr(client_leases._Steps, "takes_last", False)
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("SELECT 1 FROM item").fetchall()
    changed = conn.execute("UPDATE item SET n = 2")
    conn.commit()
    assert changed.rowcount == 3
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("SELECT 1 FROM item").fetchall()
    conn.execute("UPDATE item SET n = 3")
    conn.execute("INSERT INTO item (name) VALUES ('a')")
    with pytest.raises(sqlite3.IntegrityError):
        conn.commit()
    assert not conn.in_transaction
    assert rows(path) == [("a", 2), ("b", 2), ("c", 2)]


def test_many_statements_do_not_pile_up(conn, path, waits):
    conn.execute("BEGIN IMMEDIATE")
    for number in range(200):
        conn.execute("INSERT INTO item (name) VALUES (?)", (f"{number}",))
    assert 1 < len(waits) < 10
    conn.commit()
    assert len(rows(path)) == 203


def test_close_and_rollback_forget_what_waits(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    forgotten = conn.execute("UPDATE item SET n = 2")
    conn.rollback()
    assert forgotten.rowcount == -1
    with closing(dbapi.connect(path, isolation_level=None)) as other:
        other.prompt = False
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE item SET n = 2")
    assert rows(path) == [("a", 1), ("b", 1), ("c", 1)]
