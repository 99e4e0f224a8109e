"""Many messages are indexed aside: the writer goes on meanwhile, and the indexes are the same."""

import logging
import random
import threading
from itertools import pairwise

import pytest
from support.direct_writer import (
    append,
    assert_index_is_true,
    batch,
    index_everything,
    indexed,
    run,
    sql,
)
from support.files import FTS_TABLES, query, raw

from hermes_actor import limits
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.index import bulk, segments
from hermes_actor.engine.writer import Writer
from hermes_actor.paths import resolve_paths
from hermes_protocol.operations import MessagesClear, SessionCreate

WORDS = ("walrus", "salt", "pepper", "北京烤鸭", "harbour", "lantern", "w\u00f6rter", "x1", "the")


class Threads:
    """Instead of threads: what is built aside waits for the test."""

    def __init__(self):
        self.waiting = []

    def start(self, work):
        self.waiting.append(work)

    def finish(self):
        while self.waiting:
            self.waiting.pop(0)()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(limits, "BULK_ROWS", 40)


@pytest.fixture
def open_writer(path):
    opened = []

    def open_(**env):
        opened.append(Writer(resolve_paths(path), Environment(**env)))
        return opened[-1]

    yield open_
    for writer in opened:
        writer.connection.conn.close()


@pytest.fixture
def threads():
    return Threads()


@pytest.fixture
def writer(open_writer, threads):
    """A writer whose threads work only when the test lets them."""
    writer = open_writer(start=threads.start)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    return writer


def messages(count, seed=1):
    chance = random.Random(seed)
    return [
        append(f"n{n} " + " ".join(chance.choices(WORDS, k=chance.randrange(60))))
        for n in range(count)
    ]


def bulk_slices(writer, threads):
    """Until slices are to go on."""
    while (pause := writer.index.run_bulk_slice()) is not None:
        if pause:
            assert threads.waiting
            threads.finish()


def idle(writer, threads):
    for _ in range(10_000):
        pause = writer.idle_slice()
        if pause is None or pause >= 1.0:
            return
        threads.finish()
    pytest.fail("maintenance does not come to an end")


def added_by_fts5(writer):
    """Ids that FTS5 itself adds on the connection of the writer, while the test goes on."""
    seen = []

    def trace(statement):
        if statement.startswith("-- REPLACE") and "_docsize" in statement:
            seen.append(statement)

    writer.connection.conn.set_trace_callback(trace)
    return seen


def ranked(path, table):
    ask = f"SELECT rowid, rank FROM {table} WHERE {table} MATCH ? ORDER BY rank, rowid"
    return [query(path, ask, f'"{word}"') for word in (*WORDS, "walrus salt", "n12")]


def watermark(writer):
    (row,) = query(writer.paths.db, "SELECT value FROM hermes_actor_meta WHERE key = 'watermark'")
    assert row[0] == writer.index.watermark
    return row[0]


def test_many_messages_are_not_indexed_by_the_writer(writer, threads, path):
    seen = added_by_fts5(writer)
    run(writer, *messages(130))
    bulk_slices(writer, threads)
    assert watermark(writer) == 120
    assert seen == []
    assert [indexed(path, table) for table in FTS_TABLES] == [[*range(1, 121)]] * 2
    index_everything(writer)
    assert len(seen) == 2 * 10
    assert_index_is_true(path)


def test_few_messages_are_left_to_slices(writer, threads):
    run(writer, *messages(39))
    assert writer.index.run_bulk_slice() is None
    assert threads.waiting == []


def test_answers_and_ranks_are_those_of_ordinary_slices(writer, threads, path, tmp_path):
    other_path = tmp_path / "other" / "state.db"
    other_path.parent.mkdir()
    other = Writer(resolve_paths(other_path))
    run(other, SessionCreate(id="s", source="cli", started_at=1.0))
    # In turns, so that each way goes on from what the other has left, with many merges.
    for turn in range(12):
        some = messages(190, turn)
        run(writer, *some)
        run(other, *some)
        if turn % 3:
            bulk_slices(writer, threads)
        index_everything(writer)
        index_everything(other)
        changes = [
            sql(f"DELETE FROM messages WHERE id % 11 = {turn}"),
            sql(f"UPDATE messages SET content = 'walrus {turn}' WHERE id % 13 = {turn}"),
        ]
        run(writer, *changes)
        run(other, *changes)
        index_everything(writer)
        index_everything(other)
        for table in FTS_TABLES:
            assert ranked(path, table) == ranked(other_path, table)
    other.close()
    assert_index_is_true(path)


def test_writer_goes_on_while_threads_work(writer, threads, path):
    run(writer, *messages(100))
    assert writer.index.run_bulk_slice() == limits.BULK_LOOK_SECONDS
    assert len(threads.waiting) == limits.BULK_CHUNKS
    run(writer, append("meanwhile"))
    assert not writer.connection.conn.in_transaction
    threads.finish()
    bulk_slices(writer, threads)
    assert watermark(writer) == 80
    idle(writer, threads)
    assert_index_is_true(path)


