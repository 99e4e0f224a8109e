"""Removal of sessions from a server: one by one, by age, and clean-ups of known leftovers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import bindparam, delete, exists, select, update

import hermes_protocol.operations as ops
from hermes_actor.errors import ConstraintFailed
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers, applies
from hermes_actor.providers.sql.sessions.session_row import BY_ID, OF_SESSION, is_there
from hermes_actor.providers.sql.tables import archived, messages, sessions
from hermes_actor.store import queries
from hermes_actor.store.rows import Row, chunks

__all__ = ["remove", "remove_slice"]

_CHUNK = 500


@answers(queries.delegates_of)
def delegates_of(conn: ServerConnection, session_id: Any) -> list[Any]:
    """Return an empty list: the tables follow schema version 11, which marks no delegates."""
    return []


@answers(queries.with_delegates)
def with_delegates(_conn: ServerConnection, rows: list[Row]) -> list[Row]:
    """Return *rows*: there are no delegates that would go with them."""
    return rows


@applies(ops.SessionDelete)
def delete_session(conn: ServerConnection, op: ops.SessionDelete) -> bool:
    """Remove a session and its messages; return False if it does not exist."""
    if not is_there(conn, op.id, lock=True):
        return False
    remove(conn, op.id)
    return True


@applies(ops.SessionDeleteIf)
def delete_if(conn: ServerConnection, op: ops.SessionDeleteIf) -> bool:
    """Remove a session that is still as the caller saw it; return True if it was removed.

    It must have exactly ``messages`` messages, and ``newest`` as the highest id.
    """
    if not is_there(conn, op.id, lock=True):
        return False
    stored = conn.column(select(messages.c.id).where(OF_SESSION), {"session": op.id})
    if (len(stored), max(stored, default=0)) != (op.messages, op.newest):
        return False
    remove(conn, op.id)
    return True


def remove(conn: ServerConnection, session_id: Any) -> int:
    """Remove one session; children lose their parent. Returns the number of rows it touched."""
    children = sessions.c.parent_session_id == bindparam("key")
    marks = archived.c.session_id == bindparam("key")
    key = {"key": session_id}
    conn.execute(update(sessions).where(children).values(parent_session_id=None), key)
    conn.execute(delete(archived).where(marks), key)
    gone = conn.execute(delete(messages).where(OF_SESSION), {"session": session_id})
    conn.execute(delete(sessions).where(BY_ID), key)
    return 1 + gone.rowcount


@applies(ops.SessionsPrune)
def prune(conn: ServerConnection, op: ops.SessionsPrune) -> ops.Pruned:
    """Remove one slice of the ended sessions that started before a time.

    With ``more`` the caller sends the operation again.
    """
    old = select(sessions.c.id).where(
        sessions.c.started_at < op.started_before, sessions.c.ended_at.is_not(None)
    )
    if op.source:
        old = old.where(sessions.c.source == op.source)
    # A slice is bounded by rows, so that a transaction holds its locks for a bounded time; in the
    # order of making, so that two that prune at once wait for each other instead of crossing.
    found = conn.column(old.order_by(sessions.c.place).limit(op.max_rows).with_for_update())
    done = remove_slice(conn, found, op.max_rows)
    return ops.Pruned(ids=done.ids, more=done.more or len(found) == op.max_rows)


def remove_slice(conn: ServerConnection, ids: Iterable[str], max_rows: int) -> ops.Pruned:
    """Remove sessions until *max_rows* rows are touched."""
    removed: list[str] = []
    rows = 0
    for session_id in ids:
        if rows >= max_rows:
            return ops.Pruned(ids=removed, more=True)
        rows += remove(conn, session_id)
        removed.append(session_id)
    return ops.Pruned(ids=removed)


@applies(ops.SessionsPruneGhosts)
def prune_ghosts(conn: ServerConnection, op: ops.SessionsPruneGhosts) -> list[str]:
    """Remove ended, untitled sessions of the terminal UI without messages; return their ids.

    Raises :class:`ConstraintFailed` if one of them has a child that stays; nothing is removed then.
    """
    ghosts: list[str] = conn.column(
        select(sessions.c.id)
        .where(
            sessions.c.source == "tui",
            sessions.c.title.is_(None),
            sessions.c.ended_at.is_not(None),
            sessions.c.started_at < op.started_before,
            ~exists().where(messages.c.session_id == sessions.c.id),
        )
        .order_by(sessions.c.place)
        .with_for_update()
    )
    known = set(ghosts)
    for part in chunks(ghosts, _CHUNK):
        children = conn.column(select(sessions.c.id).where(sessions.c.parent_session_id.in_(part)))
        # A ghost may be the child of a ghost. Another child forbids the whole operation: callers
        # know this as an IntegrityError.
        if not known.issuperset(children):
            raise ConstraintFailed("FOREIGN KEY constraint failed")
    for part in chunks(ghosts, _CHUNK):
        of_ghosts = sessions.c.parent_session_id.in_(part)
        conn.execute(update(sessions).where(of_ghosts).values(parent_session_id=None))
    for part in chunks(ghosts, _CHUNK):
        conn.execute(delete(sessions).where(sessions.c.id.in_(part)))
    return ghosts


@applies(ops.SessionsFinalizeOrphans)
def finalize_orphans(conn: ServerConnection, op: ops.SessionsFinalizeOrphans) -> int:
    """End abandoned continuations with ``orphaned_compression``; return their number.

    These are open, have messages but no API call, and their parent ended with ``compression``.
    """
    parent = sessions.alias()
    # Found first and ended then: MySQL does not update a table that the condition reads.
    orphans = conn.column(
        select(sessions.c.id)
        .where(
            sessions.c.api_call_count == 0,
            sessions.c.ended_at.is_(None),
            sessions.c.started_at < op.started_before,
            exists().where(messages.c.session_id == sessions.c.id),
            exists().where(
                parent.c.id == sessions.c.parent_session_id, parent.c.end_reason == "compression"
            ),
        )
        .order_by(sessions.c.place)
        .with_for_update(of=sessions)
    )
    for part in chunks(orphans, _CHUNK):
        conn.execute(
            update(sessions)
            .where(sessions.c.id.in_(part))
            .values(ended_at=op.now, end_reason="orphaned_compression")
        )
    return len(orphans)
