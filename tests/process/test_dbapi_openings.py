"""What opening costs, and settings that outlive calls without an effect."""

import sqlite3
from contextlib import closing

import pytest
from support.files import query

from hermes_actor import dbapi

SCHEMA = """
CREATE TABLE IF NOT EXISTS parent (id INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS child (id INTEGER PRIMARY KEY, parent REFERENCES parent);
CREATE INDEX IF NOT EXISTS by_parent ON child (parent);
CREATE TRIGGER IF NOT EXISTS gone AFTER DELETE ON parent BEGIN SELECT 1; END;
"""


def state(path):
    """All that a commit would change."""
    files = [path, path.with_name(path.name + "-wal")]
    numbers = query(path, "SELECT key, value FROM hermes_actor_meta WHERE key <> 'file_id'")
    return sorted(numbers), [(file.stat().st_size, file.read_bytes()) for file in files]


@pytest.mark.parametrize("level", ["", None, "IMMEDIATE"])
def test_opening_an_existing_schema_writes_nothing(path, level):
    with closing(dbapi.connect(path)) as conn:
        conn.executescript(SCHEMA)
        before = state(path)
        for _ in range(3):
            with closing(dbapi.connect(path, isolation_level=level)) as again:
                again.execute("PRAGMA journal_mode = WAL")
                again.execute("PRAGMA synchronous = FULL")
                again.execute("PRAGMA foreign_keys = ON")
                again.executescript(SCHEMA)
                for sql in SCHEMA.split("\n")[1:4]:
                    again.execute(sql)
                again.commit()
                assert again.execute("SELECT count(*) FROM parent").fetchone() == (0,)
        # Nor inside a transaction that holds the write lock.
        conn.execute("BEGIN IMMEDIATE")
        conn.execute(SCHEMA.split("\n")[1])
        conn.commit()
        assert state(path) == before


@pytest.fixture(params=[dbapi, sqlite3], ids=["ours", "sqlite3"])
def conn(request, path):
    with closing(request.param.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.executescript(SCHEMA)
        conn.execute("PRAGMA foreign_keys = ON")
        yield conn


def deferred(conn):
    return conn.execute("PRAGMA defer_foreign_keys").fetchone() == (1,)


@pytest.mark.parametrize("call", ["commit", "rollback", "isolation_level"])
def test_deferral_outlives_a_call_without_a_transaction(conn, call):
    conn.execute("PRAGMA defer_foreign_keys = ON")
    if call == "isolation_level":
        conn.isolation_level = None
    else:
        getattr(conn, call)()
    assert deferred(conn)
    conn.execute("BEGIN")
    conn.execute("INSERT INTO child VALUES (1, 7)")
    conn.execute("INSERT INTO parent VALUES (7)")
    conn.execute("COMMIT")
    assert not deferred(conn)
    conn.execute("BEGIN")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        conn.execute("INSERT INTO child VALUES (2, 8)")
    conn.execute("ROLLBACK")


def test_deferral_ends_with_a_read_outside_of_a_transaction(conn):
    conn.execute("PRAGMA defer_foreign_keys = ON")
    conn.execute("SELECT count(*) FROM parent").fetchall()
    assert not deferred(conn)
    conn.execute("BEGIN")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        conn.execute("INSERT INTO child VALUES (2, 8)")
    conn.execute("ROLLBACK")
