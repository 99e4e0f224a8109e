"""Statements that wait on any connection: those of which SQLite's own program says that they cannot
fail. Whatever may fail raises its error where it stands, as with ``sqlite3``."""

import sqlite3
from contextlib import closing

import pytest

from hermes_actor import dbapi
from hermes_actor.client.connection import ActorConnection
from hermes_actor.dbapi.lease_connection import LeaseConnection

SETUP = """
CREATE TABLE event (kind, value);
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT UNIQUE, n INTEGER NOT NULL DEFAULT 0,
                   price CHECK (price > 0));
CREATE TABLE part (item INTEGER REFERENCES item);
CREATE TABLE late (item INTEGER REFERENCES item DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE strict (n INTEGER) STRICT;
CREATE TABLE numbered (id INTEGER PRIMARY KEY AUTOINCREMENT, x);
CREATE TABLE guarded (x);
CREATE TRIGGER guard BEFORE INSERT ON guarded BEGIN SELECT RAISE(ABORT, 'guarded'); END;
CREATE VIEW shown AS SELECT * FROM guarded;
CREATE TRIGGER shown_insert INSTEAD OF INSERT ON shown
BEGIN SELECT RAISE(ABORT, 'only shown'); END;
CREATE VIRTUAL TABLE words USING fts5(text);
INSERT INTO item (id, name, price) VALUES (1, 'a', 1), (2, 'b', 1);
INSERT INTO part VALUES (1);
INSERT INTO numbered VALUES (9223372036854775807, 0);
"""

FAIL = [
    "INSERT INTO item (name) VALUES ('a')",
    "INSERT INTO item (id) VALUES (1)",
    "INSERT INTO item (id) VALUES ('no number')",
    "UPDATE item SET name = 'a' WHERE id = 2",
    "UPDATE item SET n = NULL",
    "UPDATE item SET price = -1",
    "UPDATE item SET id = 1 WHERE id = 2",
    "INSERT INTO part VALUES (7)",
    "DELETE FROM item WHERE id = 1",
    "INSERT INTO strict VALUES ('x')",
    "INSERT INTO numbered (x) VALUES (1)",
    "INSERT INTO guarded VALUES (1)",
    "INSERT INTO shown VALUES (1)",
    "INSERT INTO words (words) VALUES ('no command')",
    "INSERT INTO event SELECT abs(-9223372036854775807 - 1), 0",
    "UPDATE event SET value = json('no json')",
    "INSERT INTO event VALUES (zeroblob(2000000000), 0)",
    "INSERT INTO event VALUES ((SELECT zeroblob(1500000000) || 'x'), 1)",
    "UPDATE nothing SET x = 1",
    "UPDATE event SET nothing = 1",
    "INSERT INTO event VALUES (1)",
    "DELETE FROM sqlite_master",
    "INSERT INTO event VALUES (1, 2); SELECT 1",
    "INSERT INTO",
]

SURE = [
    "INSERT INTO event VALUES (1, 'x')",
    "UPDATE event SET value = value + 1 WHERE kind IN (1, 2)",
    "UPDATE item SET n = n WHERE id = 2 AND 0 = 1",
    "UPDATE item SET price = price WHERE id = 7",
    "DELETE FROM event WHERE kind = 1",
    "DELETE FROM event",
    "REPLACE INTO event VALUES (1, 2)",
]


@pytest.fixture
def conn(path):
    with closing(dbapi.connect(path, isolation_level=None, timeout=30)) as conn:
        conn.executescript(SETUP)
        conn.execute("PRAGMA foreign_keys = ON")
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


def test_transaction_of_sure_statements_takes_two_round_trips(conn, waits):
    conn.isolation_level = ""
    with conn:
        conn.execute("INSERT INTO event VALUES (1, 2)")
        conn.execute("UPDATE event SET value = :v WHERE kind = :kind", {"kind": 1, "v": 5})
        conn.execute("INSERT INTO event VALUES (?, ?)", (2, 2))
        conn.execute("DELETE FROM event WHERE kind = ?", (2,))
    assert len(waits) == 2
    assert conn.execute("SELECT count(*) FROM event").fetchone() == (1,)


