"""Session rows: creation, end, token counts, continuation, and lookup by id."""

from __future__ import annotations

from operator import attrgetter

import hermes_protocol.operations as ops
from hermes_actor.errors import SessionEnded, UnknownSession
from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.columns import COUNTERS
from hermes_actor.store.registry import answers, applies
from hermes_actor.store.rows import Row, first, placeholders, scalar
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.sessions.title_text import escape_like
from hermes_actor.store.sessions.titles import claim_title, next_in_lineage

__all__ = ["check_may_continue", "get_session", "ids_with_prefix", "resolve_id", "session_count"]

_CREATED = ops.SessionCreate.__struct_fields__
_INSERT = f"INTO sessions ({', '.join(_CREATED)}) VALUES {placeholders(len(_CREATED))}"
_created = attrgetter(*_CREATED)


@applies(ops.SessionCreate)
def create(conn: Connection, op: ops.SessionCreate) -> bool:
    """Insert a session unless its id exists; return True if a row was inserted.

    The new session gets the title that was queued for its id. A parent that does not exist violates
    the foreign key.
    """
    # OR IGNORE: the first writer of an id wins, whatever the second one says.
    done = conn.execute(f"INSERT OR IGNORE {_INSERT}", _created(op))
    if done.rowcount > 0:
        claim_title(conn, op.id)
    return done.rowcount > 0


@applies(ops.SessionEnd)
def end(conn: Connection, op: ops.SessionEnd) -> bool:
    """End an open session; return True if this call ended it. An earlier end stays."""
    done = conn.execute(
        "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ? AND ended_at IS NULL",
        (op.ended_at, op.end_reason, op.id),
    )
    return done.rowcount > 0


@applies(ops.SessionReopen)
def reopen(conn: Connection, op: ops.SessionReopen) -> bool:
    """Clear the end of a session; return True if the session exists."""
    done = conn.execute(
        "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = ?", (op.id,)
    )
    return done.rowcount > 0


@applies(ops.SessionPrompt)
def prompt(conn: Connection, op: ops.SessionPrompt) -> bool:
    """Overwrite the system prompt; return True if the session exists."""
    done = conn.execute(
        "UPDATE sessions SET system_prompt = ? WHERE id = ?", (op.system_prompt, op.id)
    )
    return done.rowcount > 0


_TOKENS_ADD = f"""
    {", ".join(f"{name} = {name} + :{name}" for name in COUNTERS)},
    api_call_count = COALESCE(api_call_count, 0) + :api_call_count,
    estimated_cost_usd = COALESCE(estimated_cost_usd, 0) + COALESCE(:estimated_cost_usd, 0),
    actual_cost_usd = CASE WHEN :actual_cost_usd IS NULL THEN actual_cost_usd
                      ELSE COALESCE(actual_cost_usd, 0) + :actual_cost_usd END,
"""

_TOKENS_SET = f"""
    {", ".join(f"{name} = :{name}" for name in COUNTERS)},
    api_call_count = :api_call_count,
    estimated_cost_usd = COALESCE(:estimated_cost_usd, 0),
    actual_cost_usd = COALESCE(:actual_cost_usd, actual_cost_usd),
"""

# Of prices the latest word counts, of the route and the model the first.
_TOKENS = """
    UPDATE sessions SET {counters}
        cost_status = COALESCE(:cost_status, cost_status),
        cost_source = COALESCE(:cost_source, cost_source),
        pricing_version = COALESCE(:pricing_version, pricing_version),
        billing_provider = COALESCE(billing_provider, :billing_provider),
        billing_base_url = COALESCE(billing_base_url, :billing_base_url),
        billing_mode = COALESCE(billing_mode, :billing_mode),
        model = COALESCE(model, :model)
    WHERE id = :id
"""
_TOKENS_BY_ABSOLUTE = {
    False: _TOKENS.format(counters=_TOKENS_ADD),
    True: _TOKENS.format(counters=_TOKENS_SET),
}


