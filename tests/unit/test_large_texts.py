"""Large texts are indexed aside: the writer splits the work, and a search misses nothing."""

import errno
import os
import random
import re
import sqlite3
import string
import threading
from collections import Counter
from itertools import pairwise

import pytest
from support.files import FTS_TABLES, query, raw

from hermes_actor import limits
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.index import large_texts, work_aside
from hermes_actor.engine.index.build_folder import BuildFailed, BuildHere
from hermes_actor.engine.index.build_process import BuildProcess
from hermes_actor.engine.index.segments import is_known_format
from hermes_actor.engine.index.structure import read_structure
from hermes_actor.engine.jobs import Request
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import IndexBehind, StorageError
from hermes_actor.paths import resolve_paths
from hermes_actor.session_db import SessionDB
from hermes_actor.store.schema import INDEXED_TEXT
from hermes_protocol.operations import (
    MessageAppend,
    MessageRow,
    MessagesClear,
    MessagesReplace,
    SessionCreate,
    SqlLease,
    SqlStatement,
)

RANDOM = random.Random(4)
LARGE = 2 * limits.INDEX_ASIDE_BYTES
"""Texts of this size are large, and the pages of their trigrams take more than one step."""


def text(word, size=LARGE):
    """Random letters, so that nearly every trigram is new, and one word."""
    return f"{word} " + "".join(RANDOM.choices(string.ascii_letters, k=size)) + f" {word}end"


class Threads:
    """Instead of threads: what is built aside waits for the test."""

    def __init__(self):
        self.waiting = []

    def start(self, work):
        self.waiting.append(work)

    def finish(self):
        while self.waiting:
            self.waiting.pop(0)()


def at_once(work):
    work()


@pytest.fixture
def small_steps(monkeypatch):
    monkeypatch.setattr(limits, "ASIDE_STEP_BYTES", 64 * 1024)


@pytest.fixture
def open_writer(path, small_steps):
    opened = []

    def open_(**env):
        opened.append(Writer(resolve_paths(path), Environment(**{"start": at_once, **env})))
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


def row(content):
    return MessageRow(role="user", timestamp=1.0, content=content)


def append(content):
    return MessageAppend(session_id="s", message=row(content))


def sql(statement, *parameters):
    return SqlStatement(sql=statement, parameters=list(parameters))


def run(writer, *operations):
    for operation in operations:
        (outcome,) = writer.run_batch([Request(operation)])
        assert outcome.error is None
    return outcome.result


def idle(writer, rounds=10_000):
    """Idle time until nothing is left to do."""
    for _ in range(rounds):
        pause = writer.idle_slice()
        if pause is None or pause >= 1.0:
            return
    pytest.fail("upkeep does not come to an end")


def steps(writer):
    """Until large texts wait for a thread, or for nothing."""
    while writer.index.run_slice(0.1):
        pass
    while writer.index.run_large_text_slice(idle=True) == 0.0:
        pass


def assert_index_is_true(path):
    wanted = query(path, f"SELECT id, {INDEXED_TEXT.format('')} FROM messages ORDER BY id")
    assert query(path, "SELECT * FROM hermes_actor_stale") == []
    for table in FTS_TABLES:
        assert query(path, f"SELECT rowid, content FROM {table} ORDER BY rowid") == wanted
        assert query(path, f"SELECT id FROM {table}_docsize ORDER BY id") == [
            (n,) for n, _ in wanted
        ]
        query(path, f"INSERT INTO {table}({table}) VALUES ('integrity-check')")
        # Of copies that did not come to their end nothing is left.
        with raw(path) as conn:
            used = read_structure(conn, table).numbers
        found = query(path, f"SELECT DISTINCT id >> 37 FROM {table}_data WHERE id > 10")
        assert {number for (number,) in found} == used


def found(path, word):
    sql = "SELECT rowid FROM messages_fts WHERE messages_fts MATCH ? ORDER BY rowid"
    return [n for (n,) in query(path, sql, word)]


