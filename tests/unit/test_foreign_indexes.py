"""Rule 5 of the indexer: what others do to the full-text tables is noticed and made up for."""

import pytest
from support.direct_writer import assert_index_is_true, run
from support.files import FTS_TABLES, TRIGGERS, query, raw

from hermes_actor import limits
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.jobs import Request
from hermes_actor.store.schema import FTS_SQL, FTS_TRIGRAM_SQL
from hermes_protocol.operations import (
    MessageAppend,
    MessageRow,
    RowsCopy,
    SessionCreate,
    SqlLease,
    SqlStatement,
)

COUNT = 200


@pytest.fixture
def writer(open_writer):
    """Of a file with messages that are all indexed, and known to be."""
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    run(writer, *(append(f"walrus {n}") for n in range(COUNT)))
    idle(writer)
    return writer


def append(text):
    return MessageAppend(
        session_id="s", message=MessageRow(role="user", timestamp=1.0, content=text)
    )


def sql(text):
    return SqlStatement(sql=text)


def idle(writer):
    for _ in range(10_000):
        if writer.idle_slice() != 0.0:
            return
    pytest.fail("idle work does not come to an end")


def recreate(foreign):
    """What an old Hermes does: drop what is damaged, create it, and fill nothing in."""
    for trigger in TRIGGERS:
        foreign.execute(f"DROP TRIGGER {trigger}")
    for table in FTS_TABLES:
        foreign.execute(f"DROP TABLE {table}")
    foreign.executescript(FTS_SQL + FTS_TRIGRAM_SQL)


def rebuild(foreign):
    """From the texts of a table that has only the newest of them."""
    foreign.execute("DELETE FROM messages_fts WHERE rowid <= 150")
    foreign.execute("INSERT INTO messages_fts(messages_fts) VALUES ('rebuild')")


def without(condition):
    def delete(foreign):
        for table in FTS_TABLES:
            foreign.execute(f"DELETE FROM {table} WHERE {condition}")

    return delete


SHOWS_AT_ONCE = {
    "recreated": recreate,
    "words emptied": lambda foreign: foreign.execute("DELETE FROM messages_fts"),
    "trigrams emptied": lambda foreign: foreign.execute("DELETE FROM messages_fts_trigram"),
    "rebuilt": rebuild,
    "oldest gone": without("rowid < 20"),
    "newest gone": without("rowid > 195"),
    "middle gone": without("rowid BETWEEN 90 AND 110"),
}

SHOWS_LATER = {
    "a few gone": without("rowid BETWEEN 92 AND 94"),
    "every seventh gone from the words": lambda foreign: foreign.execute(
        "DELETE FROM messages_fts WHERE rowid % 7 = 4 AND rowid NOT IN (1, 200)"
    ),
}


@pytest.mark.parametrize("kind", SHOWS_AT_ONCE)
@pytest.mark.parametrize("restarted", [False, True], ids=["same owner", "next owner"])
def test_index_that_others_have_emptied_counts_as_empty(writer, open_writer, path, kind, restarted):
    if restarted:
        writer.close()
    with raw(path) as foreign:
        SHOWS_AT_ONCE[kind](foreign)
    if restarted:
        writer = open_writer()
    run(writer, append("after"))
    assert writer.index.watermark == 0
    while writer.index.run_slice(1.0):
        pass
    assert_index_is_true(path)


@pytest.mark.parametrize("kind", SHOWS_LATER)
@pytest.mark.parametrize("guest", [False, True])
def test_smaller_holes_are_filled_in_idle_time(writer, path, kind, guest):
    if guest:
        run(writer, sql("UPDATE sessions SET title = 't'"))
    with raw(path) as foreign:
        SHOWS_LATER[kind](foreign)
    idle(writer)
    assert_index_is_true(path)
    assert writer.index.rebuilds == 0


@pytest.mark.parametrize("kind", SHOWS_LATER)
def test_smaller_holes_are_filled_under_a_changed_schema(writer, open_writer, path, kind):
    """Also by the next owner, which has not seen the other program commit."""
    writer.close()
    with raw(path) as foreign:
        foreign.execute("CREATE TABLE theirs (id)")
        SHOWS_LATER[kind](foreign)
    idle(open_writer())
    assert_index_is_true(path)


