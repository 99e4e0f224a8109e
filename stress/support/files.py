"""Looks into database files from outside, with the standard library only."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def words(text: str) -> list[str]:
    return text.split()


SESSION_COLUMNS = words("""
    id source user_id model model_config system_prompt parent_session_id started_at ended_at
    end_reason message_count tool_call_count input_tokens output_tokens cache_read_tokens
    cache_write_tokens reasoning_tokens billing_provider billing_base_url billing_mode
    estimated_cost_usd actual_cost_usd cost_status cost_source pricing_version title
    api_call_count handoff_state handoff_platform handoff_error
""")
MESSAGE_COLUMNS = words("""
    id session_id role content tool_call_id tool_calls tool_name timestamp token_count
    finish_reason reasoning reasoning_content reasoning_details codex_reasoning_items
    codex_message_items
""")
INDEXES = {
    "idx_sessions_source",
    "idx_sessions_parent",
    "idx_sessions_started",
    "idx_messages_session",
    "idx_sessions_title_unique",
}
FTS_TABLES = ("messages_fts", "messages_fts_trigram")
TRIGGERS = {f"{table}_{event}" for table in FTS_TABLES for event in ("insert", "delete", "update")}


@contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold a write transaction on the file, as a foreign writer would."""
    with raw(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        finally:
            connection.rollback()


def query(path: Path, sql: str, *args: Any) -> list[tuple[Any, ...]]:
    for last in (False,) * 20 + (True,):
        try:
            with raw(path) as connection:
                return connection.execute(sql, args).fetchall()
        except sqlite3.OperationalError as error:
            # "vtable constructor failed": outside of a transaction FTS5 opens a table in one of its
            # own, and the actor has changed the schema in between.
            if last or error.sqlite_errorcode != sqlite3.SQLITE_SCHEMA:
                raise
    raise AssertionError("the last attempt returns or raises")


def columns(path: Path, table: str) -> list[str]:
    return [name for (name,) in query(path, "SELECT name FROM pragma_table_info(?)", table)]


def versions(path: Path) -> list[int]:
    return [v for (v,) in query(path, "SELECT version FROM schema_version ORDER BY rowid")]


def names(path: Path, kind: str, like: str = "%") -> set[str]:
    sql = "SELECT name FROM sqlite_master WHERE type = ? AND name LIKE ?"
    return {name for (name,) in query(path, sql, kind, like)}


def dump(path: Path, *, ours: bool = True) -> dict[str, Any]:
    """The schema and every row; without `ours`, what the store keeps for itself is left out.

    Shadow tables of the full-text indexes are left out too: how text is packed is SQLite's affair.
    """
    with raw(path) as connection:
        schema = [
            row
            for row in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
            if ours or not row[1].startswith("hermes_actor_")
        ]
        schema.sort(key=lambda row: (row[0], row[1]))
        shadow = re.compile(r"messages_fts(_trigram)?_(data|idx|content|docsize|config)")
        tables = [
            name for kind, name, *_ in schema if kind == "table" and not shadow.fullmatch(name)
        ]
        return {"schema": schema} | {
            name: connection.execute(f'SELECT * FROM "{name}" ORDER BY 1').fetchall()
            for name in tables
        }


def fts_rows(db: Any, table: str) -> list[tuple[int, str]]:
    """The indexed text through the store's own connection, which brings the index up to date."""
    rows = db._conn.execute(f"SELECT rowid, content FROM {table} ORDER BY rowid").fetchall()
    return [tuple(row) for row in rows]


def is_inline(path: Path, table: str) -> bool:
    ((sql,),) = query(path, "SELECT sql FROM sqlite_master WHERE name = ?", table)
    return "content=" not in re.sub(r"[\s'\"]", "", sql.lower())


def assert_current(path: Path) -> None:
    """The file has the version 11 schema."""
    assert versions(path) == [11]
    assert sorted(columns(path, "sessions")) == sorted(SESSION_COLUMNS)
    assert sorted(columns(path, "messages")) == sorted(MESSAGE_COLUMNS)
    assert columns(path, "state_meta") == ["key", "value"]
    assert names(path, "index", "idx_%") == INDEXES
    assert names(path, "trigger") == TRIGGERS
    for table in FTS_TABLES:
        assert columns(path, table) == ["content"]
        assert is_inline(path, table)
    assert (
        "trigram"
        in query(path, "SELECT sql FROM sqlite_master WHERE name = 'messages_fts_trigram'")[0][0]
    )