def indexed_in_place(writer):
    """How many rows FTS5 itself has added and removed, on the connection of the writer."""
    seen = Counter()

    def trace(statement):
        # What FTS5 runs for each row; what we run for a copy has other words.
        inner = re.match(r"-- (REPLACE|DELETE) .*'messages_fts(_trigram)?_docsize'", statement)
        if inner:
            seen["added" if inner.group(1) == "REPLACE" else "removed"] += 1

    writer.connection.conn.set_trace_callback(trace)
    return seen


@pytest.mark.parametrize("size", [limits.INDEX_ASIDE_BYTES + 1, LARGE])
def test_large_text_is_never_indexed_in_a_transaction_of_the_writer(writer, threads, path, size):
    seen = indexed_in_place(writer)
    run(writer, append("small 1"), append(text("walrus", size)), append("small 3"))
    steps(writer)
    threads.finish()
    idle(writer)
    assert seen == {"added": 4}
    assert found(path, "walrusend") == [2]
    seen.clear()
    run(writer, sql("UPDATE messages SET content = content || ' more' WHERE id IN (1, 2)"))
    steps(writer)
    threads.finish()
    idle(writer)
    assert seen == {"removed": 2, "added": 2}
    assert found(path, "more") == [1, 2]
    assert_index_is_true(path)
    seen.clear()
    run(writer, MessagesClear(session_id="s"))
    steps(writer)
    threads.finish()
    idle(writer)
    assert seen == {"removed": 4}
    assert_index_is_true(path)


def test_others_are_indexed_and_write_while_a_large_text_is_built(writer, threads, path):
    run(writer, append(text("walrus")), append("second"))
    steps(writer)
    assert threads.waiting
    run(writer, append("third"))
    steps(writer)
    assert found(path, "second") == [2]
    assert found(path, "third") == [3]
    assert found(path, "walrus") == []
    assert writer.index.large_texts.state == "building"
    threads.finish()
    assert writer.index.large_texts.state == "copying"
    idle(writer)
    assert writer.index.large_texts.state == "none"
    assert_index_is_true(path)


def test_copy_is_split(writer, threads, path):
    """Each transaction copies about one step, and only the last one tells the index."""
    run(writer, append(text("walrus", 8 * LARGE)))
    steps(writer)
    threads.finish()
    pages = (
        "SELECT COUNT(*), TOTAL(LENGTH(block)) FROM messages_fts_trigram_data WHERE id >> 37 > 0"
    )
    sizes = [0.0]
    while writer.index.run_large_text_slice(idle=True) is not None:
        ((_, size),) = query(path, pages)
        if size > sizes[-1]:
            sizes.append(size)
            assert (found(path, "walrusend") == [1]) == (size == query(path, pages)[0][1])
    grown = [b - a for a, b in pairwise(sizes)]
    assert len(grown) > 10
    assert max(grown) <= limits.ASIDE_STEP_BYTES + 8192
    assert_index_is_true(path)


class Crash(Exception):
    pass


@pytest.mark.parametrize("change", ["insert", "update", "delete"])
@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("aside.build", 1), ("aside.place", 1), ("aside.place", 2), ("index.slice", 1),
        *(("aside.stage", n) for n in range(1, 6)), *(("aside.after", n) for n in range(1, 6)),
    ],
)  # fmt: skip
def test_crash_at_any_step(open_writer, path, point, count, change):
    """The next owner finds the notes, removes what was left, and begins again."""
    left = [count]

    def failpoint(name):
        if name == point and armed:
            left[0] -= 1
            if not left[0]:
                raise Crash

    armed = False
    writer = open_writer(failpoint=failpoint)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("small"))
    armed = change == "insert"
    run(writer, append(text("walrus")))
    if change != "insert":
        idle(writer)
        armed = True
    if change == "update":
        run(writer, sql("UPDATE messages SET content = ? WHERE id = 2", text("seal")))
    elif change == "delete":
        run(writer, MessagesReplace(session_id="s", messages=[row(text("other"))]))
    with pytest.raises(Crash):
        idle(writer)
    writer.connection.conn.close()
    writer = open_writer()
    run(writer, append("later"))
    idle(writer)
    assert_index_is_true(path)


def change_text(writer, _path):
    run(writer, sql("UPDATE messages SET content = ? WHERE id = 1", text("seal")))


