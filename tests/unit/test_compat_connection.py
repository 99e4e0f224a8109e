"""``_conn`` and ``_execute_write``: a connection to the eye, never the write connection."""

import contextlib
import sqlite3
import threading
import time
from unittest.mock import Mock

import pytest
from support.subprocess_env import outcome

from hermes_actor.engine.meta_table import set_internal
from hermes_actor.errors import DeadlineExceeded, NotAllowed

IDLE_LIMIT, TOTAL_LIMIT = 0.2, 1.0


@pytest.fixture
def conn(db):
    db.create_session("a", "cli", model="m")
    db.create_session("b", "tui")
    db.create_session("c", "cli")
    return db._conn


def ids(rows):
    return [row["id"] for row in rows]


def healthy(db):
    """Whatever was refused, every reader of the pool sees what is written after it."""
    for round_ in ("1", "2", "3"):
        db.set_meta("round", round_)
        time.sleep(0.006)  # readers look at the file again after 5 ms
        assert db.get_meta("round") == round_
        sql = "SELECT value FROM state_meta WHERE key = 'round'"
        assert db._conn.execute(sql).fetchone()["value"] == round_
    return True


# Reading.


def test_rows_by_name_by_index_and_as_dict(conn):
    row = conn.execute("SELECT id, source FROM sessions WHERE id = ?", ("a",)).fetchone()
    assert isinstance(row, sqlite3.Row)
    assert (row["id"], row[1], row["SOURCE"]) == ("a", "cli", "cli")
    assert dict(row) == {"id": "a", "source": "cli"}
    with pytest.raises(IndexError):
        row["nope"]


def test_repeated_fetchmany_goes_on(conn):
    cursor = conn.execute("SELECT id FROM sessions ORDER BY id")
    assert ids(cursor.fetchmany(2)) == ["a", "b"]
    assert ids(cursor.fetchmany(2)) == ["c"]
    assert cursor.fetchmany(2) == []


def test_fetches_share_one_position(conn):
    cursor = conn.execute("SELECT id FROM sessions ORDER BY id")
    assert cursor.fetchone()["id"] == "a"
    assert ids(cursor.fetchmany()) == ["b"]
    assert ids(cursor.fetchall()) == ["c"]
    assert cursor.fetchone() is None


def test_iteration(conn):
    cursor = conn.execute("SELECT id FROM sessions ORDER BY id")
    assert ids(cursor) == ["a", "b", "c"]
    assert list(cursor) == []


def test_description_names_the_columns(conn):
    cursor = conn.cursor().execute("SELECT id AS x, 1 FROM sessions")
    assert [column[0] for column in cursor.description] == ["x", "1"]


def test_named_parameters(conn):
    cursor = conn.execute("SELECT id FROM sessions WHERE source = :s", {"s": "tui"})
    assert ids(cursor) == ["b"]
    done = conn.execute("UPDATE sessions SET model = :m WHERE id = :i", {"m": "x", "i": "b"})
    assert done.rowcount == 1


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("PRAGMA foreign_keys", 1),
        ("pragma journal_mode", "wal"),
        ("PRAGMA user_version", 0),
        ("PRAGMA integrity_check", "ok"),
        ("PRAGMA table_info(schema_version)", 0),
        ("  -- the version\n SELECT version FROM schema_version", 11),
        ("/* * */ select version from schema_version", 11),
        ("VALUES (7)", 7),
        ("WITH n(x) AS (VALUES (7)) SELECT x FROM n", 7),
    ],
)
def test_reads(conn, sql, value):
    assert conn.execute(sql).fetchone()[0] == value


def test_read_sees_an_acknowledged_write_at_once(db, conn):
    for text in map(str, range(50)):
        db.set_meta("k", text)
        assert conn.execute("SELECT value FROM state_meta").fetchone()[0] == text


def test_question_about_an_index_brings_it_up_to_date(db, conn):
    message = db.append_message("a", "user", "walrus")
    sql = "SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'walrus'"
    assert [tuple(row) for row in conn.execute(sql)] == [(message,)]


def test_reader_refuses_sql_that_makes_no_sense(db, conn):
    with pytest.raises(sqlite3.OperationalError, match="no such column: nope"):
        conn.execute("SELECT nope FROM sessions")
    with pytest.raises(sqlite3.ProgrammingError):
        conn.execute("SELECT 1; SELECT 2")
    assert healthy(db)


