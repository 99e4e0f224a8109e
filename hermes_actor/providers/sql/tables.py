"""The tables of a store on a server: those of the file, column by column, and some of our own.

``place`` is the creation order of sessions, which a file knows as ``rowid``. Indexes for search are
the dialects' own. ``hermes_actor_changes`` holds the receipts, which make a change happen once
however often it is sent; subscribers read them, too.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    func,
)

from hermes_actor.providers.sql.types import StoredInteger, StoredReal, StoredText
from hermes_actor.store.columns import MESSAGES, SESSIONS, Form
from hermes_actor.store.columns import Column as ColumnOfFile

__all__ = [
    "COMMON", "FORMAT", "MESSAGE_COLUMNS", "SESSION_COLUMNS", "archived", "bindings",
    "changes", "chats", "followers", "messages", "metadata", "mode", "own_meta",
    "queued_titles", "routes", "seen", "sessions", "state_meta", "transcripts", "turn_waiters",
    "turns",
]  # fmt: skip

FORMAT = 4
"""Version of this schema, kept under ``format`` in ``hermes_actor_meta``.

Format 2: the words of a message are cut by the client, on every server. Format 3: tables of routes,
turns and transcripts. Format 4: the table of those who wait for a turn.
"""

# MySQL bounds an index entry to 3072 bytes, four for each character. A title has at most 100
# characters, an id of ours 22; the rest is room.
_KEY = 512
_PART_OF_KEY = 255

metadata = MetaData()


def _text(name: str, **options: Any) -> Column[Any]:
    return Column(name, StoredText(), **options)


def _key(name: str, *rules: Any, length: int = _KEY, **options: Any) -> Column[Any]:
    return Column(name, StoredText(length), *rules, **options)


_RULES: dict[str, tuple[Any, ...]] = {
    "parent_session_id": (ForeignKey("sessions.id"),),
    "session_id": (ForeignKey("sessions.id"),),
}
_TYPES = {Form.NUMBER: StoredReal, Form.COUNT: StoredInteger}


def _column(column: ColumnOfFile) -> Column[Any]:
    """Return the column of a server's table that holds what *column* of the file holds."""
    kind = _TYPES.get(column.form)
    stored = StoredText(_KEY if column.form is Form.KEY else None) if kind is None else kind()
    return Column(
        column.name,
        stored,
        *_RULES.get(column.name, ()),
        primary_key="PRIMARY KEY" in column.declared,
        nullable=not ("NOT NULL" in column.declared or "PRIMARY KEY" in column.declared),
        server_default="0" if "DEFAULT 0" in column.declared else None,
        index=column.name in ("parent_session_id", "started_at") or None,
    )


sessions = Table(
    "sessions",
    metadata,
    *map(_column, SESSIONS),
    Column("place", BigInteger, Identity(), nullable=False, unique=True, autoincrement=True),
    Index("idx_sessions_source", "source", "started_at"),
    Index("idx_sessions_title_unique", "title", unique=True),
)

messages = Table(
    "messages",
    metadata,
    Column("id", BigInteger, Identity(), primary_key=True, autoincrement=True),
    *(_column(column) for column in MESSAGES if column.name != "id"),
    Index("idx_messages_session", "session_id", "timestamp", "id"),
)

state_meta = Table("state_meta", metadata, _key("key", primary_key=True), _text("value"))

mode = Table(
    "telegram_dm_topic_mode",
    metadata,
    _key("chat_id", primary_key=True),
    _text("user_id", nullable=False),
    Column("enabled", StoredInteger(), nullable=False, server_default="1"),
    Column("activated_at", StoredReal(), nullable=False),
    Column("updated_at", StoredReal(), nullable=False),
    Column("has_topics_enabled", StoredInteger()),
    Column("allows_users_to_create_topics", StoredInteger()),
    Column("capability_checked_at", StoredReal()),
    _text("intro_message_id"),
    _text("pinned_message_id"),
)

