"""Key and value pairs on a server, and the state of a conversation hand-off."""

from __future__ import annotations

from sqlalchemy import bindparam, or_, select

from hermes_actor.errors import ConstraintFailed
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers, applies
from hermes_actor.providers.sql.sessions.session_row import BY_ID, set_columns
from hermes_actor.providers.sql.tables import SESSION_COLUMNS, sessions, state_meta
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_protocol.operations import HandoffClaim, HandoffFinish, HandoffRequest, MetaSet, Vacuum

__all__ = ["content_bytes", "get_meta", "set_meta"]


@applies(MetaSet)
def set_meta(conn: ServerConnection, op: MetaSet) -> None:
    """Insert or overwrite one key of ``state_meta``.

    Raises :class:`ConstraintFailed` for the key ``None``.
    """
    if op.key is None:
        raise ConstraintFailed("NOT NULL constraint failed: state_meta.key")
    conn.dialect.upsert(conn, state_meta, {"key": op.key, "value": op.value})


@answers(queries.get_meta)
def get_meta(conn: ServerConnection, key: str) -> str | None:
    """Return the value of *key* in ``state_meta``; ``None`` if it is not set."""
    by_key = state_meta.c.key == bindparam("key")
    value: str | None = conn.scalar(select(state_meta.c.value).where(by_key), {"key": key})
    return value


@answers(queries.content_bytes)
def content_bytes(_conn: ServerConnection) -> int:
    """Return 0: a server reclaims space by itself, so a vacuum is always cheap."""
    return 0


@applies(Vacuum)
def vacuum(_conn: ServerConnection, _op: Vacuum) -> None:
    """Do nothing: a server reuses the space of removed rows by itself."""


@applies(HandoffRequest)
def request_handoff(conn: ServerConnection, op: HandoffRequest) -> bool:
    """Mark a conversation hand-off as pending; return True if it was marked.

    False while another one is pending or running, or if the session does not exist.
    """
    free = or_(
        sessions.c.handoff_state.is_(None), sessions.c.handoff_state.in_(("completed", "failed"))
    )
    marked = {"handoff_state": "pending", "handoff_platform": op.platform, "handoff_error": None}
    return set_columns(conn, op.id, free, **marked)


@applies(HandoffClaim)
def claim_handoff(conn: ServerConnection, op: HandoffClaim) -> bool:
    """Set a pending hand-off to ``running``; return True for the one caller that got it."""
    is_pending = sessions.c.handoff_state == "pending"
    return set_columns(conn, op.id, is_pending, handoff_state="running")


@applies(HandoffFinish)
def finish_handoff(conn: ServerConnection, op: HandoffFinish) -> None:
    """Set the final state of a hand-off and its error. Ignores a session that does not exist."""
    set_columns(conn, op.id, handoff_state=op.state, handoff_error=op.error)


@answers(queries.handoff_state)
def handoff_state(conn: ServerConnection, session_id: str) -> Row | None:
    """Return ``state``, ``platform`` and ``error`` of a hand-off; ``None`` without the session."""
    columns = sessions.c
    statement = select(
        columns.handoff_state.label("state"),
        columns.handoff_platform.label("platform"),
        columns.handoff_error.label("error"),
    )
    return conn.first(statement.where(BY_ID), {"key": session_id})


@answers(queries.pending_handoffs)
def pending_handoffs(conn: ServerConnection) -> list[Row]:
    """Return the sessions with a pending hand-off, earliest start first."""
    pending = select(*SESSION_COLUMNS).where(sessions.c.handoff_state == "pending")
    # A file reads its index of start times backwards, so of equal times the later row comes first.
    return conn.rows(pending.order_by(sessions.c.started_at, sessions.c.place.desc()))
