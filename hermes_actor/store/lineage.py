"""Chains of sessions: parents upward, continuations downward.

A *compression edge* joins a parent that ended with ``compression`` to a child that started at or
after that end. Children that started earlier are delegates and are not followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor.store.rows import scalar

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["compression_lineage", "compression_tip", "resume_target", "root_to_tip"]

# Bounds end the walk on a cyclic lineage, which other programs can write.
_MAX_TIP_STEPS = 100
_MAX_RESUME_STEPS = 32
_MAX_ANCESTORS = 100

_NEXT_CONTINUATION = """
    SELECT c.id FROM sessions p JOIN sessions c ON c.parent_session_id = p.id
    WHERE p.id = ? AND p.end_reason = 'compression' AND c.started_at >= p.ended_at
    ORDER BY c.started_at DESC LIMIT 1
"""

_PREVIOUS = """
    SELECT p.id FROM sessions c JOIN sessions p ON p.id = c.parent_session_id
    WHERE c.id = ? AND p.end_reason = 'compression' AND c.started_at >= p.ended_at
"""


def compression_tip(conn: Connection, session_id: str | None) -> str | None:
    """The last session of the chain that begins at *session_id*."""
    current = session_id
    for _ in range(_MAX_TIP_STEPS):
        following = scalar(conn, _NEXT_CONTINUATION, (current,))
        if following is None:
            break
        current = following
    return current


def compression_lineage(conn: Connection, session_id: str) -> list[str]:
    """The whole chain of continuations that *session_id* belongs to, root first."""
    root = session_id
    for _ in range(_MAX_TIP_STEPS):
        parent = scalar(conn, _PREVIOUS, (root,))
        if parent is None or parent == session_id:
            break
        root = parent
    chain = [root]
    for _ in range(_MAX_TIP_STEPS):
        following = scalar(conn, _NEXT_CONTINUATION, (chain[-1],))
        if following is None or following in chain:
            break
        chain.append(following)
    # Of several continuations of one parent only the latest is on the way down from the root.
    return chain if session_id in chain else [*chain, session_id]


def _has_messages(conn: Connection, session_id: str) -> bool:
    sql = "SELECT 1 FROM messages WHERE session_id = ? LIMIT 1"
    return scalar(conn, sql, (session_id,)) is not None


def resume_target(conn: Connection, session_id: str) -> str:
    """The first session with a message on the way down from *session_id*, else *session_id*."""
    current: str | None = session_id
    seen: set[str] = set()
    for _ in range(_MAX_RESUME_STEPS + 1):
        if current is None or current in seen:
            break
        if _has_messages(conn, current):
            return current
        seen.add(current)
        current = scalar(
            conn,
            "SELECT id FROM sessions WHERE parent_session_id = ?"
            " ORDER BY started_at DESC, id DESC LIMIT 1",
            (current,),
        )
    return session_id


def root_to_tip(conn: Connection, session_id: str) -> list[str]:
    """The ancestors of a session, root first, the session itself last."""
    chain, current = [session_id], session_id
    for _ in range(_MAX_ANCESTORS - 1):
        current = scalar(conn, "SELECT parent_session_id FROM sessions WHERE id = ?", (current,))
        if current is None or current in chain:
            break
        chain.append(current)
    return chain[::-1]
