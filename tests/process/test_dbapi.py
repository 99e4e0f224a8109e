"""connect(): opening, reading, writing, and what a program sees when something is in the way."""

import gc
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from support.actors import actor_pid, own, wait_for
from support.files import query
from support.processes import SCRIPTS

import hermes_actor
from hermes_actor import dbapi


@pytest.fixture
def conn(path):
    with closing(hermes_actor.connect(path, isolation_level=None)) as conn:
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
        yield conn


def rows(conn):
    return [x for (x,) in conn.execute("SELECT x FROM t ORDER BY id")]


# --- opening -------------------------------------------------------------------------------------


def test_connection_is_one_of_sqlite3(conn, path):
    assert isinstance(conn, sqlite3.Connection)
    assert isinstance(conn, dbapi.Connection)
    assert isinstance(conn.execute("SELECT 1"), sqlite3.Cursor)
    assert isinstance(conn.execute("SELECT 1"), dbapi.Cursor)
    assert actor_pid(path) not in (None, os.getpid())
    assert query(path, "SELECT value FROM hermes_actor_meta WHERE key = 'kind'") == [("plain",)]


def test_existing_schema_is_opened_and_read_without_a_write(conn, path):
    conn.execute("CREATE INDEX by_x ON t (x)")
    conn.execute("INSERT INTO t (x) VALUES (1)")
    before = own(path, "commit_no"), path.with_name("state.db-wal").stat().st_size
    for _ in range(3):
        with closing(hermes_actor.connect(path)) as other:
            other.execute("PRAGMA journal_mode = WAL")
            other.execute("PRAGMA foreign_keys = ON")
            other.executescript("""
                CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, x);
                CREATE INDEX IF NOT EXISTS by_x ON t (x);
            """)
            other.execute("CREATE TABLE IF NOT EXISTS t (id)")
            other.commit()
            assert rows(other) == [1]
            other.execute("BEGIN")
            assert rows(other) == [1]
            other.commit()
    assert (own(path, "commit_no"), path.with_name("state.db-wal").stat().st_size) == before


def test_reading_a_wal_file_starts_no_actor(path):
    with closing(sqlite3.connect(path)) as native:
        native.execute("PRAGMA journal_mode = WAL")
        native.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
        native.execute("INSERT INTO t (x) VALUES ('native')")
        native.commit()
    before = path.read_bytes()
    with closing(hermes_actor.connect(path)) as conn:
        assert rows(conn) == ["native"]
    assert not path.with_name(".state.db.actor").exists()
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", ["DELETE", "TRUNCATE", "WAL"])
def test_existing_file_is_adopted(path, mode):
    with closing(sqlite3.connect(path)) as native:
        native.execute(f"PRAGMA journal_mode = {mode}")
        native.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
        native.execute("INSERT INTO t (x) VALUES ('native')")
        native.commit()
    with closing(hermes_actor.connect(path)) as conn:
        with conn:
            conn.execute("INSERT INTO t (x) VALUES ('ours')")
        assert rows(conn) == ["native", "ours"]
        assert conn.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


def test_missing_folder_and_folder_cannot_be_opened(tmp_path):
    for path in (tmp_path / "no" / "x.db", tmp_path):
        with pytest.raises(sqlite3.OperationalError, match=r"^unable to open database file"):
            hermes_actor.connect(path)
    assert list(tmp_path.iterdir()) == []


def test_uri_that_must_exist(path):
    with pytest.raises(sqlite3.OperationalError, match=r"^unable to open database file"):
        hermes_actor.connect(f"file:{path}?mode=rw", uri=True)
    assert not path.exists()


def test_no_database_is_said_by_the_first_statement(path):
    path.write_text("this is no database, " * 100)
    with closing(hermes_actor.connect(path)) as conn, pytest.raises(sqlite3.DatabaseError) as error:
        conn.execute("CREATE TABLE t (x)")
    assert "file is not a database" in str(error.value)
    assert path.read_text() == "this is no database, " * 100


