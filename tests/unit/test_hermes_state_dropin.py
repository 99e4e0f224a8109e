"""Programs written for `hermes_state` get our module under that name and notice nothing."""

import textwrap

import pytest
from support.processes import run_python

AS_HERMES_STATE = """
import json, sqlite3, sys
import hermes_actor.hermes_state
sys.modules["hermes_state"] = hermes_actor.hermes_state
def tell(value): print(json.dumps(value))
"""


def run(code, home, *args):
    return run_python(AS_HERMES_STATE + textwrap.dedent(code), *args, HERMES_HOME=str(home))


def test_typical_program(tmp_path):
    code = """
        from hermes_state import (
            DEFAULT_DB_PATH,
            SCHEMA_VERSION,
            SessionDB,
            apply_wal_with_fallback,
            format_session_db_unavailable,
            get_last_init_error,
        )

        db = SessionDB()
        db.create_session(session_id="s1", source="cli", model="m")
        db.append_message("s1", role="user", content="hello world")
        db.set_session_title("s1", "greeting")
        told = [
            SCHEMA_VERSION,
            str(DEFAULT_DB_PATH),
            db.db_path == DEFAULT_DB_PATH,
            DEFAULT_DB_PATH.stat().st_size > 0,
            [m["content"] for m in db.get_messages_as_conversation("s1")],
            [m["session_id"] for m in db.search_messages("world")],
            db.resolve_session_by_title("greeting"),
            get_last_init_error(),
            format_session_db_unavailable(),
        ]
        db.close()
        other = sqlite3.connect(":memory:")
        told.append(apply_wal_with_fallback(other, db_label="response_store.db"))
        tell(told)
    """
    assert run(code, tmp_path) == [
        11,
        str(tmp_path / "state.db"),
        True,
        True,
        ["hello world"],
        ["s1"],
        "s1",
        None,
        "Session database not available.",
        "wal",
    ]


def test_reports_read_rows_by_name_by_index_and_as_dicts(tmp_path):
    code = """
        from hermes_state import SessionDB

        db = SessionDB()
        db.create_session("s1", "cli", model="m")
        db.update_token_counts("s1", input_tokens=5, output_tokens=7)
        db.create_session("s2", "cli", model="m")
        cursor = db._conn.execute(
            "SELECT model, COUNT(*) AS n, SUM(input_tokens) AS total FROM sessions GROUP BY model"
        )
        row = cursor.fetchone()
        told = [dict(row), row["n"], row[0], row.keys(), cursor.fetchone()]
        told.append([r["id"] for r in db._conn.execute("SELECT id FROM sessions ORDER BY id")])
        told.append([tuple(r) for r in db._conn.execute(
            "SELECT id FROM sessions WHERE id = ?", ("s2",)
        ).fetchall()])
        told.append([r[0] for r in db._conn.execute(
            "SELECT id FROM sessions WHERE id = :id", {"id": "s1"}
        )])
        cursor = db._conn.cursor()
        cursor.execute("SELECT id FROM sessions ORDER BY id")
        told.append([c[0] for c in cursor.description])
        told.append([r["id"] for r in cursor.fetchmany(1)] + [r["id"] for r in cursor.fetchall()])
        told.append([
            db._conn.execute("PRAGMA foreign_keys").fetchone()[0],
            db._conn.execute("PRAGMA journal_mode").fetchone()[0],
            db._conn.row_factory is sqlite3.Row,
            db._conn.isolation_level,
            db._conn.in_transaction,
        ])
        db.close()
        tell(told)
    """
    assert run(code, tmp_path) == [
        {"model": "m", "n": 2, "total": 5},
        2,
        "m",
        ["model", "n", "total"],
        None,
        ["s1", "s2"],
        [["s2"]],
        ["s1"],
        ["id"],
        ["s1", "s2"],
        [1, "wal", True, None, False],
    ]


