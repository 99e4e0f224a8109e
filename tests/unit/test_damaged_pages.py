"""G7 in the writer: damaged pages of a full-text index fail no change, whatever FTS5 tells when."""

import sqlite3

import pytest
from support.direct_writer import assert_index_is_true, batch, run
from support.files import FTS_TABLES, query
from support.index_damage import LEAVES, PAGES, damage, overwrite

from hermes_actor.engine.jobs import Request
from hermes_actor.errors import Damaged, HermesActorError
from hermes_protocol.operations import (
    MessageAppend,
    MessageRow,
    MessagesReplace,
    SessionCreate,
    SqlLease,
    SqlStatement,
)

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
ROUNDS = 24


def row(text):
    return MessageRow(role="user", timestamp=1.0, content=text)


def append(text):
    return MessageAppend(session_id="s", message=row(text))


def sql(text, *parameters):
    return SqlStatement(sql=text, parameters=list(parameters))


@pytest.fixture
def filled(open_writer, path):
    """A file whose indexes have several segments, so that merges are due."""
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    for n in range(7):
        run(writer, *(append(f"{WORDS[n]} {WORDS[(n + k) % 10]} w{n} {k}") for k in range(12)))
        writer.index.complete()
    writer.close()
    return path


def changes(kind, n):
    if kind == "delete":
        return [MessagesReplace(session_id="s", messages=[row(f"round {n}")])]
    if kind == "update":
        return [sql("UPDATE messages SET content = content || ' x' WHERE id % 24 = ?", n)]
    return [append(f"round {n} alpha")]


def expected(kind):
    """Texts, as the same changes leave them where nothing is damaged."""
    texts = [f"{WORDS[n]} {WORDS[(n + k) % 10]} w{n} {k}" for n in range(7) for k in range(12)]
    if kind == "delete":
        return [f"round {ROUNDS - 1}"]
    if kind == "update":
        return [f"{text} x" for text in texts]
    return texts + [f"round {n} alpha" for n in range(ROUNDS)]


def texts(path):
    return [text for (text,) in query(path, "SELECT content FROM messages ORDER BY id")]


@pytest.mark.parametrize("change", ["append", "delete", "update"])
@pytest.mark.parametrize("table", FTS_TABLES)
@pytest.mark.parametrize("kind", PAGES)
def test_change_beside_damaged_pages(filled, open_writer, kind, table, change):
    damage(filled, kind, table)
    writer = open_writer()
    for n in range(ROUNDS):
        run(writer, *changes(change, n))
        writer.index.run_slice(0.1)
    assert texts(filled) == expected(change)
    if kind in LEAVES and change != "append":
        assert writer.index.rebuilds == 1
    if writer.index.rebuilds:
        writer.index.complete()
        assert_index_is_true(filled)


@pytest.mark.parametrize("kind", LEAVES)
def test_batch_beside_damaged_pages(filled, open_writer, kind):
    """Each of a batch is executed, once, also beside one that fails for a reason of its own."""
    damage(filled, kind, *FTS_TABLES)
    writer, before = open_writer(), texts(filled)
    for n in range(ROUNDS):
        outcomes = batch(
            writer,
            append(f"before {n}"),
            sql("UPDATE messages SET content = content || '!' WHERE id % 24 = ?", n),
            sql("INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1)"),
            append(f"after {n}"),
        )
        assert [outcome.error is None for outcome in outcomes] == [True, True, False, True]
        numbers = [outcome.commit_no for outcome in outcomes if outcome.error is None]
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        writer.index.run_slice(0.1)
    assert [text.rstrip("!") for text in texts(filled)] == before + [
        f"{word} {n}" for n in range(ROUNDS) for word in ("before", "after")
    ]
    assert {text.count("!") for text in texts(filled)[: len(before)]} == {1}
    writer.index.complete()
    assert writer.index.rebuilds == 1
    assert_index_is_true(filled)


@pytest.mark.parametrize("kind", PAGES)
def test_lease_beside_damaged_pages(filled, open_writer, kind):
    """What takes the whole transaction away takes it once: the next try succeeds."""
    damage(filled, kind, *FTS_TABLES)
    writer, told = open_writer(), []
    for _ in range(2):
        try:
            writer.leases.begin(float("inf"))
            writer.leases.run(sql("UPDATE messages SET content = 'leased' WHERE id % 2 = 0"))
            writer.leases.run(sql("DELETE FROM messages WHERE id % 2 = 1"))
        except HermesActorError as error:
            told.append(error)
            assert isinstance(error, Damaged)
            writer.leases.end(None)
            continue
        assert writer.leases.end(Request(SqlLease(lease=0))).error is None
        break
    else:
        pytest.fail(f"the lease never succeeds: {told}")
    assert texts(filled) == ["leased"] * 42
    if writer.index.rebuilds or told:
        writer.index.complete()
        assert_index_is_true(filled)


