"""Rows of a saved log are read by the columns of the file that it belonged to."""

import json
import shutil
import sqlite3
from contextlib import closing

from hermes_actor import SessionDB
from hermes_actor.paths import columns_of_orphan
from hermes_actor.recovery.orphan_wal import _compare
from hermes_actor.store.schema import SCHEMA_SQL

KEPT = {"reasoning": "R", "reasoning_content": "RC", "reasoning_details": [{"d": 1}]}


def columns(conn, table):
    return [row[1] for row in conn.execute(f"PRAGMA table_info({table})")]


def test_order_of_columns_is_that_of_the_replaced_file(tmp_path):
    old, new = tmp_path / "old.db", tmp_path / "state.db"
    with closing(sqlite3.connect(old)) as conn:
        conn.executescript(SCHEMA_SQL)
        # As columns that came later by ALTER TABLE leave it.
        conn.execute("ALTER TABLE messages DROP COLUMN reasoning_content")
        conn.execute("ALTER TABLE messages ADD COLUMN reasoning_content TEXT")
        conn.commit()
        order = {table: columns(conn, table) for table in ("sessions", "messages")}
    log = tmp_path / "state.db.orphan-wal.1"
    with closing(SessionDB(old, mode="embedded")) as db:
        db.create_session("s", "cli")
        db.append_message("s", "assistant", "hi", **KEPT)
        shutil.copy(f"{old}-wal", log)
    SessionDB(new, mode="embedded").close()
    columns_of_orphan(log).write_text(json.dumps(order))
    with closing(sqlite3.connect(new)) as conn:
        assert columns(conn, "messages") != order["messages"]
        lacking = _compare(conn, log)
    (message,) = lacking.sessions[0].messages
    found = (message.reasoning, message.reasoning_content, message.reasoning_details)
    assert found == ("R", "RC", '[{"d": 1}]')
    assert lacking.unreadable == 0