def test_writes_on_the_connection_are_seen_at_once(tmp_path):
    code = """
        from hermes_state import SessionDB

        db = SessionDB()
        db.create_session("s1", "cli")
        db.end_session("s1", "cli_close")
        with db._lock:
            cursor = db._conn.execute(
                "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = ?", ("s1",)
            )
            db._conn.commit()
        told = [cursor.rowcount, db.get_session("s1")["end_reason"]]
        db._conn.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
            ("s1", "user", "by hand", 5.0),
        )
        told += [[m["id"] for m in db.search_messages("hand")]]
        told += [db._conn.execute("SELECT count(*) FROM messages_fts").fetchone()[0]]
        try:
            db._conn.execute("UPDATE sessions SET parent_session_id = 'nope'")
        except sqlite3.IntegrityError as error:
            told += [str(error)]
        try:
            db._conn.execute("SELECT x FROM nowhere")
        except sqlite3.OperationalError as error:
            told += [str(error)]
        db.close()
        tell(told)
    """
    assert run(code, tmp_path) == [
        1,
        None,
        [1],
        1,
        "FOREIGN KEY constraint failed",
        "no such table: nowhere",
    ]


def test_execute_write_is_one_transaction(tmp_path):
    code = """
        from hermes_state import SessionDB

        db = SessionDB()
        db.create_session("s1", "cli")

        def good(conn):
            conn.execute("UPDATE sessions SET title = 'T' WHERE id = 's1'")
            row = conn.execute("SELECT title, id FROM sessions").fetchone()
            return [row["title"], row[1]]

        def bad(conn):
            conn.execute("UPDATE sessions SET title = 'other' WHERE id = 's1'")
            conn.execute("INSERT INTO state_meta VALUES ('k', 'v')")
            raise ZeroDivisionError("stop")

        def refused(conn):
            conn.execute("INSERT INTO state_meta VALUES ('k', 'v')")
            conn.execute("UPDATE sessions SET parent_session_id = 'nope'")

        told = [db._execute_write(good), db.get_session_title("s1")]
        for fn in (bad, refused):
            try:
                db._execute_write(fn)
            except (ZeroDivisionError, sqlite3.IntegrityError) as error:
                told.append(str(error))
        told += [db.get_session_title("s1"), db.get_meta("k")]
        db.set_meta("k", "works on")
        told.append(db.get_meta("k"))
        db.close()
        tell(told)
    """
    assert run(code, tmp_path) == [
        ["T", "s1"],
        "T",
        "stop",
        "FOREIGN KEY constraint failed",
        "T",
        None,
        "works on",
    ]


def test_closed_store_answers_as_the_peer_does(tmp_path):
    code = """
        from hermes_state import SessionDB

        db = SessionDB()
        db.create_session("s1", "cli")
        db.close()
        db.close()
        upkeep = db.maybe_auto_prune_and_vacuum()
        told = [
            db._conn,
            db.get_handoff_state("s1"),
            db.list_pending_handoffs(),
            db.resolve_resume_session_id("s1"),
            [upkeep["pruned"], bool(upkeep["error"])],
        ]
        for call in (lambda: db.get_session("s1"), lambda: db.create_session("s2", "cli")):
            try:
                call()
            except Exception:
                told.append("refused")
        tell(told)
    """
    assert run(code, tmp_path) == [None, None, [], "s1", [0, True], "refused", "refused"]


def test_patched_connect_fails_the_constructor_and_is_recorded(tmp_path):
    code = """
        from unittest import mock
        import hermes_state

        refusal = sqlite3.OperationalError("locking protocol")
        with mock.patch("hermes_state.sqlite3.connect", side_effect=refusal):
            try:
                hermes_state.SessionDB()
            except sqlite3.OperationalError as error:
                told = [str(error)]
        told.append(hermes_state.get_last_init_error())
        told.append("NFS/SMB" in hermes_state.format_session_db_unavailable())
        hermes_state.SessionDB().close()
        tell(told)
    """
    assert run(code, tmp_path) == ["locking protocol", "OperationalError: locking protocol", True]


def test_other_programs_read_the_file_while_it_is_open(tmp_path):
    code = """
        from hermes_state import DEFAULT_DB_PATH, SessionDB

        db = SessionDB()
        db.create_session("s1", "cli")
        reader = sqlite3.connect(f"file:{DEFAULT_DB_PATH}?mode=ro", uri=True)
        told = reader.execute("SELECT id FROM sessions").fetchall()
        db.create_session("s2", "cli")
        told += reader.execute("SELECT count(*) FROM sessions").fetchall()
        reader.close()
        db.close()
        tell(told)
    """
    assert run(code, tmp_path) == [["s1"], [2]]


@pytest.mark.parametrize("source", ["hermes_state", "hermes_actor.hermes_state"])
def test_both_names_give_one_module(tmp_path, source):
    code = """
        import importlib
        tell(importlib.import_module(sys.argv[1]).SessionDB.__name__)
    """
    assert run(code, tmp_path, source) == "SessionDB"
