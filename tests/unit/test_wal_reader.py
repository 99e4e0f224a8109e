"""Rows out of a write-ahead log, compared with what SQLite reads."""

import random
import shutil
import sqlite3
import struct
from contextlib import closing

import pytest

from hermes_actor.errors import NotADatabase
from hermes_actor.recovery.wal_reader import committed_pages


def values(rng):
    return [
        rng.choice([None, 0, 1, -1, 127, -32769, 2**23, -(2**40), 2**62, 0.5, -1e300]),
        rng.choice(["", "a", "hëllo 😀", "x" * rng.randrange(20_000)]),
        rng.choice([None, b"", b"\x00\xff" * rng.randrange(5_000)]),
    ]


@pytest.fixture(params=[512, 1024, 4096, 65536])
def log(request, tmp_path):
    """A log whose database has been there before; its rows as SQLite sees them."""
    rng = random.Random(request.param)
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute(f"PRAGMA page_size = {request.param}")
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c)")
        conn.execute("CREATE INDEX i ON t (b)")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        conn.execute("PRAGMA wal_autocheckpoint = 0")
        for n in range(200):
            rowid = n if n % 50 else -n
            conn.execute("INSERT INTO t VALUES (?, ?, ?, ?)", (rowid, *values(rng)))
        conn.execute("DELETE FROM t WHERE id % 7 = 3")
        conn.execute("UPDATE t SET a = 'changed', b = hex(id) WHERE id % 11 = 2")
        rows = conn.execute("SELECT id, a, b, c FROM t").fetchall()
        shutil.copy(f"{path}-wal", tmp_path / "log")
    return tmp_path / "log", {row[0]: list(row[1:]) for row in rows}


def carved(path):
    with committed_pages(path) as pages:
        return list(pages.records())


def test_every_row(log):
    path, rows = log
    found = {c.rowid: c.values for c in carved(path) if c.columns == 4 and c.values is not None}
    for rowid, row in rows.items():
        number = rowid if rowid >= 0 else rowid + 2**64
        assert found[number] == [None, *row]


@pytest.mark.parametrize("big", [80, 3000])
def test_rows_that_were_deleted_do_not_come_back(tmp_path, big):
    """Not even where SQLite leaves the content of pages that it frees."""
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA secure_delete = OFF").fetchall()
        conn.execute("PRAGMA wal_autocheckpoint = 0")
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)")
        for n in range(300):
            conn.execute("INSERT INTO t (a, b) VALUES (?, ?)", (n % 5, f"x{n} " * big))
        conn.execute("DELETE FROM t WHERE a > 0 OR id % 3 = 0")
        for n in range(7):
            conn.execute("INSERT INTO t (a, b) VALUES (9, ?)", (f"new{n} " * big,))
        rows = {row[0]: list(row[1:]) for row in conn.execute("SELECT id, a, b FROM t")}
        shutil.copy(f"{path}-wal", tmp_path / "log")
    records = [
        record for record in carved(tmp_path / "log") if record.columns == 3 and record.values
    ]
    assert {record.rowid: record.values[1:] for record in records} == rows
    assert len(records) == len(rows)


def test_what_is_not_committed_is_not_there(log):
    path, rows = log
    data = path.read_bytes()
    size = struct.unpack_from(">I", data, 8)[0]
    # A frame that was written half, and one whose page has changed since.
    last = (len(data) - 32) // (24 + size) - 1
    for broken in (data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
        path.write_bytes(broken)
        assert len(carved(path)) <= len(rows) + 60
        with committed_pages(path) as pages:
            assert max(pages._offsets.values()) < 32 + last * (24 + size)


def test_row_with_a_part_elsewhere_is_reported(tmp_path):
    path = tmp_path / "t.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)")
        conn.execute("INSERT INTO t VALUES (1, 'long', ?)", ("x" * 20_000,))
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        conn.execute("INSERT INTO t VALUES (2, 'short', 'y')")  # the same leaf
        shutil.copy(f"{path}-wal", tmp_path / "log")
    whole = {c.rowid: c.values for c in carved(tmp_path / "log") if c.columns == 3}
    assert whole == {1: None, 2: [None, "short", "y"]}


@pytest.mark.parametrize("data", [b"x", b"SQLite format 3\x00" * 8])
def test_other_files_are_refused(tmp_path, data):
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(NotADatabase, match="log is not a write-ahead log"):
        carved(tmp_path / "log")


def test_empty_log(tmp_path):
    (tmp_path / "log").touch()
    assert carved(tmp_path / "log") == []