def test_rows_are_looked_at_again_only_now_and_then(open_writer, path):
    now = [0.0]
    writer = open_writer(Environment(monotonic=lambda: now[0]))
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    run(writer, *(append(f"walrus {n}") for n in range(COUNT)))
    idle(writer)
    with raw(path) as foreign:
        SHOWS_LATER["a few gone"](foreign)
        idle(writer)
        assert_index_is_true(path)
        SHOWS_LATER["a few gone"](foreign)
        idle(writer)
        assert query(path, "SELECT COUNT(*) FROM messages_fts") == [(COUNT - 3,)]
        now[0] += limits.HOLES_AGAIN_SECONDS
        idle(writer)
    assert_index_is_true(path)


def test_guest_who_empties_an_index(writer, path):
    run(writer, sql("DELETE FROM messages_fts"))
    run(writer, append("after"))
    while writer.index.run_slice(1.0):
        pass
    assert_index_is_true(path)


def test_ids_far_apart_are_looked_at_in_no_time(writer, path):
    """Some programs number by the clock."""
    row = "INSERT INTO messages (id, session_id, role, timestamp) VALUES (?, 's', 'user', 1)"
    with raw(path) as foreign:
        foreign.execute(row, (2**62,))
        SHOWS_LATER["a few gone"](foreign)
    idle(writer)
    assert_index_is_true(path)


def test_large_hole_is_filled_in_slices(writer, path, monkeypatch):
    monkeypatch.setattr(limits, "INDEX_SLICE_BUSY_SECONDS", 0.0)
    looked_at = ", ".join(str(1 + (COUNT - 1) * n // 16) for n in range(17))
    with raw(path) as foreign:
        without(f"rowid NOT IN ({looked_at})")(foreign)
    steps = 0
    while writer.index.run_slice(1.0) or writer.index.fill_gaps():
        steps += 1
    assert steps > COUNT // limits.INDEX_STEP_ROWS
    assert_index_is_true(path)


# Ids.


@pytest.mark.parametrize("lease", [False, True], ids=["batch", "lease"])
def test_ids_that_are_given_again_inside_one_transaction(writer, path, lease):
    guests = [sql("DELETE FROM messages"), sql("DELETE FROM sqlite_sequence")]
    if lease:
        writer.leases.begin(float("inf"))
        for statement in guests:
            writer.leases.run(statement)
        assert writer.leases.end(Request(SqlLease(lease=0))).error is None
        guests = []
    run(writer, *guests, *(append(f"again {n}") for n in range(COUNT + 2)))
    idle(writer)
    assert_index_is_true(path)


def test_ids_that_a_guest_lowers_in_part(writer, path):
    run(
        writer,
        sql("DELETE FROM messages WHERE id > 100"),
        sql("UPDATE sqlite_sequence SET seq = 100 WHERE name = 'messages'"),
        *(append(f"again {n}") for n in range(COUNT)),
    )
    idle(writer)
    assert_index_is_true(path)


def test_table_that_gives_ids_again_keeps_its_triggers(open_writer, path):
    open_writer().close()
    with raw(path) as foreign:
        ((table,),) = foreign.execute("SELECT sql FROM sqlite_master WHERE name = 'messages'")
        foreign.execute("ALTER TABLE messages RENAME TO old")
        foreign.execute(table.replace("AUTOINCREMENT", ""))
        foreign.execute("DROP TABLE old")
        foreign.executescript(FTS_SQL + FTS_TRIGRAM_SQL)
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    run(writer, append("1"), append("2"), append("3"))
    idle(writer)
    run(writer, sql("DELETE FROM messages WHERE id >= 2"), append("again"), append("again"))
    idle(writer)
    assert query(path, "SELECT MAX(id) FROM messages") == [(3,)]
    assert_index_is_true(path)


@pytest.mark.parametrize("restarted", [False, True])
def test_negative_ids_are_indexed_after_a_rebuild(writer, open_writer, path, restarted):
    names = ["id", "session_id", "role", "content", "timestamp"]
    rows = [[-5, "s", "user", "walrus", 1.0], [0, "s", "user", "walrus", 1.0]]
    run(writer, RowsCopy(table="messages", columns=names, rows=rows))
    writer.index.rebuild()
    if restarted:
        writer.close()
        writer = open_writer()
    while writer.index.run_slice(1.0):
        pass
    assert_index_is_true(path)
