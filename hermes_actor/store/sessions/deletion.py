"""Removal of sessions: one by one, by age, and clean-ups of known leftovers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import hermes_protocol.operations as ops
from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.registry import answers, applies
from hermes_actor.store.rows import Row, dicts, is_there
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.sessions.filters import SELECT_FOUND

__all__ = ["delegates_of", "removable", "remove", "remove_slice", "with_delegates"]


@applies(ops.SessionDelete)
def delete(conn: Connection, op: ops.SessionDelete) -> bool:
    """Remove a session, its messages and its delegates; return False if it does not exist."""
    if not is_there(conn, op.id):
        return False
    for one in (*delegates_of(conn, op.id), op.id):
        remove(conn, one)
    return True


@applies(ops.SessionDeleteIf)
def delete_if(conn: Connection, op: ops.SessionDeleteIf) -> bool:
    """Remove a session that is still as the caller saw it; return True if it was removed.

    It must have exactly ``messages`` messages, ``newest`` as the highest id, and no delegates.
    """
    counted = "SELECT COUNT(*), COALESCE(MAX(id), 0) FROM messages WHERE session_id = ?"
    found = conn.execute(counted, (op.id,)).fetchone()
    if not is_there(conn, op.id) or found != (op.messages, op.newest) or delegates_of(conn, op.id):
        return False
    remove(conn, op.id)
    return True


@answers(queries.delegates_of)
def delegates_of(conn: Connection, session_id: Any) -> list[Any]:
    """Return the sessions that worked for *session_id*, directly or not, and are removed with it.

    Empty for files that do not mark delegates.
    """
    marked = features_of(conn).delegates
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


@answers(queries.with_delegates)
def with_delegates(conn: Connection, rows: list[Row]) -> list[Row]:
    """Return what goes if *rows* are removed as ended sessions.

    All but those that an open delegate works for, each followed by its delegates, which have the
    key ``delegate_of``.
    """
    if features_of(conn).delegates is None:
        return rows
    held = {session_id for (session_id,) in conn.execute(_held(conn))}
    found: dict[str, Row] = {}
    for row in rows:
        if row["id"] in held or row["id"] in found:
            continue
        found[row["id"]] = row
        for session_id in delegates_of(conn, row["id"]):
            (delegate,) = dicts(conn, f"{SELECT_FOUND} WHERE s.id = ?", (session_id,))
            found[session_id] = {**delegate, "delegate_of": row["id"]}
    return list(found.values())


def _held(conn: Connection) -> str:
    """SQL query: the sessions for which an open delegate works, directly or through others."""
    marked = features_of(conn).delegates or "0"
    return f"""
        WITH RECURSIVE held(id) AS (
            SELECT s.parent_session_id FROM sessions s
            WHERE s.ended_at IS NULL AND s.parent_session_id IS NOT NULL AND {marked}
            UNION
            SELECT s.parent_session_id FROM sessions s JOIN held ON s.id = held.id
            WHERE s.parent_session_id IS NOT NULL AND {marked}
        )
        SELECT id FROM held
    """


def removable(
    conn: Connection, where: str, parameters: Sequence[Any], limit: int = -1
) -> list[Any]:
    """Return ended sessions that meet *where* and for which no open delegate works.

    A negative *limit* means all.
    """
    if features_of(conn).delegates is not None:
        where += f" AND id NOT IN ({_held(conn)})"
    sql = f"SELECT id FROM sessions WHERE ended_at IS NOT NULL AND id IS NOT NULL AND {where}"
    return [row[0] for row in conn.execute(f"{sql} LIMIT ?", (*parameters, limit)).fetchall()]


def remove_slice(conn: Connection, ids: Iterable[Any], max_rows: int) -> ops.Pruned:
    """Remove sessions and their delegates. A slice is bounded by rows, so that a write behind it
    waits for a bounded time.
    """
    removed: dict[str, None] = {}
    rows = 0
    for session_id in ids:
        if session_id in removed:
            continue  # it has gone with the session that it worked for
        if rows >= max_rows:
            return ops.Pruned(ids=list(removed), more=True)
        family = [session_id, *delegates_of(conn, session_id)]
        rows += sum(remove(conn, one) for one in family)
        removed |= dict.fromkeys(family)
    return ops.Pruned(ids=list(removed))


def remove(conn: Connection, session_id: Any) -> int:
    """Remove one session; its children lose their parent. Returns the number of rows it touched."""
    conn.execute(
        "UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id = ?", (session_id,)
    )
    gone = conn.execute("DELETE FROM messages WHERE session_id = ?", (session_id,))
    conn.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    if features_of(conn).own_marks:
        conn.execute("DELETE FROM hermes_actor_archived WHERE session_id = ?", (session_id,))
    return 1 + gone.rowcount


@applies(ops.SessionsPrune)
def prune(conn: Connection, op: ops.SessionsPrune) -> ops.Pruned:
    """Remove one slice of the ended sessions that started before a time, with their delegates.

    A session for which an open delegate works stays. With ``more`` the caller sends the operation
    again.
    """
    where, parameters = "started_at < ?", [op.started_before]
    if op.source:
        where += " AND source = ?"
        parameters.append(op.source)  # type: ignore[arg-type]
    found = removable(conn, where, parameters, op.max_rows)
    done = remove_slice(conn, found, op.max_rows)
    return ops.Pruned(ids=done.ids, more=done.more or len(found) == op.max_rows)


_GHOSTS = """
    FROM sessions WHERE source = 'tui' AND title IS NULL AND ended_at IS NOT NULL
      AND started_at < ?
      AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = sessions.id)
"""


@applies(ops.SessionsPruneGhosts)
def prune_ghosts(conn: Connection, op: ops.SessionsPruneGhosts) -> list[str]:
    """Remove ended, untitled sessions of the terminal UI without messages; return their ids.

    Fails as a whole, with a foreign key violation, if one of them has a child that stays.
    """
    ghosts = conn.execute(f"SELECT id {_GHOSTS}", (op.started_before,)).fetchall()
    # One statement, so that a ghost may be the child of a ghost. A ghost with another child
    # violates the foreign key and fails the whole operation: callers know this as an
    # IntegrityError.
    conn.execute(f"DELETE {_GHOSTS}", (op.started_before,))
    return [session_id for (session_id,) in ghosts]


@applies(ops.SessionsFinalizeOrphans)
def finalize_orphans(conn: Connection, op: ops.SessionsFinalizeOrphans) -> int:
    """End abandoned continuations with ``orphaned_compression``; return their number.

    These are open, have messages but no API call, and their parent ended with ``compression``.
    """
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
