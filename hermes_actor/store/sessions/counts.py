"""Counts of sessions and messages."""

from __future__ import annotations

from typing import NamedTuple

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.registry import answers
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema_features import features_of

__all__ = [
    "ConversationCounts", "PlainCounts", "StoreCounts", "conversation_counts", "last_active",
    "plain_counts", "store_counts", "visible_counts",
]  # fmt: skip


class StoreCounts(NamedTuple):
    """Everything in a store, archived sessions included."""

    sessions: int
    messages: int


class PlainCounts(NamedTuple):
    """Everything in a plain file, as far as it is known without reading all of it."""

    tables: int


class ConversationCounts(NamedTuple):
    """Counts of the messages of one session, without its ``session_meta`` rows."""

    messages: int
    user_messages: int
    last: float | None
    """Time of the newest message."""


def store_counts(conn: Connection) -> StoreCounts:
    """Count all sessions and messages, archived and hidden ones included."""
    return StoreCounts(
        scalar(conn, "SELECT COUNT(*) FROM sessions"), scalar(conn, "SELECT COUNT(*) FROM messages")
    )


def plain_counts(conn: Connection) -> PlainCounts:
    """Count the tables that are neither ours nor SQLite's own."""
    sql = (
        "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table'"
        " AND name NOT GLOB 'hermes_actor_*' AND name NOT GLOB 'sqlite_*'"
    )
    return PlainCounts(scalar(conn, sql))


@answers(queries.visible_counts)
def visible_counts(conn: Connection) -> tuple[dict[str, int], int]:
    """Return sessions by source, most frequent first, and messages; neither counts archived ones.

    All messages are counted from one index, and those of the few archived sessions subtracted.
    """
    archived = features_of(conn).is_archived
    sources = conn.execute(
        f"SELECT s.source, COUNT(*) AS n FROM sessions s WHERE NOT {archived}"
        " GROUP BY s.source ORDER BY n DESC, s.source"
    ).fetchall()
    messages = scalar(conn, "SELECT COUNT(*) FROM messages")
    if scalar(conn, f"SELECT EXISTS (SELECT 1 FROM sessions s WHERE {archived})"):
        messages -= scalar(
            conn,
            "SELECT COUNT(*) FROM messages m JOIN sessions s ON s.id = m.session_id"
            f" WHERE {archived}",
        )
    return dict(sources), messages


@answers(queries.conversation_counts)
def conversation_counts(conn: Connection, session_id: str) -> ConversationCounts:
    """Count the messages of a session, without its ``session_meta`` rows."""
    rows = conn.execute(
        "SELECT COUNT(*), COALESCE(SUM(role = 'user'), 0), MAX(timestamp) FROM messages"
        " WHERE session_id = ? AND role != 'session_meta'",
        (session_id,),
    ).fetchall()
    return ConversationCounts(*rows[0])


def last_active(conn: Connection, session_id: str) -> float | None:
    """Return the time of the newest message of a session; ``None`` if it has none."""
    newest: float | None = scalar(
        conn, "SELECT MAX(timestamp) FROM messages WHERE session_id = ?", (session_id,)
    )
    return newest
