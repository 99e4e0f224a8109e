"""Figures of a window of time, on a server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers
from hermes_actor.providers.sql.tables import messages, sessions
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.insights import USAGE_COLUMNS, Usage, Window

__all__: list[str] = []

_HELD = 1_000
"""Rows in memory at a time."""


@answers(queries.usage)
def usage(conn: ServerConnection, window: Window, report: Callable[[Usage], Row]) -> Row:
    """Return what *report* makes of the figures of a window."""
    chosen = _in(window)
    return report(
        Usage(
            partial(_sessions, conn, chosen),
            partial(_message_counts, conn, chosen),
            partial(_tool_calls, conn, chosen),
            partial(_skill_calls, conn, chosen),
        )
    )


def _in(window: Window) -> ColumnElement[bool]:
    since = sessions.c.started_at >= window.since
    return and_(since, sessions.c.source == window.source) if window.source else since


def _sessions(conn: ServerConnection, chosen: ColumnElement[bool]) -> Iterator[Row]:
    columns = [sessions.c[name] for name in USAGE_COLUMNS]
    ordered = select(*columns).where(chosen).order_by(sessions.c.started_at)
    with conn.stream(ordered, _HELD) as rows:
        for row in rows:
            yield dict(row._mapping)


def _message_counts(
    conn: ServerConnection, chosen: ColumnElement[bool]
) -> list[tuple[str, str | None, int]]:
    tool = case((messages.c.role == "tool", messages.c.tool_name)).label("tool")
    of_window = select(messages.c.role, tool).join(sessions, sessions.c.id == messages.c.session_id)
    found = of_window.where(chosen).subquery()
    counted = select(found.c.role, found.c.tool, func.count()).group_by(found.c.role, found.c.tool)
    return [(role, name, number) for role, name, number in conn.tuples(counted)]


def _calls(conn: ServerConnection, chosen: ColumnElement[bool]) -> Iterator[tuple[str, Any, float]]:
    """Yield tool, arguments and time of each call that an assistant made.

    Read here and not by the server: one text that is no JSON would fail its whole statement.
    """
    statement = (
        select(messages.c.tool_calls, messages.c.timestamp)
        .join(sessions, sessions.c.id == messages.c.session_id)
        .where(chosen, messages.c.role == "assistant", messages.c.tool_calls.is_not(None))
    )
    with conn.stream(statement, _HELD) as rows:
        for stored, at in rows:
            for call in _decoded(stored, list):
                function = call.get("function") if isinstance(call, dict) else None
                function = function if isinstance(function, dict) else {}
                name = function.get("name") or (isinstance(call, dict) and call.get("name"))
                if name:
                    yield str(name), function.get("arguments"), at


def _decoded(text: Any, kind: type[Any]) -> Any:
    """Return *text* read as JSON of a kind, else an empty one."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return kind()
    return found if isinstance(found, kind) else kind()


def _tool_calls(conn: ServerConnection, chosen: ColumnElement[bool]) -> list[tuple[str, int]]:
    return sorted(Counter(name for name, _, _ in _calls(conn, chosen)).items())


def _skill_calls(
    conn: ServerConnection, chosen: ColumnElement[bool]
) -> list[tuple[str, str, int, float]]:
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for name, arguments, at in _calls(conn, chosen):
        skill = _decoded(arguments, dict).get("name")
        if name in ("skill_view", "skill_manage") and skill is not None:
            number, latest = found.get((name, str(skill)), (0, at))
            found[name, str(skill)] = (number + 1, max(latest, at))
    return [(name, skill, number, latest) for (name, skill), (number, latest) in found.items()]