def test_newest_may_be_left(writer, threads):
    run(writer, *messages(100))
    assert writer.index.run_bulk_slice(70) is None
    assert writer.index.run_bulk_slice(60) == limits.BULK_LOOK_SECONDS
    assert len(threads.waiting) == 1


def foreign(statement):
    def work(writer):
        with raw(writer.paths.db) as conn:
            conn.execute(statement)

    return work


MEANWHILE = {
    "changed": lambda writer: run(writer, sql("UPDATE messages SET content = 'x' WHERE id = 7")),
    "became large": lambda writer: run(
        writer, sql("UPDATE messages SET content = printf('%.*c', 70000, 'y') WHERE id = 7")
    ),
    "deleted": lambda writer: run(writer, sql("DELETE FROM messages WHERE id IN (3, 40)")),
    "all deleted": lambda writer: run(writer, MessagesClear(session_id="s")),
    "id moved": lambda writer: run(writer, sql("UPDATE messages SET id = 1000 WHERE id = 9")),
    "a slice": lambda writer: writer.index.run_slice(0.0),
    "rebuilt": lambda writer: writer.index.rebuild(),
    "changed by another program": foreign("UPDATE messages SET content = 'x' WHERE id = 7"),
    "indexed by another program": foreign(
        "INSERT INTO messages_fts(rowid, content) SELECT id, COALESCE(content, '') || '  '"
        " FROM messages WHERE id = 60"
    ),
    "deleted by another program": foreign("DELETE FROM messages WHERE id = 5"),
    "merged by another program": foreign(
        "INSERT INTO messages_fts(messages_fts) VALUES ('optimize')"
    ),
    "another shape": foreign("DROP TRIGGER messages_fts_insert"),
    "another schema": foreign("CREATE TABLE other (x)"),
}


@pytest.mark.parametrize("event", MEANWHILE)
def test_what_happens_while_threads_work(writer, threads, path, event):
    """The index is that of the messages as they are, whatever the thread was given."""
    run(writer, *messages(45, 3))
    index_everything(writer)
    run(writer, *messages(90))
    assert writer.index.run_bulk_slice()
    before = writer.index.watermark
    MEANWHILE[event](writer)
    threads.finish()
    assert before == 45
    idle(writer, threads)
    # Nothing of this is damage.
    assert writer.index.rebuilds == (event in ("rebuilt", "another shape"))
    run(writer, append("last"))
    idle(writer, threads)
    assert_index_is_true(path)


@pytest.mark.parametrize("event", ["changed", "deleted"])
def test_chunk_of_other_texts_is_thrown_away(writer, threads, path, event):
    run(writer, *messages(90))
    assert writer.index.run_bulk_slice()
    MEANWHILE[event](writer)
    threads.finish()
    assert writer.index.run_bulk_slice() is None
    assert [indexed(path, table) for table in FTS_TABLES] == [[], []]
    # Not again and again: slices go on with these.
    assert writer.index.run_bulk_slice() is None
    assert threads.waiting == []


def test_large_text_is_no_part_of_a_chunk(writer, threads, path):
    large = "z" * (limits.INDEX_ASIDE_BYTES + 1)
    run(writer, *messages(35), append(large), *messages(80, 2))
    bulk_slices(writer, threads)
    assert watermark(writer) == 35
    writer.index.run_slice(0.0)
    bulk_slices(writer, threads)
    assert watermark(writer) > 100
    idle(writer, threads)
    assert_index_is_true(path)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("point", ["bulk.build", "bulk.place", "bulk.after"])
@pytest.mark.parametrize("count", [1, 2])
def test_crash_at_any_step(open_writer, path, point, count):
    """Either all of a chunk is there or nothing; the next owner goes on."""
    left = [count]

    def failpoint(name):
        if name == point:
            left[0] -= 1
            if not left[0]:
                raise Crash

    writer = open_writer(start=lambda work: work(), failpoint=failpoint)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), *messages(130))
    with pytest.raises(Crash):
        bulk_slices(writer, Threads())
    writer.connection.conn.close()
    (row,) = query(path, "SELECT value FROM hermes_actor_meta WHERE key = 'watermark'")
    assert [indexed(path, table) for table in FTS_TABLES] == [[*range(1, row[0] + 1)]] * 2
    assert row[0] == 40 * (
        count if point == "bulk.after" else (count - 1) * (point != "bulk.build")
    )
    later = open_writer(start=lambda work: work())
    later.recover()
    idle(later, Threads())
    assert_index_is_true(path)


