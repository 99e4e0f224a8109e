"""Builds files as later releases left them: version 11 plus what each later version added."""

from pathlib import Path
from typing import Any

from support import old_files
from support.files import raw

NEWER: dict[int, tuple[str, ...]] = {
    13: (
        "ALTER TABLE messages ADD COLUMN platform_message_id TEXT",
        "ALTER TABLE messages ADD COLUMN observed INTEGER DEFAULT 0",
        "CREATE INDEX idx_messages_platform_msg_id ON messages(session_id, platform_message_id)"
        " WHERE platform_message_id IS NOT NULL",
    ),
    14: (
        "ALTER TABLE sessions ADD COLUMN cwd TEXT",
        "ALTER TABLE sessions ADD COLUMN rewind_count INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE sessions ADD COLUMN archived INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE messages ADD COLUMN active INTEGER NOT NULL DEFAULT 1",
        "CREATE TABLE compression_locks (session_id TEXT PRIMARY KEY, holder TEXT NOT NULL,"
        " acquired_at REAL NOT NULL, expires_at REAL NOT NULL)",
        "CREATE INDEX idx_compression_locks_expires ON compression_locks(expires_at)",
        "CREATE INDEX idx_messages_session_active ON messages(session_id, active, timestamp)",
    ),
    16: ("CREATE INDEX idx_sessions_source_id ON sessions(source, id)",),
    19: (
        *(
            f"ALTER TABLE sessions ADD COLUMN {column}"
            for column in (
                "session_key TEXT",
                "chat_id TEXT",
                "chat_type TEXT",
                "thread_id TEXT",
                "display_name TEXT",
                "origin_json TEXT",
                "expiry_finalized INTEGER DEFAULT 0",
                "git_branch TEXT",
                "git_repo_root TEXT",
                "compression_failure_cooldown_until REAL",
                "compression_failure_error TEXT",
            )
        ),
        "ALTER TABLE messages ADD COLUMN compacted INTEGER NOT NULL DEFAULT 0",
        "CREATE TABLE gateway_routing (scope TEXT NOT NULL DEFAULT '', session_key TEXT NOT NULL,"
        " entry_json TEXT NOT NULL, updated_at REAL NOT NULL, PRIMARY KEY (scope, session_key))",
        "CREATE INDEX idx_messages_active_null ON messages(active) WHERE active IS NULL",
        "CREATE INDEX idx_sessions_session_key ON sessions(session_key, started_at DESC)",
        "CREATE INDEX idx_sessions_gateway_peer ON sessions"
        "(source, user_id, chat_id, chat_type, thread_id, started_at DESC)",
        "CREATE INDEX idx_sessions_handoff_state ON sessions(handoff_state, started_at)",
    ),
    22: (
        "ALTER TABLE sessions ADD COLUMN compression_fallback_streak INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE sessions ADD COLUMN profile_name TEXT",
        "ALTER TABLE messages ADD COLUMN effect_disposition TEXT",
        "ALTER TABLE messages ADD COLUMN api_content TEXT",
        """CREATE TABLE session_model_usage (
            session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
            model TEXT NOT NULL,
            billing_provider TEXT NOT NULL DEFAULT '',
            billing_base_url TEXT NOT NULL DEFAULT '',
            billing_mode TEXT NOT NULL DEFAULT '',
            task TEXT NOT NULL DEFAULT '',
            api_call_count INTEGER NOT NULL DEFAULT 0,
            input_tokens INTEGER NOT NULL DEFAULT 0,
            output_tokens INTEGER NOT NULL DEFAULT 0,
            cache_read_tokens INTEGER NOT NULL DEFAULT 0,
            cache_write_tokens INTEGER NOT NULL DEFAULT 0,
            reasoning_tokens INTEGER NOT NULL DEFAULT 0,
            estimated_cost_usd REAL NOT NULL DEFAULT 0,
            actual_cost_usd REAL NOT NULL DEFAULT 0,
            cost_status TEXT,
            cost_source TEXT,
            first_seen REAL,
            last_seen REAL,
            PRIMARY KEY (session_id, model, billing_provider, billing_base_url, billing_mode, task)
        )""",
        """CREATE TABLE async_delegations (
            delegation_id TEXT PRIMARY KEY,
            origin_session TEXT NOT NULL,
            origin_ui_session_id TEXT NOT NULL DEFAULT '',
            parent_session_id TEXT,
            state TEXT NOT NULL,
            dispatched_at REAL NOT NULL,
            completed_at REAL,
            updated_at REAL NOT NULL,
            event_json TEXT,
            result_json TEXT,
            delivery_state TEXT NOT NULL DEFAULT 'pending',
            delivery_attempts INTEGER NOT NULL DEFAULT 0,
            delivered_at REAL,
            owner_pid INTEGER,
            owner_started_at INTEGER,
            task_json TEXT,
            delivery_claim TEXT,
            delivery_claimed_at REAL
        )""",
        "CREATE INDEX idx_session_model_usage_session ON session_model_usage(session_id)",
        "CREATE INDEX idx_session_model_usage_model ON session_model_usage(model)",
        "CREATE INDEX idx_async_delegations_delivery"
        " ON async_delegations(delivery_state, completed_at)",
    ),
}

FOREIGN_ROWS: dict[str, dict[str, Any]] = {
    "compression_locks": {
        "session_id": "s1",
        "holder": "pid 7",
        "acquired_at": 5.0,
        "expires_at": 6.0,
    },
    "gateway_routing": {"session_key": "k", "entry_json": "{}", "updated_at": 7.0},
    "async_delegations": {
        "delegation_id": "d1",
        "origin_session": "s1",
        "state": "running",
        "dispatched_at": 8.0,
        "updated_at": 9.0,
    },
}


def build(
    path: Path,
    version: int = 22,
    *,
    sessions: tuple[dict[str, Any], ...] = ({"id": "s1", "source": "cli", "started_at": 100.0},),
    messages: tuple[dict[str, Any], ...] = (),
    usage: tuple[dict[str, Any], ...] = (),
    active_default: bool = True,
) -> Path:
    """Make a file of `version` (12 to 22); each foreign table that it has gets one row."""
    old_files.build(path, 11, numbers=[version], sessions=(), messages=())
    with raw(path) as connection:
        connection.execute("BEGIN")
        for step in range(12, version + 1):
            for statement in NEWER.get(step, ()):
                if not active_default:
                    statement = statement.replace("active INTEGER NOT NULL DEFAULT 1", "active INT")
                connection.execute(statement)
        old_files.insert(connection, "sessions", *sessions)
        old_files.insert(connection, "messages", *messages)
        old_files.insert(connection, "session_model_usage", *usage)
        for table, row in FOREIGN_ROWS.items():
            if connection.execute("SELECT 1 FROM pragma_table_info(?)", (table,)).fetchone():
                old_files.insert(connection, table, row)
        connection.execute("COMMIT")
    return path


def message(content: str | None, at: float, **values: Any) -> dict[str, Any]:
    return {"session_id": "s1", "role": "user", "content": content, "timestamp": at, **values}