@applies(ops.SessionTokens)
def book_tokens(conn: Connection, op: ops.SessionTokens) -> None:
    """Add token counts and cost to a session, or set them with ``absolute``.

    A session that does not exist is created with the source ``unknown``.
    """
    values = {name: getattr(op, name) for name in op.__struct_fields__}
    if not conn.execute(_TOKENS_BY_ABSOLUTE[op.absolute], values).rowcount:
        create(
            conn,
            ops.SessionCreate(id=op.id, source="unknown", model=op.model, started_at=op.started_at),
        )
        conn.execute(_TOKENS_BY_ABSOLUTE[op.absolute], values)


@applies(ops.SessionContinue)
def continue_session(conn: Connection, op: ops.SessionContinue) -> ops.Continued:
    """End the old session with ``compression`` and create its continuation.

    The child gets the next title of the lineage. Raises :class:`UnknownSession`, or
    :class:`SessionEnded` if the old session ended for another reason.
    """
    old = first(conn, "SELECT title, ended_at, end_reason FROM sessions WHERE id = ?", (op.old,))
    old = check_may_continue(op, old)
    end(conn, ops.SessionEnd(id=op.old, ended_at=op.now, end_reason="compression"))
    title = None if old["title"] is None else next_in_lineage(conn, old["title"])
    # A continuation starts at or after the end of its parent, even when the clock went back. A mark
    # of a branch or delegate says how the parent began; on its continuation it would cut the chain.
    features = features_of(conn)
    same = ", ".join(("source", "model", "system_prompt", *features.belongs))
    conn.execute(
        f"""
        INSERT INTO sessions (id, {same}, model_config, parent_session_id, started_at, title)
        SELECT ?, {same}, {features.unmarked_config}, id, MAX(ended_at, ?), ?
        FROM sessions WHERE id = ?
        """,
        (op.new, op.now, title, op.old),
    )
    claim_title(conn, op.new)
    if features.gateway or features.routes:
        # Late: only the writer needs it, and clients import this module.
        from hermes_actor.store.gateway.files import follow_continuation

        follow_continuation(conn, op)
    return ops.Continued(id=op.new, title=title)


def check_may_continue(op: ops.SessionContinue, old: Row | None) -> Row:
    """Return *old*. Raises :class:`UnknownSession`, or :class:`SessionEnded` for another reason."""
    if old is None:
        raise UnknownSession(f"there is no session {op.old!r} to continue")
    if old["ended_at"] is not None and old["end_reason"] != "compression":
        raise SessionEnded(
            f"session {op.old!r} has ended with {old['end_reason']!r}; reopen it to continue it"
        )
    return old


@answers(queries.get_session)
def get_session(conn: Connection, session_id: str) -> Row | None:
    """Return the row of a session; ``None`` if it does not exist."""
    return first(conn, "SELECT * FROM sessions WHERE id = ?", (session_id,))


@answers(queries.resolve_session_id)
def resolve_id(conn: Connection, id_or_prefix: str) -> str | None:
    """Return the exact id, else the only id with this prefix; ``None`` if not exactly one fits."""
    exact: str | None = scalar(conn, "SELECT id FROM sessions WHERE id = ?", (id_or_prefix,))
    if exact is not None:
        return exact
    matches = ids_with_prefix(conn, id_or_prefix, 2)
    return matches[0] if len(matches) == 1 else None


@answers(queries.ids_with_prefix)
def ids_with_prefix(conn: Connection, prefix: str, limit: int) -> list[str]:
    """Return up to *limit* ids with the literal *prefix*, in no particular order."""
    rows = conn.execute(
        "SELECT id FROM sessions WHERE id LIKE ? ESCAPE '\\' LIMIT ?",
        (escape_like(prefix) + "%", limit),
    ).fetchall()
    return [session_id for (session_id,) in rows]


@answers(queries.session_count)
def session_count(conn: Connection, source: str | None) -> int:
    """Count the sessions of *source*; all sessions if it is empty or ``None``."""
    if source:
        return int(scalar(conn, "SELECT COUNT(*) FROM sessions WHERE source = ?", (source,)))
    return int(scalar(conn, "SELECT COUNT(*) FROM sessions"))
