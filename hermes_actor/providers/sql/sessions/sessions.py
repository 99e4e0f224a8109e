"""Session rows on a server: creation, end, token counts, continuation, and lookup by id."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, func, insert, select

import hermes_protocol.operations as ops
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers, applies
from hermes_actor.providers.sql.sessions.session_row import BY_ID, set_columns
from hermes_actor.providers.sql.sessions.titles import begins_with, claim_title, next_title
from hermes_actor.providers.sql.tables import SESSION_COLUMNS, sessions
from hermes_actor.store import queries
from hermes_actor.store.columns import COUNTERS
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.sessions import check_may_continue

__all__ = ["booked"]

_PLAIN = ("user_id", "model", "model_config", "system_prompt", "parent_session_id")


@applies(ops.SessionCreate)
def create(conn: ServerConnection, op: ops.SessionCreate) -> bool:
    """Insert a session unless its id exists; return True if a row was inserted.

    The new session gets the title that was queued for its id. One without a source is ignored, as
    in a file.
    """
    # A file ignores a row without a source, and a second row of an id.
    if op.source is None:
        return False
    values = {name: getattr(op, name) for name in op.__struct_fields__}
    if not conn.dialect.insert_if_absent(conn, sessions, values):
        return False
    claim_title(conn, op.id)
    return True


@applies(ops.SessionEnd)
def end(conn: ServerConnection, op: ops.SessionEnd) -> bool:
    """End an open session; return True if this call ended it. An earlier end stays."""
    is_open = sessions.c.ended_at.is_(None)
    return set_columns(conn, op.id, is_open, ended_at=op.ended_at, end_reason=op.end_reason)


@applies(ops.SessionReopen)
def reopen(conn: ServerConnection, op: ops.SessionReopen) -> bool:
    """Clear the end of a session; return True if the session exists."""
    return set_columns(conn, op.id, ended_at=None, end_reason=None)


@applies(ops.SessionPrompt)
def prompt(conn: ServerConnection, op: ops.SessionPrompt) -> bool:
    """Overwrite the system prompt; return True if the session exists."""
    return set_columns(conn, op.id, system_prompt=op.system_prompt)


# Of prices the latest word counts, of the route and the model the first.
_LATEST = ("cost_status", "cost_source", "pricing_version")
_FIRST = ("billing_provider", "billing_base_url", "billing_mode", "model")


@applies(ops.SessionTokens)
def book_tokens(conn: ServerConnection, op: ops.SessionTokens) -> None:
    """Add token counts and cost to a session, or set them with ``absolute``.

    A session that does not exist is created with the source ``unknown``.
    """
    values = booked(op)
    if not set_columns(conn, op.id, **values):
        unknown = ops.SessionCreate(
            id=op.id, source="unknown", model=op.model, started_at=op.started_at
        )
        create(conn, unknown)
        set_columns(conn, op.id, **values)


def booked(op: ops.SessionTokens) -> dict[str, Any]:
    """Return the new values of the columns of a session for which tokens are booked."""
    columns = sessions.c
    values: dict[str, Any] = {}
    for name in COUNTERS:
        value = bindparam(None, getattr(op, name), type_=columns[name].type)
        values[name] = value if op.absolute else columns[name] + value
    calls = bindparam(None, op.api_call_count, type_=columns.api_call_count.type)
    values["api_call_count"] = (
        calls if op.absolute else func.coalesce(columns.api_call_count, 0) + calls
    )
    estimated = op.estimated_cost_usd or 0.0
    values["estimated_cost_usd"] = (
        estimated if op.absolute else func.coalesce(columns.estimated_cost_usd, 0.0) + estimated
    )
    if op.actual_cost_usd is not None:
        values["actual_cost_usd"] = (
            op.actual_cost_usd
            if op.absolute
            else func.coalesce(columns.actual_cost_usd, 0.0) + op.actual_cost_usd
        )
    for name in _LATEST:
        if getattr(op, name) is not None:
            values[name] = getattr(op, name)
    for name in _FIRST:
        if getattr(op, name) is not None:
            given = bindparam(None, getattr(op, name), type_=columns[name].type)
            values[name] = func.coalesce(columns[name], given)
    return values


@applies(ops.SessionContinue)
def continue_session(conn: ServerConnection, op: ops.SessionContinue) -> ops.Continued:
    """End the old session with ``compression`` and create its continuation.

    The child gets the next title of the lineage. Raises :class:`UnknownSession`, or
    :class:`SessionEnded` if the old session ended for another reason.
    """
    # Locked, so that two continuations of one session cannot take the same title.
    old = conn.first(_GET.with_for_update(), {"key": op.old})
    old = check_may_continue(op, old)
    end(conn, ops.SessionEnd(id=op.old, ended_at=op.now, end_reason="compression"))
    title = None if old["title"] is None else next_title(conn, old["title"])
    ended_at = op.now if old["ended_at"] is None else old["ended_at"]
    child = {name: old[name] for name in ("source", *_PLAIN)}
    # A continuation starts at or after the end of its parent, even when the clock went back.
    child |= {
        "id": op.new,
        "parent_session_id": op.old,
        "started_at": max(ended_at, op.now),
        "title": title,
    }
    conn.execute(insert(sessions).values(child))
    claim_title(conn, op.new)
    # Late: it uses this module.
    from hermes_actor.providers.sql.gateway import follow_continuation

    follow_continuation(conn, op)
    return ops.Continued(id=op.new, title=title)


# Statements are built once where they can be: to build one costs more than to run it.
_GET = select(*SESSION_COLUMNS).where(BY_ID)


@answers(queries.get_session)
def get_session(conn: ServerConnection, session_id: str) -> Row | None:
    """Return the row of a session; ``None`` if it does not exist."""
    return conn.first(_GET, {"key": session_id})


@answers(queries.resolve_session_id)
def resolve_id(conn: ServerConnection, id_or_prefix: str) -> str | None:
    """Return the exact id, else the only id with this prefix; ``None`` if not exactly one fits."""
    exact: str | None = conn.scalar(select(sessions.c.id).where(BY_ID), {"key": id_or_prefix})
    if exact is not None:
        return exact
    matches = begins_with(conn, select(sessions.c.id), sessions.c.id, id_or_prefix)
    return matches[0]["id"] if len(matches) == 1 else None


@answers(queries.ids_with_prefix)
def ids_with_prefix(conn: ServerConnection, prefix: str, limit: int) -> list[str]:
    """Return up to *limit* ids with the literal *prefix*, in no particular order."""
    found = begins_with(conn, select(sessions.c.id), sessions.c.id, prefix)
    return [row["id"] for row in found[:limit]]


@answers(queries.session_count)
def session_count(conn: ServerConnection, source: str | None) -> int:
    """Count the sessions of *source*; all sessions if it is empty or ``None``."""
    count = select(func.count()).select_from(sessions)
    if source:
        count = count.where(sessions.c.source == bindparam("source"))
    return int(conn.scalar(count, {"source": source} if source else {}))
