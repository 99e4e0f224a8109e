"""The relatives of a session: its ancestors, and everything below the oldest of them."""

from __future__ import annotations

from typing import NamedTuple

from hermes_actor.sqlite import Connection
from hermes_actor.store.lineage import root_to_tip

__all__ = ["TreeNode", "family"]

_MAX_RELATIVES = 1000
"""A tree that a person looks at; a delegate with thousands of children is cut here."""


class TreeNode(NamedTuple):
    """One session of a family tree."""

    id: str
    depth: int
    title: str | None
    started_at: float
    end_reason: str | None


def family(conn: Connection, session_id: str) -> list[TreeNode]:
    """Return the tree of *session_id* depth first, children by start; at most 1,000 sessions."""
    root = root_to_tip(conn, session_id)[0]
    found: list[TreeNode] = []
    seen: set[str] = set()
    waiting = [(root, 0)]
    while waiting and len(found) < _MAX_RELATIVES:
        current, depth = waiting.pop()
        row = conn.execute(
            "SELECT title, started_at, end_reason FROM sessions WHERE id = ?", (current,)
        ).fetchall()
        if not row or current in seen:  # an unknown parent, or a cycle
            continue
        seen.add(current)
        found.append(TreeNode(current, depth, *row[0]))
        children = conn.execute(
            "SELECT id FROM sessions WHERE parent_session_id = ? ORDER BY started_at DESC, id DESC",
            (current,),
        ).fetchall()
        waiting += [(child, depth + 1) for (child,) in children]
    return found
