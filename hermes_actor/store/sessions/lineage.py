"""Chains of sessions: parents upward, continuations downward.

A *compression edge* joins a parent that ended with ``compression`` to its continuation. In files
that mark branches and delegates, that is every child without a mark and of another source than
``tool``; in others, every child that started at or after that end: delegates started earlier.
"""

from __future__ import annotations

from collections.abc import Callable

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.registry import answers
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema_features import features_of

__all__ = [
    "activity_of", "compression_lineage", "compression_tip", "continuations", "continued",
    "resume_target", "root_to_tip", "walk_lineage", "walk_to_messages", "walk_to_root",
    "walk_to_tip",
]  # fmt: skip

# Bounds end the walk on a cyclic lineage, which other programs can write.
_MAX_TIP_STEPS = 100
_MAX_RESUME_STEPS = 32
_MAX_ANCESTORS = 100

_CHILDREN = "FROM sessions p JOIN sessions c ON c.parent_session_id = p.id WHERE p.id = ?"


def activity_of(alias: str) -> str:
    """Return an SQL expression: the latest message of a session, or its start without one."""
    latest = f"SELECT MAX(m.timestamp) FROM messages m WHERE m.session_id = {alias}.id"
    return f"COALESCE(({latest}), {alias}.started_at)"


_ACTIVITY = activity_of("c")


def continuation(conn: Connection, session_id: str | None) -> str | None:
    """Return the child in which the conversation continues; ``None`` if it ends here.

    Of several: the latest; where children are marked, one that was itself compressed, else one that
    is open, else the latest active.
    """
    features = features_of(conn)
    order = "c.started_at DESC"
    if features.marks_children:
        order = f"c.end_reason IS 'compression' DESC, c.ended_at IS NULL DESC, {_ACTIVITY} DESC"
    sql = f"SELECT c.id {_CHILDREN} AND {features.continues} ORDER BY {order} LIMIT 1"
    found: str | None = scalar(conn, sql, (session_id,))
    return found


def continuations(conn: Connection, session_id: str) -> list[tuple[str, float]]:
    """Return all children that may continue the conversation, each with its latest activity."""
    sql = f"SELECT c.id, {_ACTIVITY} {_CHILDREN} AND {features_of(conn).continues}"
    return conn.execute(sql, (session_id,)).fetchall()


def continued(conn: Connection, session_id: str) -> str | None:
    """Return the session that *session_id* continues after a compression, or ``None``."""
    sql = (
        "SELECT p.id FROM sessions c JOIN sessions p ON p.id = c.parent_session_id"
        f" WHERE c.id = ? AND {features_of(conn).continues}"
    )
    found: str | None = scalar(conn, sql, (session_id,))
    return found


@answers(queries.compression_tip)
def compression_tip(conn: Connection, session_id: str | None) -> str | None:
    """Return the last session of the chain that begins at *session_id*, perhaps itself."""
    return walk_to_tip(session_id, lambda current: continuation(conn, current))


def walk_to_tip(
    session_id: str | None, continuation: Callable[[str | None], str | None]
) -> str | None:
    """Return the last session along *continuation*, from *session_id* on; 100 steps at most."""
    current = session_id
    for _ in range(_MAX_TIP_STEPS):
        following = continuation(current)
        if following is None:
            break
        current = following
    return current


_ANY_MESSAGE = "SELECT 1 FROM messages WHERE session_id = ? LIMIT 1"
_NEWEST_CHILD = """
    SELECT c.id FROM sessions c WHERE c.parent_session_id = ? AND {same}
    ORDER BY c.started_at DESC, c.id DESC LIMIT 1
"""


@answers(queries.compression_lineage)
def compression_lineage(conn: Connection, session_id: str) -> list[str]:
    """Return the whole chain of continuations that *session_id* belongs to, root first."""
    return walk_lineage(
        session_id,
        lambda current: continued(conn, current),
        lambda current: continuation(conn, current),
    )


def walk_lineage(
    session_id: str,
    previous: Callable[[str], str | None],
    continuation: Callable[[str], str | None],
) -> list[str]:
    """Return the chain from the root above *session_id* down to the tip.

    *session_id* is always in it, last if the way down does not meet it. Each way has at most 100
    steps.
    """
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


@answers(queries.resume_target)
def resume_target(conn: Connection, session_id: str) -> str:
    """Return the session to load for *session_id*: itself if it has a message, else one below it.

    That is the first with a message; where children are marked, the deepest, over no branch,
    delegate or tool.
    """
    features = features_of(conn)
    newest = _NEWEST_CHILD.format(
        same=features.same_conversation if features.marks_children else "1"
    )
    return walk_to_messages(
        session_id,
        lambda current: scalar(conn, _ANY_MESSAGE, (current,)) is not None,
        lambda current: scalar(conn, newest, (current,)),
        deepest=features.marks_children,
    )


def walk_to_messages(
    session_id: str,
    has_messages: Callable[[str], bool],
    newest_child: Callable[[str], str | None],
    *,
    deepest: bool = False,
) -> str:
    """Return the first session with a message from *session_id* down; itself if there is none.

    With *deepest* the walk continues to the last one, unless *session_id* has a message itself.
    """
    current: str | None = session_id
    found = session_id
    seen: set[str] = set()
    for _ in range(_MAX_RESUME_STEPS + 1):
        if current is None or current in seen:
            break
        if has_messages(current):
            if not deepest or current == session_id:
                return current
            found = current
        seen.add(current)
        current = newest_child(current)
    return found


@answers(queries.lineage_root_to_tip)
def root_to_tip(conn: Connection, session_id: str) -> list[str]:
    """Return the ancestors of a session, root first, the session itself last."""
    sql = "SELECT parent_session_id FROM sessions WHERE id = ?"
    return walk_to_root(session_id, lambda current: scalar(conn, sql, (current,)))


def walk_to_root(session_id: str, parent: Callable[[str], str | None]) -> list[str]:
    """Return *session_id* and its ancestors, root first; at most 100 sessions."""
    chain, current = [session_id], session_id
    for _ in range(_MAX_ANCESTORS - 1):
        above = parent(current)
        if above is None or above in chain:
            break
        chain.append(current := above)
    return chain[::-1]
