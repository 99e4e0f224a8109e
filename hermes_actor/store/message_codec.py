"""How values of a message become columns, and columns become values again.

This is file format. Structured content is marked by a NUL and ``json:``; SQLite's string
functions stop at a NUL, so such rows have no preview, never match LIKE and are not indexed by
the trigram tokenizer. Other programs rely on just that.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from hermes_protocol.operations import MessageRow
from hermes_protocol.values import Stored, to_value

__all__ = [
    "JSON_COLUMNS",
    "JSON_PREFIX",
    "count_calls",
    "decode_content",
    "decode_json",
    "encode_content",
    "encode_json",
    "message_row",
]

JSON_PREFIX = "\x00json:"

_log = logging.getLogger("hermes_state")

JSON_COLUMNS = ("reasoning_details", "codex_reasoning_items", "codex_message_items")
_ASSISTANT_ONLY = ("reasoning", "reasoning_content", *JSON_COLUMNS)


def encode_content(content: Any) -> Stored:
    """The stored form of message content."""
    if content is None or isinstance(content, str | bytes | int | float):
        return content
    try:
        return JSON_PREFIX + json.dumps(content)
    except (TypeError, ValueError):
        return str(content)


def decode_content(stored: Any) -> Any:
    """Message content from its stored form; text that only looks structured stays text."""
    if isinstance(stored, str) and stored.startswith(JSON_PREFIX):
        try:
            return json.loads(stored[len(JSON_PREFIX) :])
        except ValueError:
            _log.warning("structured message content is not valid JSON; returned as text")
    return stored


def encode_json(value: Any) -> str | None:
    """The stored form of a JSON column: text if the value is truthy, else NULL."""
    return json.dumps(value) if value else None


def decode_json(stored: Any, column: str, broken: Callable[[], Any]) -> Any:
    """A JSON column; *broken* makes the answer for text that is not JSON."""
    try:
        return json.loads(stored)
    except (TypeError, ValueError):
        _log.warning("column %s holds text that is not valid JSON", column)
        return broken()


def count_calls(tool_calls: Any) -> int:
    """What a message adds to ``tool_call_count``. An empty dict counts one, as it always did."""
    if tool_calls is None:
        return 0
    return len(tool_calls) if isinstance(tool_calls, list) else 1


def message_row(timestamp: float, message: Mapping[str, Any]) -> MessageRow:
    """The stored form of a message given as a mapping of :meth:`append_message` arguments."""
    return MessageRow(
        role=message.get("role"),
        timestamp=timestamp,
        content=to_value(encode_content(message.get("content"))),
        tool_call_id=message.get("tool_call_id"),
        tool_calls=encode_json(message.get("tool_calls")),
        tool_name=message.get("tool_name"),
        token_count=message.get("token_count"),
        finish_reason=message.get("finish_reason"),
        reasoning=message.get("reasoning"),
        reasoning_content=message.get("reasoning_content"),
        reasoning_details=encode_json(message.get("reasoning_details")),
        codex_reasoning_items=encode_json(message.get("codex_reasoning_items")),
        codex_message_items=encode_json(message.get("codex_message_items")),
        calls=count_calls(message.get("tool_calls")),
    )


def transcript_rows(now: float, messages: list[dict[str, Any]]) -> list[MessageRow]:
    """The stored form of a whole transcript: a microsecond apart, reasoning of assistants only."""
    rows = []
    for message in messages:
        kept = dict(message, role=message.get("role", "unknown"))
        if kept["role"] != "assistant":
            for column in _ASSISTANT_ONLY:
                kept.pop(column, None)
        rows.append(message_row(now, kept))
        now += 1e-6
    return rows
