"""Exported sessions: what a record must look like, and what it becomes in the store."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from hermes_actor.store.columns import MESSAGES, SESSIONS, Column, Form, names
from hermes_actor.store.message_codec import JSON_COLUMNS, count_calls, encode_content, encode_json
from hermes_actor.store.sessions.title_text import sanitize_title
from hermes_protocol.operations import MessageRow, SessionRow
from hermes_protocol.values import to_value

__all__ = ["BadRecord", "Record", "make_record", "read_record"]

MAX_MESSAGES = 10_000
MAX_BYTES = 5 * 1024 * 1024
"""Of one session as compact JSON. They keep a broken or hostile file from filling the store."""

_CHECKED = {"id", "source", "title", "started_at", "role"}
"""Columns with rules of their own."""


def _imported(columns: tuple[Column, ...], row: type[Struct], *forms: Form) -> tuple[str, ...]:
    """Return the columns of *forms* that an import takes as they are."""
    return tuple(
        n for n in names(columns, *forms) if n in row.__struct_fields__ and n not in _CHECKED
    )


_TEXT = _imported(SESSIONS, SessionRow, Form.TEXT, Form.KEY)
_COUNTS = _imported(SESSIONS, SessionRow, Form.COUNT)
_NUMBERS = _imported(SESSIONS, SessionRow, Form.NUMBER)
_MESSAGE_TEXT = _imported(MESSAGES, MessageRow, Form.TEXT)

T = TypeVar("T")

_BEYOND = 2**63
"""The first number that an integer column cannot hold; no time or count of ours is near it."""


class BadRecord(ValueError):
    """The record cannot be imported; the message says why."""


class Record(NamedTuple):
    """A session that can be imported."""

    session: SessionRow
    messages: list[MessageRow]
    archived: bool


def read_record(line: bytes, now: float, *, limited: bool = True) -> Record:
    """Parse one line of an export; *limited* bounds its size. Raises :class:`BadRecord`."""
    value = _decoded(line)
    if not isinstance(value, dict):
        raise BadRecord("not a JSON object")
    messages = value.get("messages", [])
    if limited and isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise BadRecord(f"{len(messages)} messages, the limit is {MAX_MESSAGES} (--no-limits)")
    if limited and len(line) > MAX_BYTES and len(_compact(value)) > MAX_BYTES:
        raise BadRecord(f"more than {MAX_BYTES // 1024 // 1024} MiB (--no-limits)")
    return make_record(value, now)


def count_records(lines: Iterable[bytes]) -> tuple[int, int]:
    """Return the sessions and the messages of an export. Raises :class:`BadRecord`."""
    sessions = messages = 0
    for line in lines:
        sessions += 1
        messages += len(read_record(line, 0.0, limited=False).messages)
    return sessions, messages


def make_record(value: dict[str, Any], now: float) -> Record:
    """Convert a session with its ``messages``, keyed by column names. Raises :class:`BadRecord`."""
    if not isinstance(value.get("id"), str) or not value["id"]:
        raise BadRecord("the id is missing")
    messages = value.get("messages", [])
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise BadRecord("messages is not a list of objects")
    session = _session(value, now)
    rows = [_message(m, n, session.started_at) for n, m in enumerate(messages)]
    return Record(session, rows, bool(value.get("archived")))


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # Structured content may hold lone surrogates, as escapes. Only the slower decoder takes
        # them; what is wrong with any other line, msgspec has said better.
        if b"\\u" in line:
            with contextlib.suppress(ValueError, RecursionError):
                return json.loads(line, parse_constant=_no_constant)
        if isinstance(error, RecursionError):
            raise BadRecord("nested too deeply") from None
        raise BadRecord(f"not JSON: {error}") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _compact(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def _session(value: dict[str, Any], now: float) -> SessionRow:
    source = _text(value, "source")
    try:
        title = sanitize_title(_text(value, "title"))
    except ValueError as error:
        raise BadRecord(str(error)) from error
    started = _number(value, "started_at")
    columns: dict[str, Any] = {
        **{name: _text(value, name) for name in _TEXT},
        **{name: int(_number(value, name) or 0) for name in _COUNTS},
        **{name: _number(value, name) for name in _NUMBERS},
    }
    return SessionRow(
        id=value["id"],
        source=source or "import",
        started_at=now if started is None else started,
        title=title,
        model_config=_config(value.get("model_config")),
        **columns,
    )


def _message(value: dict[str, Any], index: int, started_at: float) -> MessageRow:
    where = f"message {index}: "
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise BadRecord(f"{where}the role is missing")
    calls = value.get("tool_calls")
    timestamp = _number(value, "timestamp", where)
    count = _number(value, "token_count", where)
    return MessageRow(
        role=role,
        timestamp=started_at if timestamp is None else timestamp,
        content=to_value(encode_content(_storable(value.get("content"), "content", where))),
        tool_calls=calls if isinstance(calls, str) else encode_json(calls),
        token_count=None if count is None else int(count),
        calls=_calls(calls),
        **{name: _text(value, name, where) for name in _MESSAGE_TEXT},
        **{name: _stored_json(value.get(name)) for name in JSON_COLUMNS},
    )


def _calls(calls: Any) -> int:
    if isinstance(calls, str):
        try:
            calls = json.loads(calls)
        except ValueError:
            return 0
    return count_calls(calls or None)


def _stored_json(value: Any) -> str | None:
    """Return the stored form of a JSON column, which other programs may have decoded."""
    return value if isinstance(value, str) else encode_json(value)


def _config(value: Any) -> str | None:
    if value is None:
        return None
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        decoded = None
    if not isinstance(decoded, dict):
        raise BadRecord("model_config is not a JSON object")
    return value if isinstance(value, str) else json.dumps(value)


def _text(value: dict[str, Any], name: str, where: str = "") -> str | None:
    found = value.get(name)
    if found is not None and not isinstance(found, str):
        raise BadRecord(f"{where}{name} is not a text")
    return found


def _number(value: dict[str, Any], name: str, where: str = "") -> float | None:
    found = value.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise BadRecord(f"{where}{name} is not a number")
    return _storable(found, name, where)


def _storable(found: T, name: str, where: str) -> T:
    """Return *found*. Raises :class:`BadRecord` for a number that no column can hold."""
    if isinstance(found, int | float) and not -_BEYOND <= found < _BEYOND:
        raise BadRecord(f"{where}{name} is out of range")
    return found
