"""Telegram topic mode: tables created on demand, topics bound to sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import hermes_protocol.operations as ops
from hermes_actor.errors import TopicLinked
from hermes_actor.sqlite import Connection, sqlite3
from hermes_actor.store import queries
from hermes_actor.store.meta import get_meta, set_meta
from hermes_actor.store.registry import answers, applies
from hermes_actor.store.rows import Row, first, scalar, upsert
from hermes_actor.store.schema import TOPICS_INDEX_SQL, TOPICS_SQL, TOPICS_VERSION, statements

__all__ = [
    "KEPT", "VERSION_KEY", "binding", "binding_row", "has_topics", "is_linked", "linked",
    "mode_enabled", "mode_row",
]  # fmt: skip

R = TypeVar("R")

_MODE = "telegram_dm_topic_mode"
_BINDINGS = "telegram_dm_topic_bindings"
VERSION_KEY = "telegram_dm_topic_schema_version"
KEPT = ("activated_at", "linked_at")
"""Columns that a second activation or binding does not change."""


def has_topics(conn: Connection, table: str = _BINDINGS) -> bool:
    """Return True if the tables exist; reading never creates them."""
    return bool(
        scalar(conn, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
    )


@applies(ops.TopicsMigrate)
def migrate(conn: Connection, _op: ops.TopicsMigrate) -> None:
    """Create the tables of topic mode, or bring them up to date; bindings are kept. Idempotent."""
    stored = get_meta(conn, VERSION_KEY)
    # The steady state costs one look and no write: every bind comes through here.
    if stored == TOPICS_VERSION and has_topics(conn) and has_topics(conn, _MODE):
        return
    create_mode, create_bindings = statements(TOPICS_SQL)
    conn.execute(create_mode)
    conn.execute(create_bindings)
    version = int(stored) if stored is not None and stored.isdigit() else 0
    if version < int(TOPICS_VERSION) and not _cascades(conn):
        conn.execute(f"ALTER TABLE {_BINDINGS} RENAME TO {_BINDINGS}_old")
        conn.execute(create_bindings)
        columns = [row[1] for row in conn.execute(f"PRAGMA table_info({_BINDINGS})")]
        old = {row[1] for row in conn.execute(f"PRAGMA table_info({_BINDINGS}_old)")}
        kept = ", ".join(name for name in columns if name in old)
        conn.execute(f"INSERT INTO {_BINDINGS} ({kept}) SELECT {kept} FROM {_BINDINGS}_old")
        conn.execute(f"DROP TABLE {_BINDINGS}_old")
    for statement in statements(TOPICS_INDEX_SQL):
        conn.execute(statement)
    set_meta(conn, ops.MetaSet(key=VERSION_KEY, value=TOPICS_VERSION))


def _cascades(conn: Connection) -> bool:
    keys = conn.execute(f"PRAGMA foreign_key_list({_BINDINGS})").fetchall()
    return any(key[2] == "sessions" and key[6] == "CASCADE" for key in keys)


@applies(ops.TopicsEnable)
def enable(conn: Connection, op: ops.TopicsEnable) -> None:
    """Switch topic mode on for a chat, creating the tables. The first activation time is kept."""
    migrate(conn, ops.TopicsMigrate())
    upsert(conn, _MODE, mode_row(op), ("chat_id",), KEPT)


def mode_row(op: ops.TopicsEnable) -> Row:
    """Return the row of a chat in which topic mode is switched on."""
    return {
        "chat_id": op.chat_id,
        "user_id": op.user_id,
        "enabled": 1,
        "activated_at": op.now,
        "updated_at": op.now,
        "has_topics_enabled": op.has_topics_enabled,
        "allows_users_to_create_topics": op.allows_users_to_create_topics,
        "capability_checked_at": op.now,
    }


@applies(ops.TopicsDisable)
def disable(conn: Connection, op: ops.TopicsDisable) -> None:
    """Switch topic mode off for a chat; ``clear_bindings`` also removes its bindings.

    Harmless if the tables do not exist.
    """
    if has_topics(conn, _MODE):
        conn.execute(
            f"UPDATE {_MODE} SET enabled = 0, updated_at = ? WHERE chat_id = ?",
            (op.now, op.chat_id),
        )
    if op.clear_bindings and has_topics(conn):
        conn.execute(f"DELETE FROM {_BINDINGS} WHERE chat_id = ?", (op.chat_id,))


@applies(ops.TopicsBind)
def bind(conn: Connection, op: ops.TopicsBind) -> None:
    """Bind a topic to a session, in place of the topic's earlier one.

    Raises :class:`TopicLinked` if another topic holds the session. A session that does not exist
    violates the foreign key.
    """
    migrate(conn, ops.TopicsMigrate())
    other = first(
        conn,
        f"SELECT chat_id, thread_id FROM {_BINDINGS} WHERE session_id = ?"
        " AND NOT (chat_id = ? AND thread_id = ?)",
        (op.session_id, op.chat_id, op.thread_id),
    )
    if other is not None:
        raise linked(op, other)
    upsert(conn, _BINDINGS, binding_row(op), ("chat_id", "thread_id"), KEPT)


def binding_row(op: ops.TopicsBind) -> Row:
    """Return the row that binds a topic to a session."""
    values = {name: getattr(op, name) for name in op.__struct_fields__ if name != "now"}
    return values | {"linked_at": op.now, "updated_at": op.now}


def linked(op: ops.TopicsBind, other: Row) -> TopicLinked:
    """Return the error for a session that the topic *other* holds."""
    return TopicLinked(
        f"session {op.session_id} is already linked to topic {other['thread_id']}"
        f" of chat {other['chat_id']}"
    )


@answers(queries.topic_mode_enabled)
def mode_enabled(conn: Connection, chat_id: str, user_id: str) -> bool:
    """Return True if topic mode is on for this chat and user."""
    sql = f"SELECT enabled FROM {_MODE} WHERE chat_id = ? AND user_id = ?"
    return bool(_if_there(scalar, conn, sql, (chat_id, user_id)))


@answers(queries.topic_binding)
def binding(conn: Connection, chat_id: str, thread_id: str) -> Row | None:
    """Return the binding of a topic; ``None`` if there is none."""
    sql = f"SELECT * FROM {_BINDINGS} WHERE chat_id = ? AND thread_id = ?"
    return _if_there(first, conn, sql, (chat_id, thread_id))


@answers(queries.is_linked_to_topic)
def is_linked(conn: Connection, session_id: str) -> bool:
    """Return True if a topic is bound to the session."""
    sql = f"SELECT 1 FROM {_BINDINGS} WHERE session_id = ?"
    return _if_there(scalar, conn, sql, (session_id,)) is not None


def _if_there(
    fetch: Callable[[Connection, str, tuple[str, ...]], R],
    conn: Connection,
    sql: str,
    parameters: tuple[str, ...],
) -> R | None:
    """Return what *fetch* returns; ``None`` if the tables are absent. Asking first costs double."""
    try:
        return fetch(conn, sql, parameters)
    except sqlite3.OperationalError:
        if has_topics(conn) and has_topics(conn, _MODE):
            raise
        return None