# Writing.


def test_one_statement_is_one_committed_change(db, conn):
    done = conn.execute("UPDATE sessions SET ended_at = 5 WHERE source = ?", ("cli",))
    assert done.rowcount == 2
    conn.commit()
    assert db.get_session("a")["ended_at"] == 5.0


def test_commit_rollback_and_context_manager_are_harmless(db, conn):
    with db._lock, conn:
        conn.execute("UPDATE sessions SET model = 'x' WHERE id = 'b'")
        conn.rollback()
    conn.commit()
    assert db.get_session("b")["model"] == "x"
    assert not conn.in_transaction
    assert conn.isolation_level is None
    assert conn.row_factory is sqlite3.Row


def test_lastrowid(db, conn):
    sql = "INSERT INTO messages (session_id, role, timestamp) VALUES ('a', 'user', 1)"
    assert [conn.execute(sql).lastrowid for _ in range(2)] == [1, 2]


def test_returning_gives_named_rows(conn):
    cursor = conn.execute("UPDATE sessions SET model = 'x' RETURNING id, started_at AS t")
    rows = cursor.fetchall()
    assert sorted(row["id"] for row in rows) == ["a", "b", "c"]
    row = rows[0]
    assert (row[0], row["ID"], row["t"]) == (row["id"], row["id"], row[1])
    assert row.keys() == ["id", "t"]
    assert dict(row) == {"id": row[0], "t": row[1]}
    assert len(row) == 2
    with pytest.raises(IndexError):
        row["nope"]
    assert [column[0] for column in cursor.description] == ["id", "t"]


def test_bytes_travel_both_ways(conn):
    blob = bytes(range(256))
    sql = "INSERT INTO state_meta VALUES ('k', ?) RETURNING value"
    assert conn.execute(sql, (blob,)).fetchone()["value"] == blob
    assert conn.execute("SELECT value FROM state_meta WHERE value = ?", (blob,)).fetchone()


@pytest.mark.parametrize(
    "sql",
    [
        "WITH n(k) AS (VALUES ('k')) INSERT INTO state_meta SELECT k, 'v' FROM n",
        "with n(k) as (values ('k')) insert into state_meta select k, 'v' from n",
        "/* why */ INSERT INTO state_meta VALUES ('k', 'v')",
        "-- why\nINSERT INTO state_meta VALUES ('k', 'v')",
        "REPLACE INTO state_meta VALUES ('k', 'v')",
        "\n  insert into state_meta values ('k', 'v');",
    ],
)
def test_every_spelling_of_a_write_reaches_the_writer(db, conn, sql):
    conn.execute(sql)
    assert db.get_meta("k") == "v"


def test_with_can_update_and_delete(db, conn):
    conn.execute("WITH n(x) AS (VALUES ('c')) UPDATE sessions SET model = (SELECT x FROM n)")
    assert db.get_session("a")["model"] == "c"
    conn.execute("WITH n(x) AS (VALUES ('c')) DELETE FROM sessions WHERE id IN (SELECT x FROM n)")
    assert db.get_session("c") is None


def test_broken_rule_is_an_integrity_error_and_changes_nothing(db, conn):
    with pytest.raises(sqlite3.IntegrityError, match=r"^FOREIGN KEY constraint failed"):
        conn.execute("INSERT INTO messages (session_id, role, timestamp) VALUES ('?', 'u', 1)")
    assert db.message_count() == 0


def test_value_that_cannot_be_stored(db, conn):
    with pytest.raises((TypeError, sqlite3.ProgrammingError)):
        conn.execute("INSERT INTO state_meta VALUES ('k', ?)", (object(),))
    with pytest.raises(sqlite3.ProgrammingError):
        conn.execute("INSERT INTO state_meta VALUES (?, ?)", ("k",))
    assert db.get_meta("k") is None


def test_executemany_counts_every_row(db, conn):
    rows = ((str(n), "v") for n in range(30))
    assert conn.executemany("INSERT INTO state_meta VALUES (?, ?)", rows).rowcount == 30
    assert db.get_meta("29") == "v"


