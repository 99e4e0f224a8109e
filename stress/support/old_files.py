"""Builds database files of the versions 1 to 11 by hand, step by step, as the years did."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.files import raw

VERSION_1 = """
CREATE TABLE schema_version (version INTEGER NOT NULL);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    user_id TEXT,
    model TEXT,
    model_config TEXT,
    system_prompt TEXT,
    parent_session_id TEXT,
    started_at REAL NOT NULL,
    ended_at REAL,
    end_reason TEXT,
    message_count INTEGER DEFAULT 0,
    tool_call_count INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    FOREIGN KEY (parent_session_id) REFERENCES sessions(id)
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL,
    content TEXT,
    tool_call_id TEXT,
    tool_calls TEXT,
    tool_name TEXT,
    timestamp REAL NOT NULL,
    token_count INTEGER
);
CREATE INDEX idx_sessions_source ON sessions(source);
CREATE INDEX idx_sessions_parent ON sessions(parent_session_id);
CREATE INDEX idx_sessions_started ON sessions(started_at DESC);
CREATE INDEX idx_messages_session ON messages(session_id, timestamp);
"""

EXTERNAL_FTS = """
CREATE VIRTUAL TABLE {table} USING fts5(content, content=messages, content_rowid=id{option});
CREATE TRIGGER {table}_insert AFTER INSERT ON messages BEGIN
    INSERT INTO {table}(rowid, content) VALUES (new.id, new.content);
END;
CREATE TRIGGER {table}_delete AFTER DELETE ON messages BEGIN
    INSERT INTO {table}({table}, rowid, content) VALUES('delete', old.id, old.content);
END;
CREATE TRIGGER {table}_update AFTER UPDATE ON messages BEGIN
    INSERT INTO {table}({table}, rowid, content) VALUES('delete', old.id, old.content);
    INSERT INTO {table}(rowid, content) VALUES (new.id, new.content);
END;
INSERT INTO {table}({table}) VALUES ('rebuild');
"""

INLINE_FTS = """
CREATE VIRTUAL TABLE {table} USING fts5(content{option});
CREATE TRIGGER {table}_insert AFTER INSERT ON messages BEGIN
    INSERT INTO {table}(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' '
            || COALESCE(new.tool_calls, '')
    );
END;
CREATE TRIGGER {table}_delete AFTER DELETE ON messages BEGIN
    DELETE FROM {table} WHERE rowid = old.id;
END;
CREATE TRIGGER {table}_update AFTER UPDATE ON messages BEGIN
    DELETE FROM {table} WHERE rowid = old.id;
    INSERT INTO {table}(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' '
            || COALESCE(new.tool_calls, '')
    );
END;
"""

EXTERNAL_WORDS = EXTERNAL_FTS.format(table="messages_fts", option="")
EXTERNAL_TRIGRAM = EXTERNAL_FTS.format(table="messages_fts_trigram", option=", tokenize='trigram'")
INLINE_WORDS = INLINE_FTS.format(table="messages_fts", option="")
INLINE_TRIGRAM = INLINE_FTS.format(table="messages_fts_trigram", option=", tokenize='trigram'")

TITLE_INDEX = """
CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL;
"""

# Version -> columns that it added to `sessions` and to `messages`.
ADDED_COLUMNS: dict[int, tuple[tuple[str, ...], tuple[str, ...]]] = {
    2: ((), ("finish_reason TEXT",)),
    3: (("title TEXT",), ()),
    5: (
        (
            "cache_read_tokens INTEGER DEFAULT 0",
            "cache_write_tokens INTEGER DEFAULT 0",
            "reasoning_tokens INTEGER DEFAULT 0",
            "billing_provider TEXT",
            "billing_base_url TEXT",
            "billing_mode TEXT",
            "estimated_cost_usd REAL",
            "actual_cost_usd REAL",
            "cost_status TEXT",
            "cost_source TEXT",
            "pricing_version TEXT",
        ),
        (),
    ),
    6: ((), ("reasoning TEXT", "reasoning_details TEXT", "codex_reasoning_items TEXT")),
    7: ((), ("reasoning_content TEXT",)),
    8: (("api_call_count INTEGER DEFAULT 0",), ()),
    9: ((), ("codex_message_items TEXT",)),
    11: (("handoff_state TEXT", "handoff_platform TEXT", "handoff_error TEXT"), ()),
}

SESSIONS: tuple[dict[str, Any], ...] = (
    {
        "id": "s1",
        "source": "cli",
        "user_id": "u1",
        "model": "m1",
        "model_config": '{"a": 1}',
        "system_prompt": "sp",
        "started_at": 100.0,
        "ended_at": 200.0,
        "end_reason": "compression",
        "message_count": 2,
        "tool_call_count": 1,
        "input_tokens": 5,
        "output_tokens": 7,
        "title": "old title",
        "cache_read_tokens": 3,
        "billing_provider": "p",
        "estimated_cost_usd": 0.5,
        "api_call_count": 4,
    },
    {"id": "s2", "source": "telegram", "parent_session_id": "s1", "started_at": 200.0},
)
MESSAGES: tuple[dict[str, Any], ...] = (
    {
        "session_id": "s1",
        "role": "user",
        "content": "salt 北京烤鸭 pepper",
        "timestamp": 101.0,
        "token_count": 9,
    },
    {
        "session_id": "s1",
        "role": "assistant",
        "content": None,
        "tool_name": "OLDTOOLX",
        "tool_calls": "[1]",
        "timestamp": 102.0,
        "finish_reason": "tool_calls",
        "reasoning": "why",
        "reasoning_content": "because",
        "codex_message_items": "[2]",
    },
)


def build(
    path: Path,
    version: int,
    *,
    numbers: Iterable[int] | None = None,
    sessions: Iterable[dict[str, Any]] = SESSIONS,
    messages: Iterable[dict[str, Any]] = MESSAGES,
) -> Path:
    """Make a file of `version`; `numbers` are the rows of schema_version if they shall differ."""
    with raw(path) as connection:
        connection.execute("BEGIN")
        for statement in split(VERSION_1):
            connection.execute(statement)
        for step in range(2, version + 1):
            add_columns(connection, step)
        if version >= 4:
            connection.execute(TITLE_INDEX)
        if version >= 11:
            connection.execute("CREATE TABLE state_meta (key TEXT PRIMARY KEY, value TEXT)")
        words, trigram = (
            (INLINE_WORDS, INLINE_TRIGRAM) if version >= 11 else (EXTERNAL_WORDS, EXTERNAL_TRIGRAM)
        )
        for statement in split(words + trigram if version >= 10 else words):
            connection.execute(statement)
        insert(connection, "schema_version", *({"version": n} for n in numbers or [version]))
        insert(connection, "sessions", *sessions)
        insert(connection, "messages", *messages)
        connection.execute("COMMIT")
    return path


def split(script: str) -> list[str]:
    """The statements of a script (triggers hold semicolons of their own)."""
    statements, rest = [], ""
    for line in script.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            statements.append(rest)
            rest = ""
    return statements


def add_columns(connection: sqlite3.Connection, version: int) -> None:
    for table, added in zip(
        ("sessions", "messages"), ADDED_COLUMNS.get(version, ((), ())), strict=True
    ):
        for column in added:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")


def insert(connection: sqlite3.Connection, table: str, *rows: dict[str, Any]) -> None:
    """Insert rows, each with those of its keys that the table has."""
    known = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    for row in rows:
        keys = [key for key in known if key in row]
        connection.execute(
            f"INSERT INTO {table} ({', '.join(keys)}) VALUES ({', '.join('?' * len(keys))})",
            [row[key] for key in keys],
        )
