"""The replay form of a transcript: what an agent sends to its model again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.message_codec import JSON_COLUMNS, decode_content, decode_json
from hermes_actor.store.registry import answers
from hermes_actor.store.rows import Row, placeholders
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.sessions.lineage import root_to_tip

__all__ = ["COLUMNS", "conversation", "is_replayed_prompt", "replayed", "strip_memory_context"]

COLUMNS = (
    "role", "content", "tool_call_id", "tool_name", "tool_calls", "finish_reason", "reasoning",
    "reasoning_content", *JSON_COLUMNS,
)  # fmt: skip


@answers(queries.conversation)
def conversation(conn: Connection, session_id: str, include_ancestors: bool) -> list[Row]:
    """Return the messages of a session, or of its parent chain too, as a model gets them."""
    chain = root_to_tip(conn, session_id) if include_ancestors else [session_id]
    rows = conn.execute(
        f"SELECT {', '.join(COLUMNS)} FROM messages m"
        f" WHERE session_id IN {placeholders(len(chain))}"
        f" AND {features_of(conn).visible} ORDER BY id",
        chain,
    ).fetchall()
    return replayed((dict(zip(COLUMNS, row)) for row in rows), include_ancestors)  # noqa: B905


def replayed(rows: Iterable[Row], include_ancestors: bool) -> list[Row]:
    """Return the replay form of rows with :data:`COLUMNS`.

    With *include_ancestors* a prompt that a resume repeated is left out.
    """
    replay: list[Row] = []
    for row in rows:
        message = _replay(row)
        if not (include_ancestors and is_replayed_prompt(replay, message)):
            replay.append(message)
    return replay


def _replay(row: Row) -> Row:
    role, content = row["role"], decode_content(row["content"])
    if role in ("user", "assistant") and isinstance(content, str):
        content = strip_memory_context(content).strip()
    message: Row = {"role": role, "content": content}
    for column in ("tool_call_id", "tool_name"):
        if row[column]:
            message[column] = row[column]
    if row["tool_calls"]:
        message["tool_calls"] = decode_json(row["tool_calls"], "tool_calls", list)
    if role == "assistant":
        for column in ("finish_reason", "reasoning"):
            if row[column]:
                message[column] = row[column]
        if row["reasoning_content"] is not None:
            message["reasoning_content"] = row["reasoning_content"]
        for column in JSON_COLUMNS:
            if row[column]:
                message[column] = decode_json(row[column], column, lambda: None)
    return message


def is_replayed_prompt(kept: list[dict[str, Any]], message: dict[str, Any]) -> bool:
    """Return True if *message* repeats a prompt that has had no answer yet.

    A resume sends the open prompt again into the new session; a repeat after an answer is meant.
    """
    content = message.get("content")
    if message.get("role") != "user" or not isinstance(content, str) or not content:
        return False
    for earlier in reversed(kept):
        role = earlier.get("role")
        if role == "user" and earlier.get("content") == content:
            return True
        if role == "assistant" and (earlier.get("content") or earlier.get("tool_calls")):
            return False
    return False


class _MemoryPatterns(NamedTuple):
    """Patterns of recalled memory. A stretch ends where group 1 of its end has matched."""

    span: re.Pattern[str]
    span_end: re.Pattern[str]
    note: re.Pattern[str]
    note_end: re.Pattern[str]
    tag: re.Pattern[str]


@cache
def _memory_patterns() -> _MemoryPatterns:
    note = (
        r"\[System note:\s*The following is recalled memory context,\s*NOT new user input\.\s*"
        r"Treat as (?:informational background data(?=\.\])|authoritative reference data)"
    )
    return _MemoryPatterns(
        *(
            re.compile(pattern, re.IGNORECASE)
            for pattern in (
                r"<\s*memory-context\s*>",
                r"(</\s*memory-context\s*>)",
                note,
                r"(\.)?\]\s*",
                r"</?\s*memory-context\s*>",
            )
        )
    )


def strip_memory_context(text: str) -> str:
    """Return *text* without recalled memory that leaked into a message."""
    if "<" not in text and "[" not in text:
        return text
    lowered = text.lower()
    if "memory-context" not in lowered and "recalled memory context" not in lowered:
        return text
    patterns = _memory_patterns()
    text = _without(text, patterns.span, patterns.span_end)
    text = _without(text, patterns.note, patterns.note_end)
    return patterns.tag.sub("", text)


def _without(text: str, begin: re.Pattern[str], end: re.Pattern[str]) -> str:
    """Return *text* without the stretches from *begin* to the next *end*.

    One pattern for both would look for an end after every beginning: quadratic in a text that only
    begins. Here each character is looked at a fixed number of times.
    """
    kept: list[str] = []
    at = 0
    while (begun := begin.search(text, at)) and (ended := end.search(text, begun.end())):
        # Without its group the end closes nothing, neither for this beginning nor for one between.
        kept.append(text[at : begun.start() if ended.group(1) else ended.end()])
        at = ended.end()
    return "".join([*kept, text[at:]])
