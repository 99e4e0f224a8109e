"""Segments of FTS5 that are built aside: the index must be as if FTS5 had made all of it itself."""

import random
import sqlite3
import string

import pytest
from support.files import raw

from hermes_actor.engine.index import segments
from hermes_actor.engine.index.entries import Entry, change
from hermes_actor.engine.index.structure import (
    Level,
    Segment,
    Structure,
    UnknownFormat,
    with_newest,
)
from hermes_actor.sqlite import connect_alone
from hermes_actor.store.schema import statements
from hermes_actor.store.search.coverage import TABLES

RANDOM = random.Random(11)


def words(count):
    some = ["walrus", "deploy", "性能优化", "the", "错误"]
    return " ".join(f"{RANDOM.choice(some)}{RANDOM.randint(0, 99)}" for _ in range(count))


TEXTS = {
    "words": words(4000).encode(),
    "base64": "".join(RANDOM.choices(string.ascii_letters + "+/", k=90_000)).encode(),
    "chinese": "".join(chr(RANDOM.randint(0x4E00, 0x9FFF)) for _ in range(30_000)).encode(),
    "one letter": b"a" * 100_000,
    "blanks": b" " * 100_000,
    "zero inside": b"walrus one \x00 walrus two " + b"x" * 70_000,
    "no utf-8": b"walrus \xff\xfe\x80 " * 6_000,
    "empty": b"",
}
QUERIES = ("walrus", "walrus1", "deploy", "the", "性能优化", "错误", "aaa", "row", "two", "xxx")


def plain(path, table):
    conn = sqlite3.connect(path, isolation_level=None)
    conn.execute(statements(TABLES[table])[0])
    return conn


def put_aside(conn, table, *entries, size=20_000):
    """Build aside and copy in transactions of *size* bytes, as the writer does."""
    built = segments.build(table, entries)
    conn.execute("BEGIN")
    number, after = segments.unused_number(conn, table), 0
    while (after := segments.stage(conn, table, number, built, after, size)) is not None:
        conn.execute("COMMIT")
        conn.execute("BEGIN")
    assert segments.is_staged(conn, table, number, built)
    segments.place(conn, table, number, built)
    conn.execute("COMMIT")
    built.close()


def answers(conn, table):
    sql = f"SELECT rowid, rank FROM {table} WHERE {table} MATCH ? ORDER BY rank, rowid"
    return {query: conn.execute(sql, (f'"{query}"',)).fetchall() for query in QUERIES}


def check(conn, table):
    conn.execute(f"INSERT INTO {table}({table}) VALUES ('integrity-check')")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", TEXTS)
def test_answers_are_those_of_an_ordinary_index(tmp_path, table, kind):
    """Large rows are inserted, changed and deleted among small ones, beside another program."""
    ordinary, ours = (plain(tmp_path / name, table) for name in ("ordinary.db", "ours.db"))
    with raw(tmp_path / "ours.db") as foreign:
        large, other = TEXTS[kind], TEXTS["words"]
        steps = [
            (Entry(1, None, b"row one walrus1"), False),
            (Entry(2, None, large), True),
            (Entry(3, None, b"row three deploy"), False),
            (Entry(4, None, other), True),
            (Entry(2, large, other), True),
            (Entry(4, other, large), True),
            (Entry(5, None, large), True),
            (Entry(1, b"row one walrus1", b"row one again"), False),
            (Entry(5, large, None), True),
            (Entry(3, b"row three deploy", large), True),
            (Entry(3, large, b"small the"), True),
        ]
        for turn, (entry, aside) in enumerate(steps):
            change(ordinary, table, entry)
            if aside:
                put_aside(ours, table, entry)
            else:
                # In turns our own connection, whose FTS5 remembers things, and a foreign one.
                change(ours if turn % 2 else foreign, table, entry)
            assert answers(ours, table) == answers(ordinary, table)
            check(ours, table)
        assert answers(foreign, table) == answers(ordinary, table)
        for n in range(100, 140):
            for conn in (ordinary, foreign):
                change(conn, table, Entry(n, None, b"row the walrus %d" % n))
        change(foreign, table, Entry(2, other, None))
        change(ordinary, table, Entry(2, other, None))
        for conn in (ordinary, ours):
            conn.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')")
        assert answers(ours, table) == answers(ordinary, table)
        check(ours, table)


@pytest.mark.parametrize("table", TABLES)
def test_several_rows_in_one_segment(tmp_path, table):
    ordinary, ours = (plain(tmp_path / name, table) for name in ("ordinary.db", "ours.db"))
    first = [Entry(n, None, text) for n, text in enumerate(TEXTS.values(), 1)]
    second = [Entry(e.id, e.new, None if e.id % 2 else b"small walrus") for e in first]
    for entries in (first, second):
        for entry in entries:
            change(ordinary, table, entry)
        put_aside(ours, table, *reversed(entries))
        assert answers(ours, table) == answers(ordinary, table)
        check(ours, table)


