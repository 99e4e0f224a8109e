"""Chains of sessions: parents upward, continuations downward.

A *compression edge* joins a parent that ended with ``compression`` to a child that started at or
after that end. Children that started earlier are delegates and are not followed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor.store.rows import scalar

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = [
    "compression_lineage",
    "compression_tip",
    "resume_target",
    "root_to_tip",
    "walk_lineage",
    "walk_to_messages",
    "walk_to_root",
    "walk_to_tip",
]

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
    return walk_to_tip(session_id, lambda current: scalar(conn, _NEXT_CONTINUATION, (current,)))


def walk_to_tip(
    session_id: str | None, continuation: Callable[[str | None], str | None]
) -> str | None:
    """From *session_id* along *continuation*, to the end or the bound."""
    current = session_id
    for _ in range(_MAX_TIP_STEPS):
        following = continuation(current)
        if following is None:
            break
        current = following
    return current


_ANY_MESSAGE = "SELECT 1 FROM messages WHERE session_id = ? LIMIT 1"
_NEWEST_CHILD = """
    SELECT id FROM sessions WHERE parent_session_id = ? ORDER BY started_at DESC, id DESC LIMIT 1
"""


def compression_lineage(conn: Connection, session_id: str) -> list[str]:
    """The whole chain of continuations that *session_id* belongs to, root first."""
    return walk_lineage(
        session_id,
        lambda current: scalar(conn, _PREVIOUS, (current,)),
        lambda current: scalar(conn, _NEXT_CONTINUATION, (current,)),
    )


def walk_lineage(
    session_id: str,
    previous: Callable[[str], str | None],
    continuation: Callable[[str], str | None],
) -> list[str]:
    """Up from *session_id* to its root, and from there down to the tip."""
    root = session_id
    for _ in range(_MAX_TIP_STEPS):
        parent = previous(root)
        if parent is None or parent == session_id:
            break
        root = parent
    chain = [root]
    for _ in range(_MAX_TIP_STEPS):
        following = continuation(chain[-1])
        if following is None or following in chain:
            break
        chain.append(following)
    # Of several continuations of one parent only the latest is on the way down from the root.
    return chain if session_id in chain else [*chain, session_id]


def resume_target(conn: Connection, session_id: str) -> str:
    """The first session with a message on the way down from *session_id*, else *session_id*."""
    return walk_to_messages(
        session_id,
        lambda current: scalar(conn, _ANY_MESSAGE, (current,)) is not None,
        lambda current: scalar(conn, _NEWEST_CHILD, (current,)),
    )


def walk_to_messages(
    session_id: str,
    has_messages: Callable[[str], bool],
    newest_child: Callable[[str], str | None],
) -> str:
    """From *session_id* down, to the first session with a message; back to it if there is none."""
    current: str | None = session_id
    seen: set[str] = set()
    for _ in range(_MAX_RESUME_STEPS + 1):
        if current is None or current in seen:
            break
        if has_messages(current):
            return current
        seen.add(current)
        current = newest_child(current)
    return session_id


def root_to_tip(conn: Connection, session_id: str) -> list[str]:
    """The ancestors of a session, root first, the session itself last."""
    sql = "SELECT parent_session_id FROM sessions WHERE id = ?"
    return walk_to_root(session_id, lambda current: scalar(conn, sql, (current,)))


def walk_to_root(session_id: str, parent: Callable[[str], str | None]) -> list[str]:
    """*session_id* and its ancestors, root first, up to the bound."""
    chain, current = [session_id], session_id
    for _ in range(_MAX_ANCESTORS - 1):
        above = parent(current)
        if above is None or above in chain:
            break
        chain.append(current := above)
    return chain[::-1]
