"""The file format: every table, index and trigger of schema version 11, and our own.

The names and shapes of the first part are shared with other programs and with the past; they are
facts, not choices. What hermes-actor adds begins with ``hermes_actor_`` and is additive: another
program may ignore all of it.
"""

from __future__ import annotations

import functools
import re

from hermes_actor.store.columns import MESSAGES, SESSIONS, create_table

__all__ = [
    "COMMON_OWN_SQL", "DEFERRED_INDEX_SQL", "FORMER_INDEXES", "FTS_SHAPE", "FTS_SQL",
    "FTS_TRIGGERS", "FTS_TRIGRAM_SQL", "INDEXED_TEXT", "LEFTOVER", "NEWEST_KNOWN_VERSION",
    "NOT_ASCII_TOOL", "NUL_INSIDE", "OWN_INDEXES", "OWN_SQL", "PLAIN_TABLES", "SCHEMA_SQL",
    "SCHEMA_VERSION", "TOPICS_INDEX_SQL", "TOPICS_SQL", "TOPICS_VERSION", "canonical", "statements",
]  # fmt: skip

SCHEMA_VERSION = 11

NEWEST_KNOWN_VERSION = 22
"""The newest version that other programs gave to a file with which this build was tested."""

PLAIN_TABLES = ("schema_version", "sessions", "messages", "state_meta")

SCHEMA_SQL = f"""
CREATE TABLE IF NOT EXISTS schema_version (
    version INTEGER NOT NULL
);

{create_table("sessions", SESSIONS, "FOREIGN KEY (parent_session_id) REFERENCES sessions(id)")}

{create_table("messages", MESSAGES)}

CREATE TABLE IF NOT EXISTS state_meta (
    key TEXT PRIMARY KEY,
    value TEXT
);

CREATE INDEX IF NOT EXISTS idx_sessions_source ON sessions(source);
CREATE INDEX IF NOT EXISTS idx_sessions_parent ON sessions(parent_session_id);
CREATE INDEX IF NOT EXISTS idx_sessions_started ON sessions(started_at DESC);
CREATE INDEX IF NOT EXISTS idx_messages_session ON messages(session_id, timestamp);
"""

# The title column may be missing in an old file, so its index comes after reconciliation.
DEFERRED_INDEX_SQL = (
    "CREATE UNIQUE INDEX IF NOT EXISTS idx_sessions_title_unique"
    " ON sessions(title) WHERE title IS NOT NULL"
)

INDEXED_TEXT = (
    "COALESCE({0}content, '') || ' ' || COALESCE({0}tool_name, '') || ' ' ||"
    " COALESCE({0}tool_calls, '')"
)
"""The text that both full-text tables hold for a message; ``{0}`` is the row's prefix."""


def _fts_sql(table: str, options: str) -> str:
    text = INDEXED_TEXT.format("new.")
    return f"""
CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING fts5(content{options});

CREATE TRIGGER IF NOT EXISTS {table}_insert AFTER INSERT ON messages BEGIN
    INSERT INTO {table}(rowid, content) VALUES (new.id, {text});
END;

CREATE TRIGGER IF NOT EXISTS {table}_delete AFTER DELETE ON messages BEGIN
    DELETE FROM {table} WHERE rowid = old.id;
END;

CREATE TRIGGER IF NOT EXISTS {table}_update AFTER UPDATE ON messages BEGIN
    DELETE FROM {table} WHERE rowid = old.id;
    INSERT INTO {table}(rowid, content) VALUES (new.id, {text});
END;
"""


FTS_SQL = _fts_sql("messages_fts", "")
FTS_TRIGRAM_SQL = _fts_sql("messages_fts_trigram", ", tokenize='trigram'")

FTS_TRIGGERS = tuple(
    f"{table}_{event}"
    for table in ("messages_fts", "messages_fts_trigram")
    for event in ("insert", "delete", "update")
)

TOPICS_VERSION = "2"

TOPICS_SQL = """
CREATE TABLE IF NOT EXISTS telegram_dm_topic_mode (
    chat_id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL,
    enabled INTEGER NOT NULL DEFAULT 1,
    activated_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    has_topics_enabled INTEGER,
    allows_users_to_create_topics INTEGER,
    capability_checked_at REAL,
    intro_message_id TEXT,
    pinned_message_id TEXT
);

CREATE TABLE IF NOT EXISTS telegram_dm_topic_bindings (
    chat_id TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    user_id TEXT NOT NULL,
    session_key TEXT NOT NULL,
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    managed_mode TEXT NOT NULL DEFAULT 'auto',
    linked_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (chat_id, thread_id)
);
"""

