"""Transactions outlive the actor that ran them, or end with an error and nothing (G17)."""

import os
import signal
import sqlite3
import sys
from contextlib import closing

import pytest
from support.actors import actor_pid, stop_actor

from hermes_actor import dbapi
from hermes_actor.client.control import request_handoff
from hermes_actor.dbapi import transaction
from hermes_actor.paths import resolve_paths

STATEMENTS = [
    ("INSERT INTO log (what) VALUES (?)", ("begin",)),
    ("SELECT balance FROM accounts WHERE name = ?", ("a",)),
    ("UPDATE accounts SET balance = balance - 10 WHERE name = ?", ("a",)),
    ("SELECT balance FROM accounts WHERE name = ?", ("b",)),
    ("SAVEPOINT s", ()),
    ("UPDATE accounts SET balance = balance + 10 WHERE name = ?", ("b",)),
    ("ROLLBACK TO s", ()),
    ("UPDATE accounts SET balance = balance + 10 WHERE name = :name", {"name": "b"}),
    ("SELECT sum(balance) FROM accounts", ()),
    ("INSERT INTO log (what) VALUES (?)", ("end",)),
]


def kill(path):
    stop_actor(path, signal.SIGKILL)


def hand_off(path):
    request_handoff(resolve_paths(path), sys.executable)


def drain(path):
    stop_actor(path, signal.SIGTERM)


@pytest.fixture
def conn(path):
    with closing(dbapi.connect(path, isolation_level=None, timeout=30)) as conn:
        conn.executescript("""
            CREATE TABLE accounts (name PRIMARY KEY, balance);
            INSERT INTO accounts VALUES ('a', 100), ('b', 100), ('c', 100);
            CREATE TABLE log (id INTEGER PRIMARY KEY, what);
        """)
        yield conn


def run(conn, statements):
    return [conn.execute(sql, parameters).fetchall() for sql, parameters in statements]


def state(path):
    """What the file holds, as a program without us sees it."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        balances = dict(reader.execute("SELECT name, balance FROM accounts"))
        return balances, [what for (what,) in reader.execute("SELECT what FROM log ORDER BY id")]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", [kill, hand_off, drain])
@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN"])
def test_actor_is_lost_at_every_position(conn, path, loss, begin):
    expected = {"a": 100, "b": 100, "c": 100}
    whole = []
    for position in range(len(STATEMENTS) + 1):
        conn.execute(begin)
        before = run(conn, STATEMENTS[:position])
        loss(path)
        seen = before + run(conn, STATEMENTS[position:])
        conn.execute("COMMIT")
        expected["a"] -= 10
        expected["b"] += 10
        whole += ["begin", "end"]
        assert state(path) == (expected, whole), position
        assert seen[1] == [(expected["a"] + 10,)]
        assert seen[8] == [(300,)]


def test_change_of_what_was_read_is_an_error(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    run(conn, STATEMENTS[:4])
    kill(path)
    with closing(dbapi.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE accounts SET balance = 5 WHERE name = 'b'")
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked: .* changed what"):
        run(conn, STATEMENTS[4:])
    assert not conn.in_transaction
    assert state(path) == ({"a": 100, "b": 5, "c": 100}, [])
    # The retry of the program.
    conn.execute("BEGIN IMMEDIATE")
    run(conn, STATEMENTS)
    conn.execute("COMMIT")
    assert state(path) == ({"a": 90, "b": 15, "c": 100}, ["begin", "end"])


def test_change_at_the_commit_is_an_error(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    run(conn, STATEMENTS)
    kill(path)
    with closing(dbapi.connect(path, isolation_level=None)) as other:
        other.execute("INSERT INTO log (what) VALUES ('other')")
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked: "):
        conn.execute("COMMIT")
    assert not conn.in_transaction
    assert state(path) == ({"a": 100, "b": 100, "c": 100}, ["other"])


def test_change_of_something_else_is_none(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    seen = run(conn, STATEMENTS[1:4])
    kill(path)
    with closing(dbapi.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE accounts SET balance = 7 WHERE name = 'c'")
    run(conn, STATEMENTS[4:8])
    conn.execute("COMMIT")
    assert seen == [[(100,)], [], [(100,)]]
    assert state(path) == ({"a": 90, "b": 110, "c": 7}, [])


def test_deferred_transaction_that_had_read_is_not_carried_over_a_change(conn, path):
    conn.execute("BEGIN")
    run(conn, STATEMENTS[1:3])
    kill(path)
    with closing(dbapi.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE accounts SET balance = 7 WHERE name = 'c'")
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked: "):
        conn.execute("COMMIT")
    assert state(path) == ({"a": 100, "b": 100, "c": 7}, [])


def test_without_comparison_the_difference_would_be_silent(conn, path, monkeypatch):
    """The broken build that the tests above must catch."""
    monkeypatch.setattr(transaction, "digest", lambda reply: b"")
    conn.execute("BEGIN IMMEDIATE")
    run(conn, STATEMENTS[:4])
    kill(path)
    with closing(dbapi.connect(path, isolation_level=None)) as other:
        other.execute("UPDATE accounts SET balance = 5 WHERE name = 'b'")
    run(conn, STATEMENTS[4:])
    conn.execute("COMMIT")
    assert state(path)[0] == {"a": 90, "b": 15, "c": 100}


def test_random_results_are_not_repeated(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("SELECT random()").fetchall()
    conn.execute("INSERT INTO log (what) SELECT random() FROM accounts").fetchall()
    conn.execute("SELECT what FROM log").fetchall()
    kill(path)
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked: "):
        conn.execute("COMMIT")
    assert state(path)[1] == []


def test_transaction_too_large_to_repeat(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    conn.executemany("INSERT INTO log (what) VALUES (?)", [("x",)] * 2000)
    kill(path)
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked: .*1000 statements"):
        conn.execute("SELECT what FROM log")
    assert not conn.in_transaction
    assert state(path)[1] == []


def test_failed_statement_is_repeated_as_failed(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.IntegrityError):
        conn.execute("INSERT INTO accounts VALUES ('a', 1)")
    conn.execute("INSERT INTO log (what) VALUES ('x')")
    kill(path)
    conn.execute("COMMIT")
    assert state(path) == ({"a": 100, "b": 100, "c": 100}, ["x"])


def test_autocommit_statement_is_made_once_across_a_kill(conn, path):
    for number in range(5):
        before = actor_pid(path)
        kill(path)
        conn.execute("INSERT INTO log (what) VALUES (?)", (str(number),))
        assert actor_pid(path) not in (before, os.getpid())
    assert state(path)[1] == ["0", "1", "2", "3", "4"]
