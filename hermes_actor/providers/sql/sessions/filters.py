"""Filters of prune, archive and export, on a server: conditions that are joined by AND."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, exists, func, select

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers
from hermes_actor.providers.sql.tables import archived, sessions
from hermes_actor.providers.sql.types import like_literal
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.filters import FILTERS, MissingColumn

__all__: list[str] = []

_Condition = Callable[[ServerConnection, Any], ColumnElement[bool]]


def _contains(name: str) -> _Condition:
    column = sessions.c[name]
    return lambda conn, value: conn.dialect.like(column, f"%{like_literal(value)}%")


def _is(name: str) -> _Condition:
    return lambda _conn, value: sessions.c[name] == value


def _between(column: ColumnElement[Any]) -> tuple[_Condition, _Condition]:
    return (lambda _conn, value: column >= value), (lambda _conn, value: column <= value)


_s = sessions.c
_MESSAGES = _between(_s.message_count)
_TOKENS = _between(func.coalesce(_s.input_tokens, 0) + func.coalesce(_s.output_tokens, 0))
_COST = _between(func.coalesce(_s.actual_cost_usd, _s.estimated_cost_usd, 0))
_CALLS = _between(_s.tool_call_count)

_CONDITIONS: Mapping[str, _Condition] = {
    "started_before": lambda _conn, value: _s.started_at < value,
    "started_after": lambda _conn, value: _s.started_at >= value,
    "source": _is("source"),
    "title": _contains("title"),
    "end_reason": _is("end_reason"),
    "model": _contains("model"),
    "provider": lambda conn, value: conn.dialect.like(_s.billing_provider, like_literal(value)),
    "user": _is("user_id"),
    "min_messages": _MESSAGES[0],
    "max_messages": _MESSAGES[1],
    "min_tokens": _TOKENS[0],
    "max_tokens": _TOKENS[1],
    "min_cost": _COST[0],
    "max_cost": _COST[1],
    "min_tool_calls": _CALLS[0],
    "max_tool_calls": _CALLS[1],
}
"""Those of :data:`FILTERS` whose columns the tables have."""

_FOUND = select(_s.id, _s.started_at, _s.source, _s.model, _s.message_count, _s.title)


@answers(queries.matching_sessions)
def matching(
    conn: ServerConnection, given: Mapping[str, Any], archived_: bool | None = None
) -> list[Row]:
    """Return ended sessions that meet every condition in *given*, oldest first.

    *archived_*: only archived ones, only others, or (``None``) both. Raises :class:`MissingColumn`
    for a condition on a column that the tables do not have.
    """
    statement = _FOUND.where(_s.ended_at.is_not(None))
    for name, value in given.items():
        if name not in _CONDITIONS:
            raise MissingColumn(name, FILTERS[name].columns[0])
        statement = statement.where(_CONDITIONS[name](conn, value))
    if archived_ is not None:
        marked = exists().where(archived.c.session_id == _s.id)
        statement = statement.where(marked if archived_ else ~marked)
    return conn.rows(statement.order_by(_s.started_at, _s.id))