def test_executemany_keeps_nothing_when_one_row_fails(db, conn):
    with pytest.raises(sqlite3.IntegrityError):
        conn.executemany("INSERT INTO state_meta VALUES (?, 'v')", [("x",), ("y",), ("x",)])
    assert (db.get_meta("x"), db.get_meta("y")) == (None, None)


def test_executescript_runs_every_statement(db, conn):
    conn.executescript(
        """
        CREATE TABLE notes (text);
        -- a semicolon; in a comment
        CREATE TRIGGER noted AFTER INSERT ON notes BEGIN
            INSERT INTO state_meta VALUES (new.text, 'noted; twice');
        END;
        INSERT INTO notes VALUES ('x;y');
        """
    )
    assert db.get_meta("x;y") == "noted; twice"


def test_executescript_keeps_nothing_when_one_statement_fails(db, conn):
    with pytest.raises(sqlite3.OperationalError):
        conn.executescript("INSERT INTO state_meta VALUES ('x', 'v'); INSERT INTO nope VALUES (1);")
    assert db.get_meta("x") is None


# What is not open to callers.

REFUSED = [
    "BEGIN",
    "begin immediate",
    "COMMIT",
    "commit;",
    "END",
    "ROLLBACK",
    "SAVEPOINT s",
    "release s",
    "ROLLBACK TO s",
    "/* x */ BEGIN",
    "-- x\nBEGIN",
    "  -- x\n  /* y */\n begin",
    "--x\nSAVEPOINT s",
    "/**/COMMIT",
    "ATTACH ':memory:' AS other",
    "attach ':memory:' as other",
    "/**/ATTACH ':memory:' AS other",
    "DETACH other",
    "VACUUM",
    "PRAGMA foreign_keys = OFF",
    "pragma foreign_keys(0)",
    "PRAGMA case_sensitive_like = ON",
    "PRAGMA journal_mode = DELETE",
    "/**/ PRAGMA journal_mode = DELETE",
    "PRAGMA synchronous = OFF",
    "PRAGMA user_version = 4",
    "PRAGMA writable_schema = ON",
    "PRAGMA query_only = ON",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA main.wal_autocheckpoint = 1",
    "CREATE TEMP TABLE sessions AS SELECT * FROM main.sessions",
    "CREATE TEMPORARY VIEW messages AS SELECT 1 AS id",
    "CREATE TEMP TRIGGER t AFTER INSERT ON main.messages BEGIN SELECT RAISE(IGNORE); END",
    "INSERT INTO hermes_actor_meta VALUES ('x', 1)",
    "UPDATE hermes_actor_meta SET value = 99 WHERE key = 'epoch'",
    "DELETE FROM hermes_actor_receipts",
    "WITH n(x) AS (VALUES (1)) DELETE FROM hermes_actor_receipts",
    "DROP TABLE hermes_actor_receipts",
    "DROP INDEX hermes_actor_messages_time",
    "ALTER TABLE hermes_actor_receipts ADD COLUMN more",
    "ALTER TABLE hermes_actor_receipts RENAME TO other",
    "CREATE TRIGGER t AFTER UPDATE ON hermes_actor_meta BEGIN SELECT RAISE(ABORT, 'x'); END",
    "update HERMES_ACTOR_META set value = 99 where key = 'epoch'",
]


def lets_through(face, statements):
    """The statements that are not refused, with what happened instead."""
    outcomes = {sql: outcome(lambda sql=sql: repr(face.execute(sql))) for sql in statements}
    refused = f"{NotAllowed.__module__}.{NotAllowed.__name__}"
    return {sql: result for sql, result in outcomes.items() if refused not in result["classes"]}


def test_refused(db, conn):
    assert lets_through(conn, REFUSED) == {}
    assert healthy(db)


def test_refused_inside_a_transaction_too(db, conn):
    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        return lets_through(face, REFUSED)

    # On a busy machine so many statements may take longer than a transaction is given.
    while db.get_meta("k") is None:
        with contextlib.suppress(DeadlineExceeded):
            assert db._execute_write(work) == {}
    assert db.get_meta("k") == "v"


def test_refused_setting_does_not_reach_any_reader(db, conn):
    for _ in range(8):
        for pragma in ("case_sensitive_like = ON", "foreign_keys = OFF"):
            with pytest.raises(NotAllowed):
                conn.execute(f"PRAGMA {pragma}")
    assert db.resolve_session_id("A") == "a"
    assert conn.execute("PRAGMA foreign_keys").fetchone()[0] == 1