def test_statement_of_a_lease_that_fails_by_itself_leaves_the_index_alone(filled, open_writer):
    writer = open_writer()
    writer.leases.begin(float("inf"))
    with pytest.raises(sqlite3.IntegrityError):
        writer.leases.run(sql("INSERT INTO messages (id, session_id, role, timestamp)"
                                " VALUES (1, 's', 'user', 1)"))  # fmt: skip
    writer.leases.run(sql("DELETE FROM messages WHERE id > 1"))
    assert writer.leases.end(Request(SqlLease(lease=0))).error is None
    assert writer.index.run_slice(0.1) is False
    assert writer.index.rebuilds == 0
    assert_index_is_true(filled)


def test_index_is_rebuilt_once_however_many_have_found_it_damaged(filled, open_writer, path):
    damage(filled, "leaves of zeros", *FTS_TABLES)
    writer = open_writer()
    ((schema,),) = query(path, "PRAGMA schema_version")
    for _ in range(3):
        writer.index.rebuild_if_damaged(schema)
    assert writer.index.rebuilds == 1
    writer.index.complete()
    assert_index_is_true(path)
    writer.index.rebuild_if_damaged(None)
    assert writer.index.rebuilds == 1


@pytest.mark.parametrize("damaged", [False, True])
def test_asking_about_damage_costs_the_writer_the_same_for_every_index(
    filled, open_writer, path, damaged
):
    """It reads no page of an index: changes of others would wait for as long as that takes."""
    writer, said = open_writer(), []
    run(writer, append("later"))
    writer.connection.conn.set_trace_callback(said.append)
    schema = query(path, "PRAGMA schema_version")[0][0] if damaged else None
    writer.index.rebuild_if_damaged(schema)
    assert writer.index.rebuilds == damaged
    costly = ("DROP TABLE messages_fts", "DELETE FROM messages_fts", "SELECT COUNT(*)")
    assert [text for text in said if text.startswith(costly) or "integrity" in text] == []


@pytest.mark.parametrize("kind", ["leaves of zeros", "missing texts"])
def test_rebuild_gives_its_pages_back_in_slices(filled, open_writer, path, kind):
    damage(filled, kind, *FTS_TABLES)
    writer = open_writer()
    writer.index.rebuild()
    leftover = "SELECT COUNT(*) FROM sqlite_master WHERE name GLOB 'hermes_actor_leftover_*'"
    assert query(path, leftover) == [(10,)]
    assert query(path, "SELECT COUNT(*) FROM messages_fts") == [(0,)]
    writer.index.rebuild()
    while writer.idle_slice() == 0.0:
        pass
    assert query(path, leftover) == [(0,)]
    assert_index_is_true(path)
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_leftover_that_cannot_be_read_is_left_behind(filled, open_writer, path):
    """Pages below a damaged one are given up; they may lead anywhere."""
    writer = open_writer()
    writer.index.rebuild()
    writer.close()
    root = "SELECT rootpage FROM sqlite_master WHERE name = 'hermes_actor_leftover_1'"
    overwrite(path, query(path, root)[0][0])
    writer = open_writer()
    while writer.idle_slice() == 0.0:
        pass
    run(writer, append("later"))
    writer.index.complete()
    assert_index_is_true(path)


def test_damaged_messages_do_not_make_the_index_be_rebuilt_for_ever(filled, open_writer, path):
    writer = open_writer()
    run(writer, *(append("walrus " * 100) for _ in range(20)))
    writer.close()
    leaves = "SELECT pageno FROM dbstat WHERE name = 'messages' AND pagetype = 'leaf' ORDER BY path"
    # Neither the first nor the last, where the lowest and the newest id are.
    overwrite(path, query(path, leaves)[2][0])
    writer = open_writer()
    writer.index.rebuild()
    for _ in range(5):
        with pytest.raises(Damaged):
            writer.index.complete()
    assert writer.index.rebuilds == 1