def test_structure_that_was_remembered_is_read_again(tmp_path, monkeypatch):
    """The reason for one of the steps: without it FTS5 writes what it remembers over the rest."""
    monkeypatch.setattr(segments, "_forget_structure", lambda _conn, _table: None)
    segments.is_known_format.cache_clear()
    assert not segments.is_known_format()
    monkeypatch.undo()
    segments.is_known_format.cache_clear()
    assert segments.is_known_format()


def test_rolled_back_copy_leaves_no_trace(tmp_path):
    table = "messages_fts"
    conn = plain(tmp_path / "x.db", table)
    change(conn, table, Entry(1, None, b"walrus"))
    built = segments.build(table, [Entry(2, None, TEXTS["words"])])
    before = conn.execute(f"SELECT * FROM {table}_data").fetchall()
    conn.execute("BEGIN")
    number = segments.unused_number(conn, table)
    segments.stage(conn, table, number, built, 0, 1 << 30)
    segments.place(conn, table, number, built)
    conn.execute("ROLLBACK")
    assert conn.execute(f"SELECT * FROM {table}_data").fetchall() == before
    assert answers(conn, table)["walrus"] == [(1, pytest.approx(-1e-6))]
    change(conn, table, Entry(3, None, b"walrus"))
    check(conn, table)


def test_leftovers_are_removed_in_parts_and_nothing_else(tmp_path):
    table = "messages_fts_trigram"
    conn = plain(tmp_path / "x.db", table)
    put_aside(conn, table, Entry(1, None, TEXTS["words"]))
    built = segments.build(table, [Entry(2, None, TEXTS["base64"])])
    segments.stage(conn, table, segments.unused_number(conn, table), built, 0, 1 << 30)
    found = answers(conn, table)
    count = f"SELECT COUNT(*) FROM {table}_data"
    ((before,),) = conn.execute(count).fetchall()
    rounds = 0
    while segments.remove_leftovers(conn, table, 16):
        rounds += 1
    ((after,),) = conn.execute(count).fetchall()
    assert before - after == built.pages
    assert rounds == -(-built.pages // 16)
    assert answers(conn, table) == found
    check(conn, table)


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE t_config SET v = 5 WHERE k = 'version'",
        "UPDATE t_data SET block = x'00000000ff000001010100' WHERE id = 10",
        "UPDATE t_data SET block = x'00000000' WHERE id = 10",
        "UPDATE t_data SET block = x'0000000001020000' WHERE id = 10",
        "DELETE FROM t_data WHERE id = 10",
    ],
)
def test_other_formats_are_refused(harm):
    conn = connect_alone()
    conn.execute("CREATE VIRTUAL TABLE t USING fts5(content)")
    conn.execute("INSERT INTO t VALUES ('walrus')")
    conn.execute(harm)
    with pytest.raises(UnknownFormat):
        segments.unused_number(conn, "t")


SMALL, LARGE = Segment(1, 1, 3), Segment(2, 1, 900)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], [[], ["new"]]),
        ([(0, [SMALL])], [[], [SMALL, "new"]]),
        ([(0, [SMALL]), (0, [LARGE])], [[], [LARGE, SMALL, "new"]]),
        ([(0, [SMALL]), (0, [SMALL]), (0, [LARGE])], [[], [], [LARGE, SMALL, SMALL, "new"]]),
        ([(0, [SMALL]), (0, [LARGE]), (0, [LARGE])], [[], [LARGE, SMALL, "new"], [LARGE]]),
        # What is being merged, and what it is merged into, keep their places.
        ([(1, [LARGE, SMALL]), (0, [LARGE])], [[], [LARGE, SMALL, "new"], [LARGE]]),
        ([(0, [SMALL]), (1, [SMALL]), (0, [SMALL])], [[], [SMALL, SMALL, "new"], [SMALL]]),
    ],
)
def test_place_in_the_structure(before, after):
    """Always the newest, never among the small ones that are merged every few rows."""
    new = Segment(1999, 1, 500)
    structure = Structure(b"\0\0\0\0", 7, [Level(*level) for level in before])
    found = with_newest(structure, new)
    assert [level.segments for level in found.levels] == [
        [new if one == "new" else one for one in level] for level in after
    ]
    assert [level.merging for level in found.levels if level.merging] == [
        merging for merging, _ in before if merging
    ]


def test_small_segment_is_placed_as_fts5_does():
    new = Segment(1999, 1, 2)
    levels = [Level(1, [SMALL]), Level(0, [LARGE])]
    found = with_newest(Structure(b"\0\0\0\0", 7, levels), new)
    assert found.levels == [(1, [SMALL, new]), (0, [LARGE])]
