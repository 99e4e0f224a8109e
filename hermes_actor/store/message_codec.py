"""Codec of messages: values of callers to columns, and back.

This is file format. Structured content is marked by a NUL and ``json:``; SQLite's string
functions stop at a NUL, so such rows have no preview, never match LIKE and are not indexed by
the trigram tokenizer. Other programs rely on just that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from hermes_actor.store.columns import MESSAGES, Form
from hermes_protocol.operations import MessageRow
from hermes_protocol.values import Stored, to_value

__all__ = [
    "JSON_COLUMNS", "JSON_PREFIX", "count_calls", "decode_content", "decode_json", "decode_row",
    "encode_content", "encode_json", "transcript_rows",
]  # fmt: skip

JSON_PREFIX = "\x00json:"

_log = logging.getLogger("hermes_state")

JSON_COLUMNS = tuple(
    column.name for column in MESSAGES if column.assistant_only and column.form is Form.JSON
)
"""JSON columns of an assistant's messages. Exports hold them as they are stored."""


def encode_content(content: Any) -> Stored:
    """Return the stored form of message content; ``str`` of it if JSON cannot hold it."""
    if content is None or isinstance(content, str | bytes | int | float):
        return content
    try:
        return JSON_PREFIX + json.dumps(content)
    except (TypeError, ValueError):
        return str(content)


def decode_content(stored: Any) -> Any:
    """Return message content from its stored form; text that only looks structured stays text."""
    if isinstance(stored, str) and stored.startswith(JSON_PREFIX):
        try:
            return json.loads(stored[len(JSON_PREFIX) :])
        except ValueError:
            _log.warning("structured message content is not valid JSON; returned as text")
    return stored


def encode_json(value: Any) -> str | None:
    """Return the stored form of a JSON column: text if the value is truthy, else ``None``."""
    return json.dumps(value) if value else None


def decode_json(stored: Any, column: str, broken: Callable[[], Any]) -> Any:
    """Return the value of a JSON column; the result of *broken* if the text is not JSON."""
    try:
        return json.loads(stored)
    except (TypeError, ValueError):
        _log.warning("column %s holds text that is not valid JSON", column)
        return broken()


def decode_row(row: dict[str, Any]) -> dict[str, Any]:
    """Decode content and tool calls of a message row, in place, and return it."""
    row["content"] = decode_content(row["content"])
    if row["tool_calls"]:
        row["tool_calls"] = decode_json(row["tool_calls"], "tool_calls", list)
    return row


def count_calls(tool_calls: Any) -> int:
    """Return what a message adds to ``tool_call_count``. An empty dict counts one."""
    if tool_calls is None:
        return 0
    return len(tool_calls) if isinstance(tool_calls, list) else 1


_ENCODE: dict[Form, Callable[[Any], Any]] = {
    Form.JSON: encode_json,
    Form.CONTENT: lambda content: to_value(encode_content(content)),
}
_COLUMNS = tuple(
    (column.name, _ENCODE.get(column.form, lambda value: value), column.assistant_only)
    for column in MESSAGES
    if column.name not in ("id", "session_id", "role", "timestamp")
)


def transcript_rows(now: float, messages: list[dict[str, Any]]) -> list[MessageRow]:
    """Return the stored form of messages given as dicts of ``append_message`` arguments.

    Other keys are ignored, and reasoning is kept for assistants only. Times are a microsecond
    apart.
    """
    rows = []
    for message in messages:
        role = message.get("role", "unknown")
        stored = {
            name: encode(message[name])
            for name, encode, assistant_only in _COLUMNS
            if name in message and (role == "assistant" or not assistant_only)
        }
        calls = count_calls(message.get("tool_calls"))
        rows.append(MessageRow(role=role, timestamp=now, calls=calls, **stored))
        now += 1e-6
    return rows
