"""A change counts as saved only if it is in a valid, committed frame of the saved WAL."""

import shutil
import sqlite3
import zlib

import pytest
from harness.saved_wal import without_saved

from hermes_actor.testing.history import Row, Write
from hermes_actor.testing.records import Recorded

TEXTS = [f"w0 {number} {'x' * 30}" for number in range(1, 4)]


@pytest.fixture
def wal(tmp_path):
    """Three committed changes, and one that is not."""
    conn = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("PRAGMA cache_size = 1")
    conn.execute("CREATE TABLE messages (role, content)")
    for text in TEXTS:
        conn.execute("INSERT INTO messages VALUES ('user', ?)", (text,))
    conn.execute("BEGIN")
    conn.execute("INSERT INTO messages VALUES ('user', 'w0 9 xxx')")
    conn.execute("INSERT INTO messages VALUES ('user', zeroblob(100000))")
    saved = tmp_path / "saved"
    shutil.copy(tmp_path / "state.db-wal", saved)
    yield saved
    conn.close()


def history():
    texts = [*TEXTS, "w0 9 xxx"]
    writes = [
        Write("w0", int(text.split()[1]), zlib.crc32(text.encode()), 1.0, 2.0, "ok", 1, 1)
        for text in texts
    ]
    return Recorded(writes, [], [], [], [])


def outcomes(recorded):
    return {write.number: write.outcome for write in recorded.writes}


def test_what_is_in_the_file_or_not_committed_stays_acknowledged(wal):
    there = [Row(1, "w0", 1, 0, 1)]
    recorded, saved = without_saved(history(), there, [wal])
    assert outcomes(recorded) == {1: "ok", 2: "unknown", 3: "unknown", 9: "ok"}
    assert saved == 2


def test_frames_after_a_damaged_one_count_for_nothing(wal):
    data = bytearray(wal.read_bytes())
    data[data.index(b"w0 2 ")] ^= 1
    wal.write_bytes(data)
    recorded, saved = without_saved(history(), [], [wal])
    assert outcomes(recorded) == {1: "unknown", 2: "ok", 3: "ok", 9: "ok"}
    assert saved == 1


def test_without_a_saved_wal_nothing_is_excused():
    recorded, saved = without_saved(history(), [], [])
    assert set(outcomes(recorded).values()) == {"ok"}
    assert saved == 0
