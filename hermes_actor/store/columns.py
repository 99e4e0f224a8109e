"""The columns of ``sessions`` and ``messages``, described once.

The schema of the file, the insert of a message, the tables on a server, import and replay derive
from these two tables. A new column is described here, and named in the operation that carries it
(:class:`hermes_protocol.operations.MessageRow` or ``SessionRow``; a test compares them) and in the
public method that takes it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["COUNTERS", "MESSAGES", "SESSIONS", "Column", "Form", "create_table", "names"]


class Form(Enum):
    """Kind of value that callers give and exports hold for a column."""

    TEXT = "text"
    KEY = "key"
    """Text that is looked up by an index: servers bound its length."""
    NUMBER = "number"
    """A time or an amount of money."""
    COUNT = "count"
    """A whole number; a counter of a session begins at 0."""
    JSON = "json"
    """Any value; stored as JSON text, or as NULL if it is empty."""
    CONTENT = "content"
    """Text, number or bytes as they are; anything else as marked JSON text."""


class Column(NamedTuple):
    """One column: how the file declares it, and what its values are."""

    name: str
    declared: str
    """Type and constraints in the file. Shared with other programs: never changed."""
    form: Form = Form.TEXT
    assistant_only: bool = False
    """True if a transcript keeps it for messages of the assistant only."""


SESSIONS = (
    Column("id", "TEXT PRIMARY KEY", Form.KEY),
    Column("source", "TEXT NOT NULL", Form.KEY),
    Column("user_id", "TEXT", Form.KEY),
    Column("model", "TEXT"),
    Column("model_config", "TEXT", Form.JSON),
    Column("system_prompt", "TEXT"),
    Column("parent_session_id", "TEXT", Form.KEY),
    Column("started_at", "REAL NOT NULL", Form.NUMBER),
    Column("ended_at", "REAL", Form.NUMBER),
    Column("end_reason", "TEXT"),
    Column("message_count", "INTEGER DEFAULT 0", Form.COUNT),
    Column("tool_call_count", "INTEGER DEFAULT 0", Form.COUNT),
    Column("input_tokens", "INTEGER DEFAULT 0", Form.COUNT),
    Column("output_tokens", "INTEGER DEFAULT 0", Form.COUNT),
    Column("cache_read_tokens", "INTEGER DEFAULT 0", Form.COUNT),
    Column("cache_write_tokens", "INTEGER DEFAULT 0", Form.COUNT),
    Column("reasoning_tokens", "INTEGER DEFAULT 0", Form.COUNT),
    Column("billing_provider", "TEXT"),
    Column("billing_base_url", "TEXT"),
    Column("billing_mode", "TEXT"),
    Column("estimated_cost_usd", "REAL", Form.NUMBER),
    Column("actual_cost_usd", "REAL", Form.NUMBER),
    Column("cost_status", "TEXT"),
    Column("cost_source", "TEXT"),
    Column("pricing_version", "TEXT"),
    Column("title", "TEXT", Form.KEY),
    Column("api_call_count", "INTEGER DEFAULT 0", Form.COUNT),
    Column("handoff_state", "TEXT"),
    Column("handoff_platform", "TEXT"),
    Column("handoff_error", "TEXT"),
)

MESSAGES = (
    Column("id", "INTEGER PRIMARY KEY AUTOINCREMENT", Form.COUNT),
    Column("session_id", "TEXT NOT NULL REFERENCES sessions(id)", Form.KEY),
    Column("role", "TEXT NOT NULL"),
    Column("content", "TEXT", Form.CONTENT),
    Column("tool_call_id", "TEXT"),
    Column("tool_calls", "TEXT", Form.JSON),
    Column("tool_name", "TEXT"),
    Column("timestamp", "REAL NOT NULL", Form.NUMBER),
    Column("token_count", "INTEGER", Form.COUNT),
    Column("finish_reason", "TEXT"),
    Column("reasoning", "TEXT", assistant_only=True),
    Column("reasoning_content", "TEXT", assistant_only=True),
    Column("reasoning_details", "TEXT", Form.JSON, assistant_only=True),
    Column("codex_reasoning_items", "TEXT", Form.JSON, assistant_only=True),
    Column("codex_message_items", "TEXT", Form.JSON, assistant_only=True),
)

COUNTERS = tuple(column.name for column in SESSIONS if column.name.endswith("_tokens"))
"""Tokens that a session adds up, in the order of the columns."""


def create_table(table: str, columns: tuple[Column, ...], *constraints: str) -> str:
    """Return the ``CREATE TABLE`` statement of the file, one column a line."""
    lines = [*(f"{column.name} {column.declared}" for column in columns), *constraints]
    body = ",\n".join(f"    {line}" for line in lines)
    return f"CREATE TABLE IF NOT EXISTS {table} (\n{body}\n);"


def names(columns: tuple[Column, ...], *forms: Form) -> tuple[str, ...]:
    """Return the names of the columns that have one of *forms*."""
    return tuple(column.name for column in columns if column.form in forms)
