"""``changes()`` and ``last_insert_rowid()`` inside statements that write, and inside triggers.

They are those of the connection, though all programs share one in the actor.
"""

import random
import sqlite3
from contextlib import closing

import pytest

from hermes_actor import dbapi

SETUP = """
CREATE TABLE t (a INTEGER PRIMARY KEY, b);
CREATE TABLE log (what, changes, rowid_);
"""
TRIGGER = """
CREATE TRIGGER counts AFTER UPDATE ON t
BEGIN INSERT INTO log VALUES ('trigger', changes(), last_insert_rowid()); END;
"""
STATEMENTS = [
    "INSERT INTO t (b) SELECT a FROM t",
    "INSERT INTO t (b) VALUES (1), (2)",
    "DELETE FROM t WHERE a % 3 = 0",
    "UPDATE t SET b = changes() WHERE a % 2",
    "INSERT INTO log VALUES ('statement', changes(), last_insert_rowid())",
    "INSERT INTO log SELECT 'none', changes(), 0 WHERE changes() = 0",
    "UPDATE t SET b = 0 WHERE a < 0",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "SELECT changes(), last_insert_rowid()",
]


@pytest.mark.parametrize("trigger", ["", TRIGGER])
@pytest.mark.parametrize("seed", range(3))
def test_counters_are_those_of_the_connection(tmp_path, trigger, seed):
    seen = []
    for module in (sqlite3, dbapi):
        choice = random.Random(seed)
        path = tmp_path / f"{module.__name__}.db"
        with (
            closing(module.connect(path, isolation_level=None, timeout=30)) as one,
            closing(module.connect(path, isolation_level=None, timeout=30)) as two,
        ):
            one.executescript(SETUP + trigger)
            said = []
            for _ in range(40):
                sql = choice.choice(STATEMENTS)
                other = choice.choice(STATEMENTS[:6])
                if sql in ("BEGIN IMMEDIATE", "COMMIT") and one.in_transaction == sql.startswith(
                    "BEGIN"
                ):
                    continue
                cursor = one.execute(sql)
                said.append((sql, cursor.fetchall(), cursor.rowcount, cursor.lastrowid))
                if not one.in_transaction:
                    two.execute(other)
            if one.in_transaction:
                one.commit()
            said += one.execute("SELECT * FROM t").fetchall()
            said += one.execute("SELECT * FROM log").fetchall()
            seen.append(said)
    assert seen[0] == seen[1]
