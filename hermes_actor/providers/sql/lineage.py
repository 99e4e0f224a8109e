"""Chains of sessions on a server, and the replay form of a transcript."""

from __future__ import annotations

from sqlalchemy import bindparam, select

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers
from hermes_actor.providers.sql.tables import messages, sessions
from hermes_actor.store import lineage as file_lineage
from hermes_actor.store import queries
from hermes_actor.store import replay as replay
from hermes_actor.store.rows import Row

__all__ = ["BY_ID", "OF_SESSION", "compression_lineage", "compression_tip"]

BY_ID = sessions.c.id == bindparam("key")
"""``= NULL`` for ``None``, and so no row, as in SQLite."""
OF_SESSION = messages.c.session_id == bindparam("session")

_parent = sessions.alias()
_child = sessions.alias()

_NEXT_CONTINUATION = (
    select(_child.c.id)
    .join(_parent, _child.c.parent_session_id == _parent.c.id)
    .where(
        _parent.c.id == bindparam("key"),
        _parent.c.end_reason == "compression",
        _child.c.started_at >= _parent.c.ended_at,
    )
    .order_by(_child.c.started_at.desc(), _child.c.place)
    .limit(1)
)
_PREVIOUS = (
    select(_parent.c.id)
    .join(_child, _child.c.parent_session_id == _parent.c.id)
    .where(
        _child.c.id == bindparam("key"),
        _parent.c.end_reason == "compression",
        _child.c.started_at >= _parent.c.ended_at,
    )
)
_NEWEST_CHILD = (
    select(sessions.c.id)
    .where(sessions.c.parent_session_id == bindparam("key"))
    .order_by(sessions.c.started_at.desc(), sessions.c.id.desc())
    .limit(1)
)


@answers(queries.compression_tip)
def compression_tip(conn: ServerConnection, session_id: str | None) -> str | None:
    """Return the last session of the chain that begins at *session_id*, perhaps itself."""
    return file_lineage.walk_to_tip(
        session_id, lambda current: conn.scalar(_NEXT_CONTINUATION, {"key": current})
    )


def compression_lineage(conn: ServerConnection, session_id: str) -> list[str]:
    """Return the whole chain of continuations that *session_id* belongs to, root first."""
    return file_lineage.walk_lineage(
        session_id,
        lambda current: conn.scalar(_PREVIOUS, {"key": current}),
        lambda current: conn.scalar(_NEXT_CONTINUATION, {"key": current}),
    )


@answers(queries.resume_target)
def resume_target(conn: ServerConnection, session_id: str) -> str:
    """Return the first session with a message from *session_id* down; itself if there is none."""
    any_message = select(messages.c.id).where(OF_SESSION).limit(1)
    return file_lineage.walk_to_messages(
        session_id,
        lambda current: conn.scalar(any_message, {"session": current}) is not None,
        lambda current: conn.scalar(_NEWEST_CHILD, {"key": current}),
    )


@answers(queries.lineage_root_to_tip)
def root_to_tip(conn: ServerConnection, session_id: str) -> list[str]:
    """Return the ancestors of a session, root first, the session itself last."""
    parent = select(sessions.c.parent_session_id).where(BY_ID)
    return file_lineage.walk_to_root(
        session_id, lambda current: conn.scalar(parent, {"key": current})
    )


@answers(queries.conversation)
def conversation(conn: ServerConnection, session_id: str, include_ancestors: bool) -> list[Row]:
    """Return the messages of a session, or of its parent chain too, as a model gets them."""
    chain = root_to_tip(conn, session_id) if include_ancestors else [session_id]
    rows = conn.rows(
        select(*(messages.c[name] for name in replay.COLUMNS))
        .where(messages.c.session_id.in_(chain))
        .order_by(messages.c.id)
    )
    return replay.replayed(rows, include_ancestors)
