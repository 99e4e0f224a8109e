"""Filters of prune, archive and export: conditions that are joined by AND."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.registry import answers
from hermes_actor.store.rows import Row, dicts
from hermes_actor.store.schema_features import features_of

__all__ = ["FILTERS", "SELECT_FOUND", "MissingColumn", "matching"]


class Filter(NamedTuple):
    """One condition: the columns it needs, its SQL on ``s`` with a placeholder, and its wording."""

    columns: tuple[str, ...]
    sql: str
    words: str


def _contains(column: str, words: str) -> Filter:
    return Filter((column,), f"instr(lower(s.{column}), lower(?)) > 0", words)


def _is(column: str, words: str) -> Filter:
    return Filter((column,), f"s.{column} = ?", words)


_TOKENS = "COALESCE(s.input_tokens, 0) + COALESCE(s.output_tokens, 0)"
_COST = "COALESCE(s.actual_cost_usd, s.estimated_cost_usd, 0)"

FILTERS: Mapping[str, Filter] = {
    "started_before": Filter((), "s.started_at < ?", "started before {}"),
    "started_after": Filter((), "s.started_at >= ?", "started after {}"),
    "source": _is("source", "source '{}'"),
    "title": _contains("title", "title contains '{}'"),
    "end_reason": _is("end_reason", "end reason '{}'"),
    # A path lies under a folder if it begins with the folder and a slash; LIKE would need escapes.
    "cwd": Filter(
        ("cwd",),
        "(s.cwd = ?1 OR substr(s.cwd, 1, length(rtrim(?1, '/')) + 1) = rtrim(?1, '/') || '/')",
        "cwd under '{}'",
    ),
    "min_messages": Filter((), "s.message_count >= ?", ">= {} messages"),
    "max_messages": Filter((), "s.message_count <= ?", "<= {} messages"),
    "model": _contains("model", "model contains '{}'"),
    "provider": Filter(
        ("billing_provider",), "lower(s.billing_provider) = lower(?)", "provider '{}'"
    ),
    "user": _is("user_id", "user '{}'"),
    "chat_id": _is("chat_id", "chat '{}'"),
    "chat_type": _is("chat_type", "chat type '{}'"),
    "branch": _contains("git_branch", "git branch contains '{}'"),
    "min_tokens": Filter((), f"{_TOKENS} >= ?", ">= {} tokens"),
    "max_tokens": Filter((), f"{_TOKENS} <= ?", "<= {} tokens"),
    "min_cost": Filter((), f"{_COST} >= ?", ">= ${:g}"),
    "max_cost": Filter((), f"{_COST} <= ?", "<= ${:g}"),
    "min_tool_calls": Filter((), "s.tool_call_count >= ?", ">= {} tool calls"),
    "max_tool_calls": Filter((), "s.tool_call_count <= ?", "<= {} tool calls"),
}


SELECT_FOUND = (
    "SELECT s.id, s.started_at, s.source, s.model, s.message_count, s.title FROM sessions s"
)
"""Columns shown of a session that is about to be changed."""


class MissingColumn(Exception):
    """The file does not record what a filter asks for."""

    def __init__(self, name: str, column: str) -> None:
        super().__init__(f"{name} needs the column {column}, which this file does not have")
        self.name = name
        self.column = column


@answers(queries.matching_sessions)
def matching(conn: Connection, given: Mapping[str, Any], archived: bool | None = None) -> list[Row]:
    """Return ended sessions that meet every condition in *given*, oldest first.

    *archived*: only archived ones, only others, or (``None``) both. Raises :class:`MissingColumn`
    if the file lacks a column that a condition needs.
    """
    features = features_of(conn)
    present = {row[1] for row in conn.execute("PRAGMA table_info(sessions)")}
    conditions, parameters = ["s.ended_at IS NOT NULL", "s.id IS NOT NULL"], list[Any]()
    for name, value in given.items():
        for column in FILTERS[name].columns:
            if column not in present:
                raise MissingColumn(name, column)
        # Numbered, because one condition uses its value twice.
        place = f"?{len(parameters) + 1}"
        conditions.append(FILTERS[name].sql.replace("?1", "?").replace("?", place))
        parameters.append(value)
    if archived is not None:
        conditions.append(features.is_archived if archived else f"NOT {features.is_archived}")
    return dicts(
        conn,
        f"{SELECT_FOUND} WHERE {' AND '.join(conditions)} ORDER BY s.started_at, s.id",
        parameters,
    )