bindings = Table(
    "telegram_dm_topic_bindings",
    metadata,
    _key("chat_id", primary_key=True, length=_PART_OF_KEY),
    _key("thread_id", primary_key=True, length=_PART_OF_KEY),
    _key("user_id", nullable=False, length=_PART_OF_KEY),
    _text("session_key", nullable=False),
    _key("session_id", ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    _text("managed_mode", nullable=False),
    Column("linked_at", StoredReal(), nullable=False),
    Column("updated_at", StoredReal(), nullable=False),
    Index("idx_telegram_dm_topic_bindings_session", "session_id", unique=True),
    Index("idx_telegram_dm_topic_bindings_user", "user_id", "chat_id"),
)

own_meta = Table(
    "hermes_actor_meta",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", String(255), nullable=False),
)

changes = Table(
    "hermes_actor_changes",
    metadata,
    Column("commit_no", BigInteger, Identity(), primary_key=True, autoincrement=True),
    Column("client", String(32), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("digest", String(32), nullable=False),
    Column("result", LargeBinary, nullable=False),
    Column("op", String(64), nullable=False),
    _key("session_id"),
    Column("at", DateTime, nullable=False, server_default=func.now()),
    Index("hermes_actor_changes_ticket", "client", "seq", unique=True),
)

followers = Table(
    "hermes_actor_followers",
    metadata,
    Column("client", String(32), primary_key=True),
    Column("until", DateTime, nullable=False),
)

archived = Table(
    "hermes_actor_archived",
    metadata,
    _key("session_id", primary_key=True),
    Column("archived_at", StoredReal(), nullable=False),
)

queued_titles = Table(
    "hermes_actor_titles",
    metadata,
    _key("session_id", primary_key=True),
    _text("title", nullable=False),
)

routes = Table(
    "hermes_actor_routes",
    metadata,
    _key("scope", primary_key=True, length=_PART_OF_KEY),
    _key("session_key", primary_key=True),
    _text("entry_json", nullable=False),
    Column("updated_at", StoredReal(), nullable=False),
    _key("session_id", nullable=False, index=True),
)

chats = Table(
    "hermes_actor_chats",
    metadata,
    _key("session_id", ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    _key("session_key", nullable=False, index=True),
)

seen = Table(
    "hermes_actor_seen",
    metadata,
    _key("session_id", ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    _key("message_key", primary_key=True, length=_PART_OF_KEY),
    Column("message_id", BigInteger, nullable=False),
)

transcripts = Table(
    "hermes_actor_transcripts",
    metadata,
    _key("folder", primary_key=True, length=_PART_OF_KEY),
    _key("session_id", ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    Column("last_id", BigInteger, nullable=False),
    Column("lines", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)

turns = Table(
    "hermes_actor_turns",
    metadata,
    Column("token", BigInteger, Identity(), primary_key=True, autoincrement=True),
    _key("root", nullable=False, unique=True),
    _key("session_id", nullable=False),
    _text("holder", nullable=False),
    _text("kind", nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("started", StoredReal(), nullable=False),
    _text("place", nullable=False),
    Column("taken_at", StoredReal(), nullable=False),
    Column("until", StoredReal(), nullable=False),
)

turn_waiters = Table(
    "hermes_actor_turn_waiters",
    metadata,
    Column("ticket", BigInteger, Identity(), primary_key=True, autoincrement=True),
    _key("root", nullable=False, index=True),
    _key("session_id", nullable=False),
    _text("holder", nullable=False),
    _text("kind", nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("started", StoredReal(), nullable=False),
    _text("place", nullable=False),
    Column("since", StoredReal(), nullable=False),
    Column("until", StoredReal(), nullable=False),
)

COMMON = (own_meta, changes, followers)
"""Tables that every store on a server needs: its facts, receipts, subscribers."""

SESSION_COLUMNS = tuple(column for column in sessions.c if column.name != "place")
MESSAGE_COLUMNS = tuple(messages.c)