@pytest.mark.parametrize(("prompt", "trips"), [(True, 3), (False, 2)])
def test_round_trips_of_an_indexed_message_and_its_counters(conn, waits, prompt, trips):
    """A row with a full-text trigger may fail; the counters of its session cannot."""
    conn.executescript("""
        CREATE TABLE session (id TEXT PRIMARY KEY, count INTEGER, last REAL);
        CREATE TABLE message (id INTEGER PRIMARY KEY, session REFERENCES session, text);
        CREATE TRIGGER indexed AFTER INSERT ON message
        BEGIN INSERT INTO words (rowid, text) VALUES (new.id, new.text); END;
        INSERT INTO session VALUES ('s', 0, 0);
    """)
    conn.prompt = prompt
    for _ in range(2):
        waits.clear()
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO message (session, text) VALUES (?, ?)", ("s", "walrus"))
        conn.execute("UPDATE session SET count = count + 1, last = ? WHERE id = ?", (1.5, "s"))
        conn.execute("COMMIT")
        assert len(waits) == trips
    assert conn.execute("SELECT count FROM session").fetchone() == (2,)


@pytest.mark.parametrize("sql", SURE[:2] + SURE[4:])
def test_sure_statement_waits(conn, waits, sql):
    conn.execute("BEGIN IMMEDIATE")
    before = len(waits)
    conn.execute(sql)
    assert len(waits) == before
    conn.rollback()


@pytest.mark.parametrize("sql", FAIL)
def test_error_is_raised_where_its_statement_stands(conn, tmp_path, sql):
    with closing(sqlite3.connect(tmp_path / "native.db", isolation_level=None)) as native:
        native.executescript(SETUP)
        native.execute("PRAGMA foreign_keys = ON")
        seen = []
        for connection in (conn, native):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO event VALUES (3, 4)")
            with pytest.raises((sqlite3.Error, sqlite3.Warning)) as raised:
                connection.execute(sql)
            connection.execute("UPDATE event SET value = 5")
            connection.commit()
            rows = connection.execute("SELECT * FROM event").fetchall()
            seen.append((raised.value, rows))
    (ours, our_rows), (theirs, their_rows) = seen
    assert isinstance(ours, type(theirs))
    assert our_rows == their_rows


@pytest.mark.parametrize("parameters", [(), (1,), (1, 2, 3), {"a": 1}, (1, object())])
def test_wrong_parameters_are_refused_where_they_stand(conn, parameters):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO event VALUES (?, ?)", (1, 2))
    with pytest.raises(sqlite3.ProgrammingError):
        conn.execute("INSERT INTO event VALUES (?, ?)", parameters)
    conn.commit()
    assert conn.execute("SELECT * FROM event").fetchall() == [(1, 2)]


def test_constraint_of_the_same_transaction_counts(conn):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO event VALUES (1, 2)")
    conn.execute("CREATE UNIQUE INDEX kinds ON event (kind)")
    with pytest.raises(sqlite3.IntegrityError):
        conn.execute("INSERT INTO event VALUES (1, 3)")
    conn.commit()
    assert conn.execute("SELECT * FROM event").fetchall() == [(1, 2)]


def test_constraint_of_another_program_counts(conn, path, monkeypatch):
    """It comes after the snapshot of this connection, and before its write lock."""
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO event VALUES (1, 2)")
    conn.commit()

    def begin(self, plain=LeaseConnection._begin_writing):
        monkeypatch.undo()
        self.execute("SELECT count(*) FROM event").fetchall()
        with closing(dbapi.connect(path, isolation_level=None)) as other:
            other.execute("CREATE UNIQUE INDEX kinds ON event (kind)")
        plain(self)

    monkeypatch.setattr(LeaseConnection, "_begin_writing", begin)
    conn.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.IntegrityError):
        conn.execute("INSERT INTO event VALUES (1, 3)")
    conn.commit()
    assert conn.execute("SELECT * FROM event").fetchall() == [(1, 2)]


def test_private_function_of_the_same_name_is_not_taken_for_a_sure_one(conn):
    conn.create_function("length", 1, lambda _value: 7)
    conn.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.NotSupportedError):
        conn.execute("UPDATE event SET value = length(kind)")
    conn.rollback()


def test_callbacks_of_the_program_see_nothing_new(conn):
    adapted = []

    class Adapted:
        def __conform__(self, protocol):
            adapted.append(protocol)
            return 1

    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO event VALUES (?, 2)", (Adapted(),))
    assert len(adapted) == 1
    traced = []
    conn.set_trace_callback(traced.append)
    conn.execute("UPDATE event SET value = 2")
    assert traced
    assert not any("EXPLAIN" in sql for sql in traced)
    conn.commit()
    assert conn.execute("SELECT * FROM event").fetchall() == [(1, 2)]
