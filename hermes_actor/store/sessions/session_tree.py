"""The relatives of a session: its ancestors, and everything below the oldest of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.registry import answers
from hermes_actor.store.sessions.lineage import root_to_tip

__all__ = ["TreeNode", "family", "walk_family"]

_MAX_RELATIVES = 1000
"""A tree that a person looks at; a delegate with thousands of children is cut here."""


class TreeNode(NamedTuple):
    """One session of a family tree."""

    id: str
    depth: int
    title: str | None
    started_at: float
    end_reason: str | None


@answers(queries.session_family)
def family(conn: Connection, session_id: str) -> list[TreeNode]:
    """Return the tree of *session_id* depth first, children by start; at most 1,000 sessions."""

    def facts_of(current: str) -> tuple[Any, ...] | None:
        sql = "SELECT title, started_at, end_reason FROM sessions WHERE id = ?"
        rows = conn.execute(sql, (current,)).fetchall()
        return rows[0] if rows else None

    def children_of(current: str) -> list[str]:
        sql = (
            "SELECT id FROM sessions WHERE parent_session_id = ? ORDER BY started_at DESC, id DESC"
        )
        return [child for (child,) in conn.execute(sql, (current,)).fetchall()]

    return walk_family(root_to_tip(conn, session_id)[0], facts_of, children_of)


def walk_family(
    root: str,
    facts_of: Callable[[str], tuple[Any, ...] | None],
    children_of: Callable[[str], list[str]],
) -> list[TreeNode]:
    """Return the tree below *root*.

    *facts_of* gives title, start and end reason, *children_of* the latest first.
    """
    found: list[TreeNode] = []
    seen: set[str] = set()
    waiting = [(root, 0)]
    while waiting and len(found) < _MAX_RELATIVES:
        current, depth = waiting.pop()
        facts = facts_of(current)
        if facts is None or current in seen:  # an unknown parent, or a cycle
            continue
        seen.add(current)
        found.append(TreeNode(current, depth, *facts))
        waiting += [(child, depth + 1) for child in children_of(current)]
    return found