def test_what_belongs_to_the_writer_can_be_read(conn):
    row = conn.execute("SELECT value FROM hermes_actor_meta WHERE key = 'format'").fetchone()
    assert row["value"] == 1


def test_own_tables_cannot_be_changed_through_a_trigger(db, conn):
    with pytest.raises(NotAllowed):
        conn.executescript(
            """
            CREATE TRIGGER t AFTER INSERT ON state_meta BEGIN
                UPDATE hermes_actor_meta SET value = 99 WHERE key = 'epoch';
            END;
            INSERT INTO state_meta VALUES ('k', 'v');
            """
        )
    assert healthy(db)


def test_own_tables_cannot_be_changed_by_the_text_of_an_internal_statement(db, conn):
    """Python keeps compiled statements by their text, and those are not authorised again."""
    spy = Mock()
    set_internal(spy, "epoch", 1)
    (sql, _), _ = spy.execute.call_args
    with pytest.raises(NotAllowed):
        conn.execute(sql, ("epoch", 99))
    assert healthy(db)


def test_connection_cannot_be_closed(db, conn):
    with pytest.raises(NotAllowed):
        conn.close()
    assert healthy(db)


def test_no_connection_after_close(db):
    db.close()
    assert db._conn is None


# One transaction for several statements.


def test_statements_share_one_transaction(db, conn):
    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('x', '1')")
        face.executemany("INSERT INTO state_meta VALUES (?, '1')", [("y",), ("z",)])
        assert face.execute("SELECT COUNT(*) AS n FROM state_meta").fetchone()["n"] == 3
        assert db.get_meta("x") is None  # no other process sees it yet
        return "result"

    assert db._execute_write(work) == "result"
    assert [db.get_meta(key) for key in "xyz"] == ["1", "1", "1"]


def test_exception_undoes_everything_and_passes(db, conn):
    class Own(Exception):
        pass

    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('x', '1')")
        face.execute("CREATE TABLE notes (text)")
        raise Own

    with pytest.raises(Own):
        db._execute_write(work)
    assert db.get_meta("x") is None
    assert conn.execute("SELECT 1 FROM sqlite_master WHERE name = 'notes'").fetchall() == []
    assert healthy(db)


def test_failing_statement_undoes_everything_unless_it_is_caught(db, conn):
    def fails(face):
        face.execute("INSERT INTO state_meta VALUES ('x', '1')")
        face.execute("INSERT INTO state_meta VALUES ('x', '2')")

    def catches(face):
        with pytest.raises(sqlite3.IntegrityError):
            fails(face)

    with pytest.raises(sqlite3.IntegrityError):
        db._execute_write(fails)
    assert db.get_meta("x") is None
    db._execute_write(catches)
    assert db.get_meta("x") == "1"


def test_rows_of_a_transaction_by_name_and_index(db, conn):
    row = db._execute_write(
        lambda face: face.execute("SELECT id, source FROM sessions ORDER BY id").fetchone()
    )
    assert (row["id"], row[1], dict(row)) == ("a", "cli", {"id": "a", "source": "cli"})


@pytest.mark.parametrize(
    "call",
    [
        lambda db: db.append_message("a", "user", "x"),
        lambda db: db._conn.execute("UPDATE sessions SET model = 'x'"),
        lambda db: db._execute_write(lambda face: None),
        lambda db: db.vacuum(),
    ],
    ids=["method", "statement", "transaction", "vacuum"],
)
def test_write_of_the_same_thread_would_wait_for_itself(db, conn, call):
    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        with pytest.raises(NotAllowed):
            call(db)

    db._execute_write(work)
    assert db.get_meta("k") == "v"
    assert db.message_count() == 0
    assert healthy(db)


def test_reads_of_the_same_thread_go_on(db, conn):
    def work(face):
        face.execute("UPDATE sessions SET model = 'new' WHERE id = 'a'")
        return db.get_session("a")["model"], face.execute(
            "SELECT model FROM sessions WHERE id = 'a'"
        ).fetchone()[0]

    assert db._execute_write(work) == ("m", "new")


