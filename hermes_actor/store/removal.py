"""Removing sessions: one by one, by age, and the clean-ups of known leftovers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes_actor.store.layout import layout_of
from hermes_actor.store.registry import applies
from hermes_actor.store.rows import scalar
from hermes_protocol.operations import (
    Pruned,
    SessionDelete,
    SessionsFinalizeOrphans,
    SessionsPrune,
    SessionsPruneGhosts,
)

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["delegates_of", "remove"]


@applies(SessionDelete)
def delete(conn: Connection, op: SessionDelete) -> bool:
    if scalar(conn, "SELECT 1 FROM sessions WHERE id = ?", (op.id,)) is None:
        return False
    remove(conn, op.id)
    return True


def delegates_of(conn: Connection, session_id: Any) -> list[Any]:
    """The sessions below *session_id* that worked for it and go with it, where files mark them."""
    marked = layout_of(conn).delegates
    if marked is None:
        return []
    found, waiting = [session_id], [session_id]
    sql = f"SELECT s.id FROM sessions s WHERE s.parent_session_id = ? AND {marked}"
    while waiting:
        for (child,) in conn.execute(sql, (waiting.pop(),)).fetchall():
            if child not in found:
                found.append(child)
                waiting.append(child)
    return found[1:]


def remove(conn: Connection, session_id: Any) -> int:
    """Remove a session and its delegates; other children lose their parent.

    Returns the number of rows it touched.
    """
    return sum(_remove(conn, one) for one in (*delegates_of(conn, session_id), session_id))


def _remove(conn: Connection, session_id: Any) -> int:
    conn.execute(
        "UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id = ?", (session_id,)
    )
    gone = conn.execute("DELETE FROM messages WHERE session_id = ?", (session_id,))
    conn.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    if layout_of(conn).own_marks:
        conn.execute("DELETE FROM hermes_actor_archived WHERE session_id = ?", (session_id,))
    return 1 + gone.rowcount


@applies(SessionsPrune)
def prune(conn: Connection, op: SessionsPrune) -> Pruned:
    where, parameters = (
        "started_at < ? AND ended_at IS NOT NULL AND id IS NOT NULL",
        [op.started_before],
    )
    if op.source:
        where += " AND source = ?"
        parameters.append(op.source)  # type: ignore[arg-type]
    # A slice is bounded by rows, so that a write behind it waits for a bounded time.
    found = conn.execute(
        f"SELECT id FROM sessions WHERE {where} LIMIT ?", (*parameters, op.max_rows)
    ).fetchall()
    ids: list[str] = []
    rows = 0
    for (session_id,) in found:
        if rows >= op.max_rows:
            return Pruned(ids=ids, more=True)
        rows += remove(conn, session_id)
        ids.append(session_id)
    return Pruned(ids=ids, more=len(found) == op.max_rows)


_GHOSTS = """
    FROM sessions WHERE source = 'tui' AND title IS NULL AND ended_at IS NOT NULL
      AND started_at < ?
      AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = sessions.id)
"""


@applies(SessionsPruneGhosts)
def prune_ghosts(conn: Connection, op: SessionsPruneGhosts) -> list[str]:
    ghosts = conn.execute(f"SELECT id {_GHOSTS}", (op.started_before,)).fetchall()
    # One statement, so that a ghost may be the child of a ghost. A ghost with another child
    # violates the foreign key and fails the whole operation: callers know this as an
    # IntegrityError.
    conn.execute(f"DELETE {_GHOSTS}", (op.started_before,))
    return [session_id for (session_id,) in ghosts]


@applies(SessionsFinalizeOrphans)
def finalize_orphans(conn: Connection, op: SessionsFinalizeOrphans) -> int:
    done = conn.execute(
        """
        UPDATE sessions SET ended_at = ?, end_reason = 'orphaned_compression'
        WHERE api_call_count = 0 AND ended_at IS NULL AND started_at < ?
          AND EXISTS (SELECT 1 FROM messages m WHERE m.session_id = sessions.id)
          AND EXISTS (SELECT 1 FROM sessions p WHERE p.id = sessions.parent_session_id
                      AND p.end_reason = 'compression')
        """,
        (op.now, op.started_before),
    )
    return done.rowcount