def test_unknown_format_is_left_to_slices(writer, threads, path, monkeypatch, caplog):
    monkeypatch.setattr(bulk, "is_known_format", lambda: False)
    run(writer, *messages(90))
    with caplog.at_level(logging.WARNING):
        idle(writer, threads)
    assert "in a form that is not known" in caplog.text
    assert writer.index.bulk.refusal
    run(writer, *messages(90))
    assert writer.index.run_bulk_slice() is None
    idle(writer, threads)
    assert_index_is_true(path)


def test_structure_of_another_kind_is_left_to_slices(writer, threads, path, monkeypatch):
    def unused_number(_conn, _table):
        raise segments.UnknownFormat("no number is left")

    run(writer, *messages(90))
    writer.index.run_bulk_slice()
    threads.finish()
    monkeypatch.setattr(segments, "unused_number", unused_number)
    assert writer.index.run_bulk_slice() is None
    assert writer.index.bulk.refusal == "no number is left"
    idle(writer, threads)
    assert_index_is_true(path)


def test_failure_of_a_thread_costs_a_chunk(writer, threads, path, monkeypatch, caplog):
    def fail(_table, _rows):
        raise MemoryError

    run(writer, *messages(130))
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "build_rows", fail)
        writer.index.run_bulk_slice()
        threads.finish()
        assert writer.index.run_bulk_slice() is None
    assert "MemoryError" in caplog.text
    index_everything(writer)
    run(writer, *messages(45))
    bulk_slices(writer, threads)
    assert watermark(writer) == 170
    idle(writer, threads)
    assert_index_is_true(path)


def test_trial_notices_a_total_that_is_not_added(monkeypatch):
    """Ranks depend on totals alone, so only the comparison of ranks can show this."""
    segments.is_known_format.cache_clear()
    monkeypatch.setattr(segments, "_add_totals", lambda _conn, _table, _built: None)
    assert not segments.is_known_format()
    monkeypatch.undo()
    segments.is_known_format.cache_clear()
    assert segments.is_known_format()


def test_file_that_is_not_in_utf8(open_writer, threads, path):
    with raw(path) as conn:
        conn.execute("PRAGMA encoding = 'UTF-16le'")
        conn.execute("CREATE TABLE other (x)")
    writer = open_writer(start=threads.start)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), *messages(90))
    assert writer.index.run_bulk_slice() is None
    idle(writer, threads)
    assert_index_is_true(path)


def test_chunk_is_built_by_one_statement_for_each_table(writer, threads, monkeypatch):
    """Between two statements a thread takes the interpreter away from the writer (G13)."""
    statements, connect = [], segments.connect_alone

    def connect_and_trace(*arguments):
        conn = connect(*arguments)
        conn.set_trace_callback(statements.append)
        return conn

    segments.is_known_format()
    run(writer, *messages(40))
    assert writer.index.run_bulk_slice()
    monkeypatch.setattr(segments, "connect_alone", connect_and_trace)
    threads.finish()
    # Those that begin with a comment are of FTS5 itself, and stay inside of SQLite.
    rows = [text for text in statements if text.startswith("INSERT INTO t(rowid")]
    assert len(rows) == len(FTS_TABLES)


def test_writer_does_not_wait_for_a_thread_to_begin(monkeypatch):
    """On a busy machine that takes as long as many changes do."""
    waits, begun, wait = [], threading.Event(), threading.Event.wait

    def noted(event, timeout=None):
        waits.append(threading.get_ident())
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", noted)
    Environment().start(begun.set)
    assert waits == []
    assert begun.wait(60.0)


def test_one_table_is_merged_at_a_time(open_writer, monkeypatch):
    commits = []
    writer = open_writer(start=lambda work: work())
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    monkeypatch.setattr(
        "hermes_actor.engine.index.maintenance.is_crowded", lambda conn, table: True
    )
    batch(writer, *messages(40))
    while writer.index.run_bulk_slice() is not None:
        commits.append(writer.connection.commits)
        if len(commits) == 12:
            break
    assert max(b - a for a, b in pairwise(commits)) == 1


def test_levels_stay_bounded(open_writer, path, monkeypatch):
    """Many small copies and no end of FTS5's own: no level grows beyond what it would merge."""
    monkeypatch.setattr(limits, "BULK_ROWS", 32)
    writer = open_writer(start=lambda work: work())
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    for turn in range(40):
        batch(writer, *messages(64, turn))
        while writer.index.run_bulk_slice() is not None:
            pass
        for table in FTS_TABLES:
            levels = segments.read_structure(writer.connection.conn, table).levels
            assert max(len(level.segments) for level in levels) <= 17
            assert len(levels) < 8
    assert_index_is_true(path)


def test_real_threads(open_writer, path):
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), *messages(130))
    while (pause := writer.index.run_bulk_slice()) is not None:
        if pause:
            writer.index.wait_for_bulk(60.0)
    assert watermark(writer) == 120
    index_everything(writer)
    assert_index_is_true(path)