def test_write_of_another_thread_waits_and_succeeds(db, conn):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(outcome(lambda: db.append_message("a", "user", "after")))
    )

    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        thread.start()
        thread.join(IDLE_LIMIT / 4)
        face.execute("DELETE FROM state_meta WHERE key = 'nope'")
        return db.message_count(), list(results)

    assert db._execute_write(work) == (0, [])
    thread.join()
    assert results == [{"value": 1, "classes": [], "text": ""}]
    assert (db.get_meta("k"), db.message_count()) == ("v", 1)


def test_transaction_that_pauses_too_long_is_undone(db, conn):
    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        time.sleep(1.5 * IDLE_LIMIT)
        face.execute("INSERT INTO state_meta VALUES ('l', 'v')")

    with pytest.raises(DeadlineExceeded) as caught:
        db._execute_write(work)
    assert caught.value.executed == "no"
    assert (db.get_meta("k"), db.get_meta("l")) == (None, None)
    assert healthy(db)


def test_pause_before_the_commit_counts_too(db, conn):
    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        time.sleep(1.5 * IDLE_LIMIT)

    with pytest.raises(DeadlineExceeded):
        db._execute_write(work)
    assert db.get_meta("k") is None
    assert healthy(db)


def test_transaction_that_takes_too_long_in_all_is_undone(db, conn):
    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        for _ in range(round(10 * TOTAL_LIMIT / (IDLE_LIMIT / 4))):
            time.sleep(IDLE_LIMIT / 4)
            face.execute("SELECT 1")

    with pytest.raises(DeadlineExceeded):
        db._execute_write(work)
    assert db.get_meta("k") is None
    assert healthy(db)


def test_error_of_the_work_is_not_hidden_by_the_limits(db, conn):
    def work(face):
        face.execute("INSERT INTO state_meta VALUES ('k', 'v')")
        time.sleep(1.5 * IDLE_LIMIT)
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        db._execute_write(work)
    assert db.get_meta("k") is None


def test_late_end_of_one_transaction_does_not_disturb_the_next(db, conn):
    """A holder that overslept ends its transaction while another thread holds the next one."""
    began, ended = threading.Event(), threading.Event()
    results = []

    def other(face):
        began.set()
        for _ in range(8):
            face.execute("SELECT 1")
            if ended.wait(IDLE_LIMIT / 4):
                break
        with pytest.raises(NotAllowed):
            db.set_meta("nested", "x")

    thread = threading.Thread(
        target=lambda: results.append(outcome(lambda: db._execute_write(other)))
    )

    def oversleeps(face):
        thread.start()
        assert began.wait(60)
        face.execute("INSERT INTO state_meta VALUES ('stray', 'x')")

    with pytest.raises(DeadlineExceeded):
        db._execute_write(oversleeps)
    ended.set()
    thread.join()
    assert db.get_meta("stray") is None  # above all not through the other transaction
    assert results == [{"value": None, "classes": [], "text": ""}]
    assert db.get_meta("nested") is None


# Values that are larger than a frame.


LARGE = 3_000_000


def test_large_values_inside_a_transaction(db, conn):
    sql = "INSERT INTO state_meta VALUES (?, ?) RETURNING length(value)"

    def put(inner):
        first = inner.execute(sql, ("text", "x" * LARGE)).fetchone()[0]
        inner.execute("INSERT INTO state_meta VALUES (:k, :v)", {"k": "blob", "v": bytes(LARGE)})
        inner.execute("INSERT INTO state_meta VALUES ('small', 'v')")
        return first

    assert db._execute_write(put) == LARGE
    assert db.get_meta("text") == "x" * LARGE
    (blob,) = conn.execute("SELECT value FROM state_meta WHERE key = 'blob'").fetchone()
    assert blob == bytes(LARGE)
    assert db.get_meta("small") == "v"


def test_large_values_of_executemany(db, conn):
    rows = [(f"k{n}", f"{n}" * LARGE) for n in range(3)]
    assert conn.executemany("INSERT INTO state_meta VALUES (?, ?)", rows).rowcount == 3
    assert [db.get_meta(key) for key, _ in rows] == [value for _, value in rows]


def test_large_value_is_undone_with_its_transaction(db):
    def put_and_fail(inner):
        inner.execute("INSERT INTO state_meta VALUES ('k', ?)", ("x" * LARGE,))
        raise LookupError

    with pytest.raises(LookupError):
        db._execute_write(put_and_fail)
    assert db.get_meta("k") is None
    assert healthy(db)
