"""The schema changes beside a program whose statements have been looked at.

SQLite lists the program of an ``EXPLAIN`` that was prepared under another schema from memory that
it has released: no such statement is used twice. With MALLOC_PERTURB_ glibc fills what is released,
so that a use of it ends the process.
"""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from contextlib import closing
from hermes_actor import dbapi

def insert(conn, begin, number):
    conn.execute(begin)
    conn.execute("SELECT count(*) FROM t").fetchall()
    for sql in ("INSERT INTO t (x) VALUES (?)", "UPDATE t SET x = x || 'y' WHERE id = ?"):
        conn.execute(sql, (number,))
    conn.execute("COMMIT")

path, what = sys.argv[1:]
with (
    closing(dbapi.connect(path, isolation_level=None)) as conn,
    closing(dbapi.connect(path, isolation_level=None)) as other,
):
    conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
    conn.execute("CREATE TRIGGER seen AFTER INSERT ON t BEGIN SELECT 1; END")
    if what == "authorizer":
        conn.set_authorizer(lambda *_: 0)
    if what == "private":
        conn.execute("CREATE TEMP TABLE mine (x)")
    for number in range(12):
        insert(conn, "BEGIN IMMEDIATE" if number % 2 else "BEGIN", number)
        other.execute(f"CREATE TABLE more_{number} (a, b, c, d, e)")
        other.execute("ALTER TABLE t RENAME TO u")
        other.execute("ALTER TABLE u RENAME TO t")
    print(conn.execute("SELECT count(*) FROM t").fetchone()[0])
"""


@pytest.mark.parametrize("what", ["plain", "authorizer", "private"])
def test_no_statement_is_explained_from_released_memory(path, what):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, what],
        env={**os.environ, "MALLOC_PERTURB_": "165"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "12\n", "")
