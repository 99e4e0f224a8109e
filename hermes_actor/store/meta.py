"""Key and value pairs, and the state of a conversation hand-off."""

from __future__ import annotations

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.inspection import page_usage
from hermes_actor.store.registry import answers, applies
from hermes_actor.store.rows import Row, dicts, first, scalar, upsert
from hermes_protocol.operations import HandoffClaim, HandoffFinish, HandoffRequest, MetaSet

__all__ = ["content_bytes", "get_meta", "handoff_state", "pending_handoffs"]


@applies(MetaSet)
def set_meta(conn: Connection, op: MetaSet) -> None:
    """Insert or overwrite one key of ``state_meta``."""
    upsert(conn, "state_meta", {"key": op.key, "value": op.value}, ("key",))


@answers(queries.get_meta)
def get_meta(conn: Connection, key: str) -> str | None:
    """Return the value of *key* in ``state_meta``; ``None`` if it is not set."""
    value: str | None = scalar(conn, "SELECT value FROM state_meta WHERE key = ?", (key,))
    return value


@answers(queries.content_bytes)
def content_bytes(conn: Connection) -> int:
    """Return the size of the file without its free pages, in bytes."""
    usage = page_usage(conn)
    return (usage.pages - usage.free_pages) * usage.page_bytes


@applies(HandoffRequest)
def request_handoff(conn: Connection, op: HandoffRequest) -> bool:
    """Mark a conversation hand-off as pending; return True if it was marked.

    False while another one is pending or running, or if the session does not exist.
    """
    done = conn.execute(
        "UPDATE sessions SET handoff_state = 'pending', handoff_platform = ?,"
        " handoff_error = NULL WHERE id = ? AND"
        " (handoff_state IS NULL OR handoff_state IN ('completed', 'failed'))",
        (op.platform, op.id),
    )
    return done.rowcount > 0


@applies(HandoffClaim)
def claim_handoff(conn: Connection, op: HandoffClaim) -> bool:
    """Set a pending hand-off to ``running``; return True for the one caller that got it."""
    done = conn.execute(
        "UPDATE sessions SET handoff_state = 'running' WHERE id = ? AND handoff_state = 'pending'",
        (op.id,),
    )
    return done.rowcount > 0


@applies(HandoffFinish)
def finish_handoff(conn: Connection, op: HandoffFinish) -> None:
    """Set the final state of a hand-off and its error. Ignores a session that does not exist."""
    conn.execute(
        "UPDATE sessions SET handoff_state = ?, handoff_error = ? WHERE id = ?",
        (op.state, op.error, op.id),
    )


@answers(queries.handoff_state)
def handoff_state(conn: Connection, session_id: str) -> Row | None:
    """Return ``state``, ``platform`` and ``error`` of a hand-off; ``None`` without the session."""
    return first(
        conn,
        "SELECT handoff_state AS state, handoff_platform AS platform, handoff_error AS error"
        " FROM sessions WHERE id = ?",
        (session_id,),
    )


@answers(queries.pending_handoffs)
def pending_handoffs(conn: Connection) -> list[Row]:
    """Return the sessions with a pending hand-off, earliest start first."""
    return dicts(conn, "SELECT * FROM sessions WHERE handoff_state = 'pending' ORDER BY started_at")