TOPICS_INDEX_SQL = """
CREATE UNIQUE INDEX IF NOT EXISTS idx_telegram_dm_topic_bindings_session
    ON telegram_dm_topic_bindings(session_id);
CREATE INDEX IF NOT EXISTS idx_telegram_dm_topic_bindings_user
    ON telegram_dm_topic_bindings(user_id, chat_id);
"""

COMMON_OWN_SQL = """
CREATE TABLE IF NOT EXISTS hermes_actor_meta (
    key TEXT PRIMARY KEY,
    value
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS hermes_actor_receipts (
    client BLOB NOT NULL,
    seq INTEGER NOT NULL,
    commit_no INTEGER NOT NULL,
    digest BLOB NOT NULL,
    result BLOB NOT NULL,
    PRIMARY KEY (client, seq)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS hermes_actor_stage (
    client BLOB NOT NULL,
    key INTEGER NOT NULL,
    part INTEGER NOT NULL,
    commit_no INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (client, key, part)
) WITHOUT ROWID;
"""
"""Tables that every kind of file needs: the order of changes, receipts, parts of operations."""

OWN_SQL = f"""{COMMON_OWN_SQL}
CREATE TABLE IF NOT EXISTS hermes_actor_archived (
    session_id TEXT PRIMARY KEY,
    archived_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS hermes_actor_titles (
    session_id TEXT PRIMARY KEY,
    title TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS hermes_actor_stale (
    aside INTEGER NOT NULL,
    id INTEGER NOT NULL,
    PRIMARY KEY (aside, id)
) WITHOUT ROWID;
"""

LEFTOVER = "hermes_actor_leftover_"
"""Names of tables that hold what a replaced full-text index kept; the owner empties them."""

NUL_INSIDE = "instr(content, char(0)) > 1"
"""Text with a NUL that is not its first character: trigrams end there, LIKE too."""

NOT_ASCII_TOOL = "tool_name GLOB '*[^ -~]*'"
"""Name of a tool with any character that is not printable ASCII, every CJK character included."""

OWN_INDEXES = {
    # Newest sessions of one source without sorting all of them.
    "hermes_actor_sessions_source": "sessions(source, started_at DESC)",
    # Latest activity first, answered from the index alone.
    "hermes_actor_messages_time": "messages(timestamp, session_id)",
    # The rare tool names that a short CJK term, which no trigram covers, can be in. All others
    # would cost a page in every fourth change.
    "hermes_actor_messages_tool_cjk": f"messages(tool_name) WHERE {NOT_ASCII_TOOL}",
    # The rare texts with a NUL inside, where the trigram index ends too early.
    "hermes_actor_messages_nul": f"messages(id) WHERE {NUL_INSIDE}",
}
"""Extra indexes that the owner adds. Every query is correct without them."""

FORMER_INDEXES = ("hermes_actor_messages_tool",)
"""Extra indexes of earlier builds, which only cost by now; the owner drops them."""

_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|\w+|[^\s\w]")


@functools.lru_cache(maxsize=64)  # of a few objects, each time a guest has written
def canonical(sql: str) -> str:
    """Return one spelling for DDL that differs only in blanks, letter case and IF NOT EXISTS."""
    tokens = (t if t[0] in "'\"" else t.lower() for t in _TOKEN.findall(sql))
    text = " ".join(tokens)
    return text.replace("if not exists ", "").removesuffix(" ;")


def statements(script: str) -> list[str]:
    """Return the single statements of one of our scripts, to run inside an open transaction."""
    found, pending = [], ""
    for part in script.split(";"):
        pending += part
        # A trigger body holds semicolons; its statement ends with END.
        if "CREATE TRIGGER" in pending and not pending.rstrip().endswith("END"):
            pending += ";"
            continue
        if pending.strip():
            found.append(pending.strip())
        pending = ""
    return found


FTS_SHAPE: dict[str, str] = {
    match.group(1): canonical(statement)
    for statement in statements(FTS_SQL) + statements(FTS_TRIGRAM_SQL)
    if (match := re.match(r"CREATE (?:VIRTUAL TABLE|TRIGGER) IF NOT EXISTS (\w+)", statement))
}
"""Canonical text of both full-text tables and their six triggers, by name."""
