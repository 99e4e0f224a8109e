"""Chains of sessions on a server, and the replay form of a transcript."""

from __future__ import annotations

from sqlalchemy import and_, bindparam, select

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers
from hermes_actor.providers.sql.sessions.session_row import BY_ID, OF_SESSION
from hermes_actor.providers.sql.tables import messages, sessions
from hermes_actor.store import queries, replay
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions import lineage as file_lineage
from hermes_actor.store.sessions.session_tree import TreeNode, walk_family

__all__ = ["CONTINUES", "child", "compression_lineage", "compression_tip", "parent"]

parent, child = sessions.alias(), sessions.alias()
CONTINUES = and_(
    child.c.parent_session_id == parent.c.id,
    parent.c.end_reason == "compression",
    child.c.started_at >= parent.c.ended_at,
)
"""Condition: ``child`` is the continuation of ``parent`` after a compression."""

_NEXT_CONTINUATION = (
    select(child.c.id)
    .where(parent.c.id == bindparam("key"), CONTINUES)
    .order_by(child.c.started_at.desc(), child.c.place)
    .limit(1)
)
_PREVIOUS = select(parent.c.id).where(child.c.id == bindparam("key"), CONTINUES)
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


@answers(queries.compression_lineage)
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
    above = select(sessions.c.parent_session_id).where(BY_ID)
    return file_lineage.walk_to_root(
        session_id, lambda current: conn.scalar(above, {"key": current})
    )


@answers(queries.session_family)
def family(conn: ServerConnection, session_id: str) -> list[TreeNode]:
    """Return the tree of *session_id* depth first, children by start; at most 1,000 sessions."""
    facts = select(sessions.c.title, sessions.c.started_at, sessions.c.end_reason).where(BY_ID)
    children = (
        select(sessions.c.id)
        .where(sessions.c.parent_session_id == bindparam("key"))
        .order_by(sessions.c.started_at.desc(), sessions.c.id.desc())
    )
    return walk_family(
        root_to_tip(conn, session_id)[0],
        lambda current: next(iter(conn.tuples(facts, {"key": current})), None),
        lambda current: conn.column(children, {"key": current}),
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
