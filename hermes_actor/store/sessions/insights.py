"""Figures of the message rows in a window of time, counted by SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.registry import answers
from hermes_actor.store.rows import Row, scalar

__all__ = ["USAGE_COLUMNS", "Usage", "Window", "usage"]

USAGE_COLUMNS = (
    "id", "source", "model", "title", "started_at", "ended_at", "message_count",
    "tool_call_count", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
    "estimated_cost_usd", "actual_cost_usd", "cost_status",
)  # fmt: skip
_COUNTED = frozenset(USAGE_COLUMNS[6:12])
"""Their columns take NULL from other programs; it counts as nothing."""

_NEVER = 253_402_300_800
"""The first second of the year 10000. Text, which other programs can write, compares above it."""


class Window(NamedTuple):
    """Sessions that started since a time, perhaps of one source."""

    since: float
    source: str | None

    @property
    def where(self) -> str:
        """SQL condition on ``s``; its placeholders take :attr:`parameters`."""
        since = f"s.started_at >= ? AND s.started_at < {_NEVER}"
        return since + (" AND s.source = ?" if self.source else "")

    @property
    def parameters(self) -> tuple[Any, ...]:
        """Values for the placeholders of :attr:`where`."""
        return (self.since, self.source) if self.source else (self.since,)


class Usage(NamedTuple):
    """Figures of a window, each read when it is asked for, all from one state of the store."""

    sessions: Callable[[], Iterator[Row]]
    """Sessions in the order of their start."""
    message_counts: Callable[[], list[tuple[str, str | None, int]]]
    """Role, tool name (of tool messages only), number of messages."""
    tool_calls: Callable[[], list[tuple[str, int]]]
    """Tool and number of calls, as assistants made them."""
    skill_calls: Callable[[], list[tuple[str, str, int, float]]]
    """``skill_view`` or ``skill_manage``, skill, number of calls, time of the latest."""


@answers(queries.usage)
def usage(conn: Connection, window: Window, report: Callable[[Usage], Row]) -> Row:
    """Return what *report* makes of the figures of a window."""
    return report(
        Usage(
            partial(sessions_in, conn, window),
            partial(message_counts, conn, window),
            partial(tool_calls, conn, window),
            partial(skill_calls, conn, window),
        )
    )


def sessions_in(conn: Connection, window: Window) -> Iterator[Row]:
    """Yield the sessions of the window. A caller that stops early closes the iterator."""
    columns = [f"COALESCE(s.{c}, 0)" if c in _COUNTED else f"s.{c}" for c in USAGE_COLUMNS]
    with closing(conn.cursor()) as cursor:
        cursor.execute(
            f"SELECT {', '.join(columns)} FROM sessions s"
            f" WHERE {window.where} ORDER BY s.started_at",
            window.parameters,
        )
        for row in cursor:
            yield dict(zip(USAGE_COLUMNS, row))  # noqa: B905


class _Scope(NamedTuple):
    """The messages ``m`` of a window: tables to join, condition, parameters."""

    tables: str
    where: str
    parameters: tuple[Any, ...]


def _scope(conn: Connection, window: Window) -> _Scope:
    """Return the cheaper join: by message if the window has most sessions, else by session."""
    total = scalar(conn, "SELECT COUNT(*) FROM sessions")
    chosen = scalar(
        conn, f"SELECT COUNT(*) FROM sessions s WHERE {window.where}", window.parameters
    )
    if chosen == total:
        return _Scope("messages m", "1", ())
    tables = (
        "messages m CROSS JOIN sessions s ON s.id = m.session_id"
        if 2 * chosen > total
        else "sessions s CROSS JOIN messages m ON m.session_id = s.id"
    )
    return _Scope(tables, window.where, window.parameters)


def message_counts(conn: Connection, window: Window) -> list[tuple[str, str | None, int]]:
    """Return (role, tool name, number of messages); the name is set for tool messages only."""
    scope = _scope(conn, window)
    return conn.execute(
        # The tool name stands behind the content: only where it can be is it worth reading.
        "SELECT m.role, CASE m.role WHEN 'tool' THEN m.tool_name END AS tool, COUNT(*)"
        f" FROM {scope.tables} WHERE {scope.where} GROUP BY m.role, tool",
        scope.parameters,
    ).fetchall()


_CALLS = """
    FROM {tables}, json_each(CASE WHEN json_valid(m.tool_calls) THEN m.tool_calls ELSE '[]' END) j
    WHERE {where} AND m.role = 'assistant' AND m.tool_calls IS NOT NULL AND j.type = 'object'
"""
_NAME = "COALESCE(j.value ->> '$.function.name', j.value ->> '$.name')"


def tool_calls(conn: Connection, window: Window) -> list[tuple[str, int]]:
    """Return (tool, number of calls) for the calls that assistants made."""
    scope = _scope(conn, window)
    calls = _CALLS.format(tables=scope.tables, where=scope.where)
    return conn.execute(
        f"SELECT {_NAME} AS tool, COUNT(*) {calls} AND tool IS NOT NULL GROUP BY tool",
        scope.parameters,
    ).fetchall()


def skill_calls(conn: Connection, window: Window) -> list[tuple[str, str, int, float]]:
    """Return (``skill_view`` or ``skill_manage``, skill, number of calls, time of the latest)."""
    scope = _scope(conn, window)
    calls = _CALLS.format(tables=scope.tables, where=scope.where)
    arguments = "json_extract(j.value, '$.function.arguments')"
    skill = f"CASE WHEN json_valid({arguments}) THEN json_extract({arguments}, '$.name') END"
    return conn.execute(
        f"SELECT {_NAME} AS tool, {skill} AS skill, COUNT(*), MAX(m.timestamp) {calls}"
        " AND instr(m.tool_calls, '\"skill_') > 0 AND tool IN ('skill_view', 'skill_manage')"
        " AND skill IS NOT NULL GROUP BY tool, skill",
        scope.parameters,
    ).fetchall()
