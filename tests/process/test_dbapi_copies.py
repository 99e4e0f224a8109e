"""``backup()`` into a file that has an actor: what it does on ``sqlite3`` it does here."""

import sqlite3
import threading
from contextlib import closing

import pytest

from hermes_actor import SessionDB, dbapi

LARGE = 300


@pytest.fixture(params=[dbapi, sqlite3], ids=["ours", "sqlite3"])
def open_(request, tmp_path):
    """Open a file in WAL mode, by its name: with ours, and as control, with the real module."""
    opened = []

    def open_(name, *statements):
        conn = request.param.connect(tmp_path / name, isolation_level=None)
        opened.append(conn)
        conn.execute("PRAGMA journal_mode = WAL")
        for sql in statements:
            conn.execute(sql)
        return conn

    yield open_
    for conn in opened:
        conn.close()


def content(conn):
    tables = conn.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'hermes%'"
    ).fetchall()
    return {name: conn.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables}


def fill(conn):
    conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
    conn.executemany("INSERT INTO t (x) VALUES (?)", [(f"{n}" * 50,) for n in range(LARGE)])


def test_content_is_replaced_and_the_target_goes_on(open_):
    source, target = open_("source.db"), open_("target.db", "CREATE TABLE old (x)")
    fill(source)
    beside = open_("target.db")
    source.backup(target)
    assert content(target) == content(source) == content(beside)
    for conn in (target, beside):
        conn.execute("INSERT INTO t (x) VALUES ('after')")
    assert target.execute("SELECT count(*) FROM t WHERE x = 'after'").fetchone() == (2,)
    assert target.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert source.execute("SELECT count(*) FROM t WHERE x = 'after'").fetchone() == (0,)
    source.backup(target)  # again, over what it has become
    assert content(target) == content(source)


def test_memory_and_empty_databases(open_):
    target = open_("target.db", "CREATE TABLE old (x)")
    module = dbapi if isinstance(target, dbapi.Connection) else sqlite3
    with closing(module.connect(":memory:")) as memory:
        memory.execute("CREATE TABLE m (x)")
        memory.execute("INSERT INTO m VALUES (1)")
        memory.commit()
        if module is sqlite3:  # a native one cannot know who owns the target; see below
            memory.backup(target)
            assert content(target) == {"m": [(1,)]}
    open_("empty.db").backup(target)
    assert content(target) == {}
    target.execute("CREATE TABLE after (x)")
    assert content(target) == {"after": []}


def test_progress_is_that_of_the_copy(open_):
    source, target = open_("source.db"), open_("target.db")
    fill(source)
    seen = []
    source.backup(target, pages=2, progress=lambda *numbers: seen.append(numbers), sleep=0)
    assert len(seen) > 2
    assert {status for status, _, _ in seen[:-1]} == {sqlite3.SQLITE_OK}
    assert seen[-1][:2] == (sqlite3.SQLITE_DONE, 0)
    assert content(target) == content(source)


def test_error_of_the_caller_changes_nothing(open_):
    source, target = open_("source.db"), open_("target.db", "CREATE TABLE old (x)")
    fill(source)

    def fail(*_numbers):
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        source.backup(target, pages=1, progress=fail)
    with pytest.raises(sqlite3.OperationalError, match="unknown database nowhere"):
        source.backup(target, name="nowhere")
    with pytest.raises(TypeError):
        source.backup(target, progress="nothing to call")
    target.execute("INSERT INTO old VALUES (1)")
    assert content(target) == {"old": [(1,)]}


def test_target_in_a_transaction_is_in_use(open_):
    source, target = open_("source.db"), open_("target.db", "CREATE TABLE old (x)")
    target.execute("BEGIN IMMEDIATE")
    target.execute("INSERT INTO old VALUES (1)")
    with pytest.raises(sqlite3.OperationalError, match="destination database is in use"):
        source.backup(target)
    target.execute("COMMIT")
    assert content(target) == {"old": [(1,)]}


def test_closed_ends_are_refused(open_):
    source, target = open_("source.db"), open_("target.db")
    with pytest.raises(ValueError, match="same connection"):
        source.backup(source)
    target.close()
    with pytest.raises(sqlite3.ProgrammingError):
        source.backup(target)


def test_attached_database_and_other_page_size(tmp_path):
    """SQLite refuses another page size in WAL mode; the actor takes it."""
    with closing(sqlite3.connect(tmp_path / "wide.db")) as wide:
        wide.execute("PRAGMA page_size = 8192")
        fill(wide)
        wide.commit()
    with (
        closing(dbapi.connect(tmp_path / "source.db")) as source,
        closing(dbapi.connect(tmp_path / "target.db")) as target,
    ):
        source.execute("ATTACH ? AS wide", (str(tmp_path / "wide.db"),))
        source.backup(target, name="wide")
        assert target.execute("SELECT count(*) FROM t").fetchone() == (LARGE,)
        assert list(target._target.paths.folder.glob("restore-*")) == []


def test_other_kind_is_refused(tmp_path):
    SessionDB(tmp_path / "sessions.db").close()
    with (
        closing(dbapi.connect(tmp_path / "sessions.db")) as sessions,
        closing(dbapi.connect(tmp_path / "plain.db")) as plain,
    ):
        plain.execute("CREATE TABLE t (x)")
        for source, target in ((sessions, plain), (plain, sessions)):
            with pytest.raises(sqlite3.DatabaseError, match="kind"):
                source.backup(target)
        plain.execute("INSERT INTO t VALUES (1)")
        assert sessions.execute("SELECT count(*) FROM sessions").fetchone() == (0,)


def test_source_of_another_thread(open_, tmp_path):
    """As aiosqlite copies, which has a thread for each connection."""
    path = tmp_path / "source.db"
    target = open_("target.db", "CREATE TABLE old (x)")

    connect = dbapi.connect if isinstance(target, dbapi.Connection) else sqlite3.connect

    def copy():
        with closing(connect(path, isolation_level=None)) as source:
            fill(source)
            source.backup(target)

    thread = threading.Thread(target=copy)
    thread.start()
    thread.join()
    assert len(content(target)["t"]) == LARGE


def test_native_source_finds_a_target_that_it_cannot_write(tmp_path):
    with (
        closing(sqlite3.connect(":memory:")) as source,
        closing(dbapi.connect(tmp_path / "target.db")) as target,
    ):
        source.execute("CREATE TABLE t (x)")
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            source.backup(target)
        target.execute("CREATE TABLE mine (x)")