@pytest.mark.parametrize("database", [":memory:", ""])
def test_databases_of_one_process_are_those_of_sqlite3(database):
    with closing(hermes_actor.connect(database)) as conn:
        assert type(conn) is sqlite3.Connection
        conn.execute("CREATE TABLE t (x)")


def test_read_only_uri_is_that_of_sqlite3(conn, path):
    with closing(hermes_actor.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        assert type(reader) is sqlite3.Connection
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("INSERT INTO t (x) VALUES (1)")


def test_factories_get_the_methods(path):
    class Mine(sqlite3.Connection):
        def greeting(self):
            return "hello"

    class MyCursor(sqlite3.Cursor):
        pass

    with closing(dbapi.connect(path, factory=Mine)) as conn:
        assert conn.greeting() == "hello"
        conn.execute("CREATE TABLE t (x)")
        cursor = conn.cursor(MyCursor)
        cursor.execute("INSERT INTO t VALUES (1)")
        assert isinstance(cursor, MyCursor)
        conn.commit()
        assert cursor.execute("SELECT x FROM t").fetchall() == [(1,)]


# --- values and factories ------------------------------------------------------------------------


ODD = [None, 0, -(2**63), 2**63 - 1, 1e300, float("inf"), "", "ä\0ö", "😀", b"", b"\0\xff"]


@pytest.mark.parametrize("in_lease", [False, True])
def test_values_survive(conn, in_lease):
    conn.executemany("INSERT INTO t (x) VALUES (?)", [(value,) for value in ODD])
    if in_lease:
        conn.execute("BEGIN IMMEDIATE")
    found = conn.execute("SELECT x, typeof(x) FROM t ORDER BY id").fetchall()
    assert [x for x, _ in found] == ODD
    one = conn.execute("SELECT x FROM t WHERE id = 8").fetchone()
    assert one == ("ä\0ö",)


@pytest.mark.parametrize("in_lease", [False, True])
def test_text_that_is_not_utf8_survives(conn, in_lease):
    conn.execute("INSERT INTO t (x) VALUES (CAST(X'ff00fe' AS TEXT))")
    conn.execute("INSERT INTO t (x) VALUES ('plain')")
    if in_lease:
        conn.execute("BEGIN IMMEDIATE")
    conn.text_factory = bytes
    assert rows(conn) == [b"\xff\0\xfe", b"plain"]
    assert conn.execute("SELECT x FROM t WHERE id = 1").fetchall() == [(b"\xff\0\xfe",)]
    conn.text_factory = str
    with pytest.raises(sqlite3.OperationalError, match="Could not decode to UTF-8"):
        rows(conn)


@pytest.mark.parametrize("in_lease", [False, True])
def test_factories_and_converters(path, in_lease):
    sqlite3.register_converter("point", lambda data: ("point", data))
    kinds = sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES
    with closing(dbapi.connect(path, detect_types=kinds)) as conn:
        conn.execute("CREATE TABLE p (id INTEGER PRIMARY KEY, place POINT)")
        conn.executemany("INSERT INTO p (place) VALUES (?)", [("1;2",), ("3;4",)])
        if not in_lease:
            conn.commit()
        assert conn.in_transaction is in_lease
        conn.row_factory = sqlite3.Row
        found = conn.execute('SELECT place, id AS "n [point]" FROM p WHERE id > ?', (0,)).fetchall()
        assert [tuple(row) for row in found] == [
            (("point", b"1;2"), ("point", b"1")),
            (("point", b"3;4"), ("point", b"2")),
        ]
        assert found[0].keys() == ["place", "n"]
        assert isinstance(found[0], sqlite3.Row)
        conn.rollback()


def test_rows_of_a_change_are_returned(conn):
    cursor = conn.execute("INSERT INTO t (x) VALUES (1), (2) RETURNING id, x")
    assert [column[0] for column in cursor.description] == ["id", "x"]
    assert cursor.fetchall() == [(1, 1), (2, 2)]


def test_many_open_cursors_of_a_write_transaction(conn):
    conn.executemany("INSERT INTO t (x) VALUES (?)", [(n,) for n in range(10)])
    conn.execute("BEGIN IMMEDIATE")
    cursors = [conn.execute("SELECT x FROM t WHERE x > 3 ORDER BY x") for _ in range(200)]
    assert {cursor.fetchone() for cursor in cursors} == {(4,)}
    assert {tuple(cursor.fetchall()) for cursor in cursors} == {((5,), (6,), (7,), (8,), (9,))}
    conn.execute("COMMIT")


def test_own_writes_are_seen_beside_an_unfinished_cursor(conn):
    conn.executemany("INSERT INTO t (x) VALUES (?)", [(n,) for n in range(5)])
    seen = []
    for number, x in conn.execute("SELECT id, x FROM t ORDER BY id"):
        conn.execute("UPDATE t SET x = ? WHERE id = ?", (x + 10, number))
        seen.append((x, conn.execute("SELECT x FROM t WHERE id = ?", (number,)).fetchone()[0]))
    assert seen == [(n, n + 10) for n in range(5)]


# --- counters, callbacks -------------------------------------------------------------------------


def test_counters_are_of_this_connection_alone(conn, path):
    with closing(dbapi.connect(path, isolation_level=None)) as other:
        first = conn.execute("INSERT INTO t (x) VALUES ('a')")
        other.executemany("INSERT INTO t (x) VALUES (?)", [("b",)] * 5)
        assert first.lastrowid == 1
        assert conn.execute("SELECT last_insert_rowid(), changes()").fetchone() == (1, 1)
        # A value of the connection inside a write.
        conn.execute("INSERT INTO t (x) VALUES (last_insert_rowid())")
        assert rows(conn)[-1] == 1
        assert (conn.total_changes, other.total_changes) == (2, 5)
        conn.execute("BEGIN IMMEDIATE")
        assert conn.execute("SELECT last_insert_rowid()").fetchone() == (7,)
        conn.execute("COMMIT")


def test_trace_callback_gets_every_statement_once(conn):
    seen = []
    conn.set_trace_callback(seen.append)
    conn.execute("INSERT INTO t (x) VALUES (?)", (5,))
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES (?)", ("in",))
    conn.execute("SELECT x FROM t WHERE x = ?", (5,)).fetchall()
    conn.execute("COMMIT")
    conn.set_trace_callback(None)
    assert seen == [
        "INSERT INTO t (x) VALUES (5)", "BEGIN IMMEDIATE", "INSERT INTO t (x) VALUES ('in')",
        "SELECT x FROM t WHERE x = 5", "COMMIT",
    ]  # fmt: skip


def test_authorizer_denies_writes(conn):
    def deny(action, first, *_):
        return sqlite3.SQLITE_DENY if first == "t" else sqlite3.SQLITE_OK

    conn.set_authorizer(deny)
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
        conn.execute("INSERT INTO t (x) VALUES (1)")
    conn.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
        conn.execute("INSERT INTO t (x) VALUES (1)")
    conn.set_authorizer(None)
    conn.execute("ROLLBACK")
    assert rows(conn) == []


def test_functions_and_collations_in_reads(conn):
    conn.execute("INSERT INTO t (x) VALUES ('b'), ('a')")
    conn.create_function("twice", 1, lambda text: text * 2)
    conn.create_collation("backwards", lambda a, b: (a < b) - (a > b))
    found = conn.execute("SELECT twice(x) FROM t ORDER BY x COLLATE backwards").fetchall()
    assert found == [("bb",), ("aa",)]


def test_settings_travel_with_writes(path):
    with closing(dbapi.connect(path, isolation_level=None)) as strict:
        strict.executescript("""
            CREATE TABLE parent (id INTEGER PRIMARY KEY);
            CREATE TABLE child (parent REFERENCES parent);
        """)
        strict.execute("PRAGMA foreign_keys = ON")
        with closing(dbapi.connect(path, isolation_level=None)) as lax:
            for _ in range(2):
                with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY constraint failed"):
                    strict.execute("INSERT INTO child VALUES (7)")
                lax.execute("INSERT INTO child VALUES (8)")
                strict.execute("BEGIN IMMEDIATE")
                with pytest.raises(sqlite3.IntegrityError):
                    strict.execute("INSERT INTO child VALUES (7)")
                strict.execute("ROLLBACK")
                lax.execute("BEGIN IMMEDIATE")
                lax.execute("INSERT INTO child VALUES (9)")
                lax.execute("COMMIT")
        assert strict.execute("PRAGMA foreign_keys").fetchall() == [(1,)]


def test_pragmas_of_the_file(conn, path):
    assert conn.execute("PRAGMA user_version = 7").fetchall() == []
    assert conn.execute("PRAGMA user_version").fetchall() == [(7,)]
    assert query(path, "PRAGMA user_version") == [(7,)]
    assert conn.execute("PRAGMA journal_mode = DELETE").fetchall() == [("wal",)]
    assert conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall() == [(0, 0, 0)]
    assert conn.execute("PRAGMA busy_timeout = 1234").fetchall() == [(1234,)]
    conn.execute("BEGIN IMMEDIATE")
    assert [row[1] for row in conn.execute("PRAGMA table_info(t)")] == ["id", "x"]
    conn.execute("PRAGMA user_version = 8")
    conn.execute("ROLLBACK")
    assert conn.execute("PRAGMA user_version").fetchall() == [(7,)]


def test_schema_changes_of_this_and_other_connections(conn, path):
    with closing(dbapi.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE u (a)")
        conn.execute("INSERT INTO u VALUES (1)")
        conn.execute("DROP TABLE u")
        conn.execute("CREATE TABLE u (b)")
        assert other.execute("SELECT * FROM u").description[0][0] == "b"
        conn.execute("ALTER TABLE u ADD COLUMN c")
        assert other.execute("SELECT c FROM u").fetchall() == []
        other.execute("INSERT INTO u VALUES (1, 2)")
        assert conn.execute("SELECT c FROM u").fetchall() == [(2,)]


def test_vacuum_and_analyze(conn):
    conn.executemany("INSERT INTO t (x) VALUES (?)", [("x" * 1000,)] * 200)
    conn.execute("DELETE FROM t WHERE id > 5")
    conn.execute("ANALYZE")
    conn.execute("VACUUM")
    assert len(rows(conn)) == 5
    assert conn.execute("PRAGMA freelist_count").fetchall() == [(0,)]
    conn.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="cannot VACUUM from within a transaction"):
        conn.execute("VACUUM")


def test_copies(conn, path, tmp_path):
    conn.execute("INSERT INTO t (x) VALUES ('kept')")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        conn.backup(copy)
        assert rows(copy) == ["kept"]
    script = "".join(conn.iterdump())
    assert "hermes_actor" not in script
    with closing(sqlite3.connect(":memory:")) as copy:
        copy.executescript(script)
        assert rows(copy) == ["kept"]
    with conn.blobopen("t", "x", 1, readonly=True) as blob:
        assert blob.read() == b"kept"


# --- refusals ------------------------------------------------------------------------------------


def temporary(conn):
    conn.execute("CREATE TEMP TABLE mine (x)")
    conn.execute("INSERT INTO mine VALUES (1)")


def function(conn):
    conn.create_function("twice", 1, lambda x: 2 * x)


def builtin(conn):
    conn.create_function("upper", 1, lambda x: "mine")


def attached(conn):
    conn.execute("ATTACH ? AS other", (str(conn._target.paths.db),))


REFUSED = [
    (temporary, "INSERT INTO t (x) SELECT x FROM mine"),
    (function, "INSERT INTO t (x) VALUES (twice(2))"),
    (builtin, "INSERT INTO t (x) VALUES (upper('a'))"),
    (attached, "INSERT INTO other.t (x) VALUES (1)"),
]


@pytest.mark.parametrize(("prepare", "sql"), REFUSED, ids=lambda value: str(value)[:20])
@pytest.mark.parametrize("in_lease", [False, True])
def test_private_objects_are_not_mixed_into_writes(conn, prepare, sql, in_lease):
    prepare(conn)
    if in_lease:
        conn.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.NotSupportedError, match="actor of the file"):
        conn.execute(sql)
    if in_lease:
        conn.execute("COMMIT")
    assert rows(conn) == []