def make_it_small(writer, _path):
    run(writer, sql("UPDATE messages SET content = 'seal' WHERE id = 1"))


def delete(writer, _path):
    run(writer, MessagesClear(session_id="s"))


def change_from_outside(_writer, path):
    with raw(path) as foreign:
        foreign.execute("UPDATE messages SET content = 'seal' WHERE id = 1")


def delete_from_outside(_writer, path):
    with raw(path) as foreign:
        foreign.execute("DELETE FROM messages WHERE id = 1")


def insert_from_outside(_writer, path):
    with raw(path) as foreign:
        for n in range(40):
            foreign.execute(
                "INSERT INTO messages (session_id, role, content, timestamp)"
                " VALUES ('s', 'u', ?, 1)",
                (f"from outside {n}",),
            )


def command_from_outside(command):
    def run(_writer, path):
        with raw(path) as foreign:
            for table in FTS_TABLES:
                foreign.execute(f"INSERT INTO {table}({table}) VALUES ('{command}')")

    run.__name__ = command
    return run


def rebuild(writer, _path):
    writer.index.rebuild()


@pytest.mark.parametrize("when", ["building", "copying", "one table done"])
@pytest.mark.parametrize(
    "meanwhile",
    [
        change_text, make_it_small, delete, change_from_outside, delete_from_outside,
        insert_from_outside, command_from_outside("rebuild"), command_from_outside("optimize"),
        rebuild,
    ],
)  # fmt: skip
def test_what_happens_meanwhile_is_noticed(writer, threads, path, meanwhile, when):
    run(writer, append(text("walrus")), append("small"))
    steps(writer)
    if when != "building":
        threads.finish()
        writer.index.run_large_text_slice(idle=False)
    if when == "one table done":
        while not query(path, "SELECT 1 FROM messages_fts_docsize WHERE id = 1"):
            assert writer.index.run_large_text_slice(idle=False) == 0.0
    meanwhile(writer, path)
    for _ in range(20):
        steps(writer)
        threads.finish()
    idle(writer)
    assert_index_is_true(path)


def test_close_does_not_wait_for_a_build(open_writer, path):
    """The thread ends by itself and keeps nothing; the next owner begins again."""
    threads = Threads()
    writer = open_writer(start=threads.start)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append(text("walrus")))
    steps(writer)
    assert threads.waiting
    writer.close()
    threads.finish()
    assert query(path, "SELECT aside, id FROM hermes_actor_stale") == [(1, 1)]
    idle(open_writer())
    assert_index_is_true(path)


def test_thread_that_fails_is_reported_and_tried_again(open_writer, path, monkeypatch):
    writer, build, failures = open_writer(), work_aside.build, [MemoryError()]

    def failing(table, entries):
        if failures:
            raise failures.pop()
        return build(table, entries)

    monkeypatch.setattr(work_aside, "build", failing)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append(text("walrus")))
    with pytest.raises(Exception, match="message 1 cannot be indexed"):
        idle(writer)
    idle(writer)
    assert_index_is_true(path)


# Very large texts, which a process of their own indexes.


@pytest.fixture
def apart(monkeypatch):
    """Every large text is a very large one."""
    monkeypatch.setattr(limits, "ASIDE_THREAD_BYTES", 0)


