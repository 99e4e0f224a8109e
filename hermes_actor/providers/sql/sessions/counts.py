"""Counts of sessions and messages, on a server."""

from __future__ import annotations

from typing import Any

from sqlalchemy import case, exists, func, select

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers
from hermes_actor.providers.sql.sessions.session_row import OF_SESSION
from hermes_actor.providers.sql.tables import archived, messages, sessions
from hermes_actor.store import queries
from hermes_actor.store.sessions.counts import ConversationCounts

__all__: list[str] = []


@answers(queries.visible_counts)
def visible_counts(conn: ServerConnection) -> tuple[dict[str, int], int]:
    """Return sessions by source, most frequent first, and messages, both without archived ones."""
    number = func.count()
    shown = ~exists().where(archived.c.session_id == sessions.c.id)
    by_source = (
        select(sessions.c.source, number)
        .where(shown)
        .group_by(sessions.c.source)
        .order_by(number.desc(), sessions.c.source)
    )
    visible = ~exists().where(archived.c.session_id == messages.c.session_id)
    total = select(func.count()).select_from(messages).where(visible)
    sources: list[Any] = conn.tuples(by_source)
    return dict(sources), int(conn.scalar(total))


@answers(queries.conversation_counts)
def conversation_counts(conn: ServerConnection, session_id: str) -> ConversationCounts:
    """Count the messages of a session, without its ``session_meta`` rows."""
    users = func.coalesce(func.sum(case((messages.c.role == "user", 1), else_=0)), 0)
    statement = select(func.count(), users, func.max(messages.c.timestamp)).where(
        OF_SESSION, messages.c.role != "session_meta"
    )
    ((total, asked, last),) = conn.tuples(statement, {"session": session_id})
    return ConversationCounts(int(total), int(asked), last)