def test_private_objects_can_be_used_alone_in_a_write_transaction(conn):
    temporary(conn)
    function(conn)
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES (1)")
    conn.execute("INSERT INTO mine VALUES (2)")
    assert conn.execute("SELECT twice(x) FROM mine").fetchall() == [(2,), (4,)]
    conn.execute("COMMIT")
    assert rows(conn) == [1]
    assert conn.execute("SELECT m.x FROM mine m JOIN t ON m.x = t.x").fetchall() == [(1,)]


def test_methods_that_are_refused(conn):
    with pytest.raises(sqlite3.NotSupportedError, match="readonly=True"):
        conn.blobopen("t", "x", 1)
    with pytest.raises(sqlite3.NotSupportedError):
        conn.deserialize(b"")
    conn.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.NotSupportedError), closing(sqlite3.connect(":memory:")) as copy:
        conn.backup(copy)


# --- threads, forks, ends ------------------------------------------------------------------------


def test_other_thread_is_refused(conn):
    raised = []

    def use():
        for call in (conn.commit, lambda: conn.execute("INSERT INTO t (x) VALUES (1)")):
            try:
                call()
            except sqlite3.ProgrammingError as error:
                raised.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert len(raised) == 2
    assert all("created in a thread" in words for words in raised)


def test_threads_share_a_connection_that_allows_it(path):
    with closing(dbapi.connect(path, check_same_thread=False, isolation_level=None)) as conn:
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, x)")
        threads = [
            threading.Thread(
                target=lambda n=n: [
                    conn.execute("INSERT INTO t (x) VALUES (?)", (n,)) for _ in range(20)
                ]
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(rows(conn)) == sorted([0, 1, 2, 3] * 20)


def test_closed_connection(conn):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES (1)")
    cursor = conn.cursor()
    conn.close()
    for call in (
        conn.commit,
        lambda: conn.execute("SELECT 1"),
        lambda: cursor.execute("INSERT INTO t (x) VALUES (1)"),
        lambda: conn.executemany("INSERT INTO t (x) VALUES (?)", [(1,)]),
    ):
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            call()
    conn.close()


def test_close_and_collection_end_the_transaction(conn, path):
    for end in (lambda other: other.close(), lambda other: None):
        other = dbapi.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO t (x) VALUES ('lost')")
        end(other)
        del other
        gc.collect()
        conn.execute("INSERT INTO t (x) VALUES ('kept')")
    assert rows(conn) == ["kept", "kept"]


def test_child_may_not_use_the_connection_of_its_parent(conn, path):
    conn.execute("INSERT INTO t (x) VALUES ('parent')")
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES ('transaction')")
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        words = []
        try:
            for call in (conn.commit, lambda: conn.execute("SELECT 1")):
                try:
                    call()
                except sqlite3.ProgrammingError as error:
                    words.append(str(error))
            conn.close()
            with closing(dbapi.connect(path)) as own_connection:
                words.append(rows(own_connection))
        finally:
            os.write(done, json.dumps(words).encode())
            os._exit(0)
    os.close(done)
    with open(ready) as pipe:
        first, second, found = json.load(pipe)
    os.waitpid(child, 0)
    assert "belongs to process" in first
    assert "belongs to process" in second
    assert found == ["parent"]
    conn.execute("COMMIT")
    assert rows(conn) == ["parent", "transaction"]


def test_interrupt_ends_a_read(conn):
    threading.Timer(0.3, conn.interrupt).start()
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        conn.execute(
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
        ).fetchall()
    conn.execute("INSERT INTO t (x) VALUES (1)")
    assert rows(conn) == [1]


# --- several processes ---------------------------------------------------------------------------


def test_lock_of_another_connection(conn, path):
    with closing(dbapi.connect(path, isolation_level=None, timeout=0.3)) as other:
        conn.execute("BEGIN IMMEDIATE")
        for call in (
            lambda: other.execute("BEGIN IMMEDIATE"),
            lambda: other.execute("INSERT INTO t (x) VALUES (1)"),
        ):
            with pytest.raises(sqlite3.OperationalError, match=r"^database is locked") as error:
                call()
            assert error.value.sqlite_errorname == "SQLITE_BUSY"
            assert not other.in_transaction
        assert rows(other) == []
        conn.execute("COMMIT")
        other.execute("INSERT INTO t (x) VALUES (2)")
    assert rows(conn) == [2]


def test_waiting_connection_gets_the_lock(conn, path):
    with closing(dbapi.connect(path, timeout=30, check_same_thread=False)) as other:
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO t (x) VALUES ('first')")
        thread = threading.Thread(target=other.execute, args=("INSERT INTO t (x) VALUES (2)",))
        thread.start()
        time.sleep(0.2)
        conn.execute("COMMIT")
        thread.join()
        other.commit()
    assert rows(conn) == ["first", 2]


def test_pause_that_breaks_the_limit_is_named(conn, path):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES (1)")
    with closing(dbapi.connect(path, timeout=30, isolation_level=None)) as other:
        other.execute("INSERT INTO t (x) VALUES ('after')")
    with pytest.raises(sqlite3.OperationalError, match=r"^database is locked: .*1 s"):
        conn.execute("INSERT INTO t (x) VALUES (2)")
    assert not conn.in_transaction
    assert rows(conn) == ["after"]


def test_long_transaction_can_be_announced(conn):
    conn.lease_seconds = 60
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES (1)")
    time.sleep(1.5)
    conn.execute("INSERT INTO t (x) VALUES (2)")
    conn.execute("COMMIT")
    assert rows(conn) == [1, 2]


BOARD = """
import sqlite3 as native, sys
from hermes_actor import dbapi as sqlite3

path, worker, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])

def connect():
    conn = sqlite3.connect(path, timeout=120, isolation_level=None)
    conn.row_factory = sqlite3.Row
    conn.execute("PRAGMA journal_mode = WAL")
    conn.execute("PRAGMA foreign_keys = ON")
    conn.executescript('''
        CREATE TABLE IF NOT EXISTS tasks (id INTEGER PRIMARY KEY, state TEXT, owner TEXT);
        CREATE TABLE IF NOT EXISTS events (
            id INTEGER PRIMARY KEY, task INTEGER REFERENCES tasks, what TEXT);
    ''')
    return conn

class write:
    def __init__(self, conn):
        self.conn = conn
    def __enter__(self):
        self.conn.execute("BEGIN IMMEDIATE")
    def __exit__(self, kind, *_):
        self.conn.execute("COMMIT" if kind is None else "ROLLBACK")
        with open(path, "rb") as file:  # what drops every lock of a process that owns the file
            file.read(100)

for number in range(tasks):
    conn = connect()
    with write(conn):
        task = conn.execute("INSERT INTO tasks (state) VALUES ('new')").lastrowid
        conn.execute("INSERT INTO events (task, what) VALUES (?, 'created')", (task,))
    with write(conn):
        done = conn.execute(
            "UPDATE tasks SET state = 'running', owner = ? WHERE id = ? AND state = 'new'",
            (worker, task),
        )
        assert done.rowcount == 1
        conn.execute("INSERT INTO events (task, what) VALUES (?, 'claimed')", (task,))
    with write(conn):
        row = conn.execute("SELECT * FROM tasks WHERE id = ?", (task,)).fetchone()
        assert (row["owner"], row["state"]) == (worker, "running")
        conn.execute("UPDATE tasks SET state = 'done' WHERE id = ?", (task,))
        conn.execute("INSERT INTO events (task, what) VALUES (?, 'done')", (task,))
    conn.close()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_board_of_six_processes(path):
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", BOARD, str(path), f"w{number}", "10"],
            env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(6)
    ]
    assert [(worker.communicate()[1], worker.returncode) for worker in workers] == [("", 0)] * 6
    assert query(path, "SELECT state, count(*) FROM tasks GROUP BY 1") == [("done", 60)]
    events = "SELECT group_concat(what) FROM (SELECT * FROM events ORDER BY id) GROUP BY task"
    assert query(path, events) == [("created,claimed,done",)] * 60
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_actor_ends_by_itself_when_connections_are_closed(path, monkeypatch):
    monkeypatch.setenv("HERMES_ACTOR_IDLE_EXIT", "0.2")
    with closing(dbapi.connect(path)) as conn:
        conn.execute("CREATE TABLE t (x)")
    wait_for(lambda: actor_pid(path) is None)


def test_own_function_hides_no_row_of_the_open_transaction(conn):
    conn.create_function("twice", 1, lambda x: 2 * x)
    conn.execute("CREATE TEMP TABLE side (x)")
    conn.execute("BEGIN")
    conn.execute("INSERT INTO t (x) VALUES (1)")
    # Neither names a column: nothing but the table tells where the statement belongs.
    assert conn.execute("SELECT count(*) FROM t").fetchall() == [(1,)]
    assert conn.execute("SELECT ? FROM t", ("y",)).fetchall() == [("y",)]
    assert conn.execute("SELECT count(*) FROM side").fetchall() == [(0,)]


def test_deleted_file_is_created_again(conn, path):
    conn.close()
    path.unlink()
    with closing(hermes_actor.connect(path, timeout=0)) as again:
        assert again.execute("SELECT 1 FROM sqlite_master WHERE name = 't'").fetchall() == []
        again.execute("CREATE TABLE t (x)")


@pytest.fixture
def interrupted():
    """Raise KeyboardInterrupt a moment later, as Ctrl-C does."""

    def raise_(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raise_)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("sql", ["BEGIN IMMEDIATE", "INSERT INTO t (x) VALUES ('interrupted')"])
def test_interrupted_wait_leaves_a_usable_connection(conn, path, interrupted, sql):
    conn.execute("BEGIN IMMEDIATE")
    with closing(dbapi.connect(path, isolation_level=None, timeout=30)) as other:
        interrupted()
        with pytest.raises(KeyboardInterrupt):
            other.execute(sql)
        assert not other.in_transaction
        conn.execute("COMMIT")
        other.execute("INSERT INTO t (x) VALUES ('after')")
        # The statement was sent before the interrupt: it may have been made, as a whole.
        assert rows(conn) in (["after"], ["interrupted", "after"])


def test_interrupted_statement_ends_its_transaction(conn, interrupted):
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO t (x) VALUES ('before')")
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"
    interrupted()
    with pytest.raises(KeyboardInterrupt):
        conn.execute(endless)
    assert not conn.in_transaction
    conn.execute("INSERT INTO t (x) VALUES ('after')")
    assert rows(conn) == ["after"]


def test_write_transaction_that_only_read_is_no_change(conn, path):
    conn.execute("INSERT INTO t (x) VALUES (1)")
    before = own(path, "commit_no")
    conn.execute("BEGIN IMMEDIATE")
    assert rows(conn) == [1]
    conn.execute("COMMIT")
    assert own(path, "commit_no") == before