class Failing:
    """Builders that fail for some texts: (folder, size) to what they raise."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.started = 0

    def __call__(self, folder, size):
        self.started += 1
        builder = BuildHere(folder, size)
        if self.errors:
            error = self.errors.pop(0)
            builder.wait = lambda: (_ for _ in ()).throw(error)
        return builder


def work_off(writer):
    """What can be done now; the clock stands still."""
    while writer.idle_slice() == 0.0:
        pass


def no_folders(path):
    return list(resolve_paths(path).folder.glob("aside-*")) == []


@pytest.mark.parametrize("start_builder", [BuildHere, BuildProcess])
def test_process_leaves_the_same_index(open_writer, apart, path, start_builder):
    writer = open_writer(start_builder=start_builder)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append("small"))
    run(writer, append(text("walrus")), append(text("heron")))
    idle(writer)
    assert found(path, "walrusend") == [2]
    assert_index_is_true(path)
    run(writer, sql("UPDATE messages SET content = ? WHERE id = 2", text("seal")))
    run(writer, sql("DELETE FROM messages WHERE id = 3"))
    idle(writer)
    assert found(path, "sealend") == [2]
    assert found(path, "walrusend") == []
    assert_index_is_true(path)
    assert no_folders(path)


def test_small_builds_start_no_process(open_writer, path):
    builder = Failing()
    writer = open_writer(start_builder=builder)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    for _ in range(6):  # together more than one build may have
        run(writer, append(text("walrus", limits.ASIDE_THREAD_BYTES // 4)))
    idle(writer)
    assert builder.started == 0
    run(writer, append(text("seal", limits.ASIDE_THREAD_BYTES)))
    idle(writer)
    assert builder.started == 1
    assert_index_is_true(path)


@pytest.mark.parametrize(
    "error",
    [BuildFailed("killed"), MemoryError(), sqlite3.OperationalError("database or disk is full")],
)
def test_text_whose_process_fails_is_tried_again_later(open_writer, apart, path, error, caplog):
    now = [1000.0]
    builder = Failing(*[error] * 12)
    writer = open_writer(start_builder=builder, monotonic=lambda: now[0])
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append(text("walrus")))
    work_off(writer)
    assert builder.started == 1
    assert (
        "the text of message 1 (0.1 MB) is not indexed after 1 try"
        in writer.index.large_texts.state
    )
    # Everything else goes on, and nothing is begun before its time.
    run(writer, append(text("seal")), append("small"))
    builder.errors, errors = [], builder.errors
    work_off(writer)
    assert (found(path, "sealend"), found(path, "small")) == ([2], [3])
    assert builder.started == 2
    builder.errors = errors
    pauses = []
    while builder.errors:
        began = now[0]
        started = builder.started
        while builder.started == started:
            now[0] += 0.5
            work_off(writer)
        pauses.append(now[0] - began)
    wanted = [1, 2, 4, 8, 16, 32, 64, 128, 256, *[limits.ASIDE_RETRY_MOST_SECONDS] * 2]
    assert pauses == pytest.approx(wanted, abs=1)
    assert no_folders(path)
    now[0] += limits.ASIDE_RETRY_MOST_SECONDS
    work_off(writer)
    assert writer.index.large_texts.state == "none"
    assert writer.index.large_texts.failure is None
    assert_index_is_true(path)


def test_text_that_was_changed_is_tried_at_once(open_writer, apart, path):
    now = [1000.0]
    builder = Failing(BuildFailed("too large"))
    writer = open_writer(start_builder=builder, monotonic=lambda: now[0])
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append(text("walrus")))
    idle(writer)
    run(writer, sql("UPDATE messages SET content = 'seal' WHERE id = 1"))
    idle(writer)
    assert writer.index.large_texts.state == "none"
    assert_index_is_true(path)


def test_work_that_needs_a_whole_index_does_not_wait_for_ever(open_writer, apart):
    now = [1000.0]

    def sleep(seconds):
        now[0] += seconds

    builder = Failing(*[BuildFailed("too large")] * 100)
    writer = open_writer(start_builder=builder, monotonic=lambda: now[0], sleep=sleep)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append(text("walrus")))
    with pytest.raises(StorageError, match=r"message 1 .* after 3 tries, .*: too large"):
        writer.index.complete()


def test_folder_that_cannot_be_made_is_a_failure_like_others(open_writer, apart, path, monkeypatch):
    def refuse(self):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.path))

    writer = open_writer(start_builder=BuildHere)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append(text("walrus")))
    with monkeypatch.context() as patch:
        patch.setattr(work_aside.BuildFolder, "__enter__", refuse)
        work_off(writer)
    assert "message 1 (0.1 MB) is not indexed after 1 try" in writer.index.large_texts.state
    assert "Read-only file system" in writer.index.large_texts.state
    writer.index.large_texts.forget_failures()
    idle(writer)
    assert_index_is_true(path)


def test_leftovers_of_a_crash_are_removed_by_the_next_owner(open_writer, path):
    left = resolve_paths(path).folder / "aside-1-1"
    left.mkdir(parents=True)
    (left / "messages_fts.db").write_bytes(b"x")
    open_writer()
    assert no_folders(path)


def test_close_ends_the_process_and_removes_its_files(open_writer, apart, path):
    writer = open_writer(start=Environment().start, start_builder=BuildProcess)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0), append(text("walrus")))
    steps(writer)
    while (builder := writer.index.large_texts._work._builder) is None:
        threading.Event().wait(0.001)
    writer.close()
    assert builder._process.returncode is not None
    assert no_folders(path)
    assert query(path, "SELECT aside, id FROM hermes_actor_stale") == [(1, 1)]


@pytest.fixture
def unknown_format(monkeypatch):
    monkeypatch.setattr(large_texts, "is_known_format", lambda: False)


def test_unknown_format_is_indexed_in_idle_time_only(unknown_format, writer, threads, path):
    run(writer, append(text("walrus")), append("small"))
    while writer.index.run_slice(0.1):
        pass
    for _ in range(3):
        assert writer.index.run_large_text_slice(idle=False) is None
    assert writer.index.large_texts.state.startswith("in one piece, in idle time: ")
    assert found(path, "walrus") == []
    idle(writer)
    assert threads.waiting == []
    assert_index_is_true(path)


def test_format_is_known_here():
    assert is_known_format()


def test_many_large_texts_do_not_pile_up(open_writer, path):
    """Segments are merged in parts before FTS5 would merge them in one go."""
    writer = open_writer()
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    for n in range(24):
        run(writer, append(text(f"walrus{n}", 2 * LARGE)))
        for k in range(4):
            run(writer, append(f"small {n} {k}"))
            idle(writer)
        for table in FTS_TABLES:
            for level in read_structure(writer.connection.conn, table).levels:
                pages = sum(segment.pages for segment in level.segments)
                assert len(level.segments) < 16
                assert len(level.segments) < 8 or pages < 1000
    assert_index_is_true(path)
    assert found(path, "walrus7end") == [36]


def test_rebuild_does_not_index_large_texts_in_place(writer, threads, path):
    run(writer, append(text("walrus")), append("small"))
    steps(writer)
    threads.finish()
    idle(writer)
    seen = indexed_in_place(writer)
    writer.index.rebuild()
    for _ in range(3):
        steps(writer)
        threads.finish()
    idle(writer)
    assert seen == {"added": 2}
    assert_index_is_true(path)


def test_lease_that_looks_at_the_index_is_not_held_up_by_a_large_text(writer, threads, path):
    writer.leases.begin(float("inf"))
    insert = "INSERT INTO messages (session_id, role, content, timestamp) VALUES ('s', 'u', ?, 1)"
    writer.leases.run(sql(insert, "small walrus"))
    match = sql("SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'walrus'")
    assert writer.leases.run(match).rows == [[1]]
    seen = indexed_in_place(writer)
    writer.leases.run(sql(insert, text("walrus")))
    with pytest.raises(IndexBehind):
        writer.leases.run(match)
    assert writer.leases.end(Request(SqlLease(lease=0))).error is None
    steps(writer)
    threads.finish()
    idle(writer)
    assert seen == {}
    assert_index_is_true(path)


@pytest.mark.parametrize("number", [-5, 1, 40])
def test_message_with_an_id_of_its_own_is_indexed(writer, threads, path, number):
    """Below the watermark too, and where what is left of a deleted message has the same id."""
    run(writer, *(append(f"first {n}") for n in range(50)))
    idle(writer)
    run(writer, sql("DELETE FROM messages WHERE id = ?", number))
    insert = "INSERT OR REPLACE INTO messages (id, session_id, role, content, timestamp)"
    for word in ("walrus", "seal"):
        run(writer, sql(f"{insert} VALUES (?, 's', 'u', ?, 1)", number, text(word)))
        run(writer, sql(f"{insert} VALUES (?, 's', 'u', ?, 1)", 7, word))
    steps(writer)
    threads.finish()
    idle(writer)
    assert_index_is_true(path)
    assert found(path, "seal") == sorted([number, 7])
    assert found(path, "walrus") == []


# Searches.


@pytest.fixture(params=["embedded", "actor"])
def db(request, path, small_steps):
    opened = SessionDB(path, mode=request.param)
    opened.create_session("s", "cli")
    yield opened
    opened.close()


def ids(db, query):
    return [hit["id"] for hit in db.search_messages(query)]


def test_search_is_complete_at_any_time(db):
    """Without any pause: a search finds what was acknowledged before it, and nothing else."""
    first = db.append_message("s", "user", text("walrus"))
    second = db.append_message("s", "user", "walrus small 性能优化")
    assert sorted(ids(db, "walrus")) == [first, second]
    third = db.append_message("s", "user", text("性能优化"))
    assert sorted(ids(db, "性能优化")) == [second, third]
    db._conn.execute("UPDATE messages SET content = ? WHERE id = ?", (text("seal"), first))
    assert ids(db, "seal") == [first]
    assert ids(db, "walrus") == [second]
    db._conn.execute("DELETE FROM messages WHERE id = ?", (first,))
    assert ids(db, "seal") == []
    db._conn.execute("UPDATE messages SET content = 'heron' WHERE id = ?", (third,))
    assert ids(db, "heron") == [third]
    assert ids(db, "性能优化") == [second]
    count = db._conn.execute("SELECT COUNT(*) FROM messages_fts").fetchone()
    assert tuple(count) == (2,)


def test_ranks_are_those_of_an_ordinary_index(db, path, tmp_path):
    texts = [text("walrus"), "walrus", "seal walrus walrus", text("seal"), "heron " * 30]
    numbers = [db.append_message("s", "user", one) for one in texts]
    assert len(ids(db, "walrus")) == 3
    with raw(tmp_path / "ordinary.db") as ordinary:
        for table in FTS_TABLES:
            (made,) = query(path, "SELECT sql FROM sqlite_master WHERE name = ?", table)
            ordinary.execute(made[0])
            ordinary.executemany(
                f"INSERT INTO {table}(rowid, content) VALUES (?, ?)",
                [(n, f"{one}  ") for n, one in zip(numbers, texts, strict=True)],
            )
            for word in ("walrus", "seal", "heron", "walrusend"):
                ranked = (
                    f"SELECT rowid, rank FROM {table} WHERE {table} MATCH ? ORDER BY rank, rowid"
                )
                assert query(path, ranked, word) == ordinary.execute(ranked, (word,)).fetchall()


def test_search_alone_finds_what_is_noted(path, open_writer):
    """If no writer can be had, a reader covers large texts, changes and deletions by itself."""
    writer = open_writer(start=Threads().start)
    run(writer, SessionCreate(id="s", source="cli", started_at=1.0))
    run(writer, *(append(f"heron {n}") for n in range(3)))
    idle(writer)
    run(writer, append(text("walrus")), append("walrus"))
    run(writer, sql("UPDATE messages SET content = 'seal' WHERE id = 1"))
    run(writer, sql("DELETE FROM messages WHERE id = 2"))
    while writer.index.run_slice(0.1):
        pass
    run(writer, sql("UPDATE messages SET content = 'seal' WHERE id = 3"))
    from hermes_actor.sqlite import connect_reader
    from hermes_actor.store.search.matches import search_messages
    from hermes_actor.store.search.query import Filters

    conn = connect_reader(path)
    for word, wanted in (("walrus", [4, 5]), ("heron", []), ("seal", [1, 3])):
        hits = search_messages(conn, word, Filters(), 20, 0, float("inf"))
        assert sorted(hit["id"] for hit in hits) == wanted
    conn.close()


def test_builds_run_beside_the_writer(open_writer, path):
    """With real threads: the writer goes on while one works, and the result comes by itself."""
    writer = open_writer(start=Environment().start)
    run(
        writer,
        SessionCreate(id="s", source="cli", started_at=1.0),
        append(text("walrus", 8 * LARGE)),
    )
    written = 0
    while not found(path, "walrusend"):
        pause = writer.idle_slice()
        run(writer, append(f"small {written}"))
        written += 1
        if pause:
            threading.Event().wait(pause)
    writer.index.complete()
    assert_index_is_true(path)
