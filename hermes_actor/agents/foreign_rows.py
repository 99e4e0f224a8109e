"""Rows of an OpenHermit database, of any of its versions, in the form of the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_actor.agents import words
from hermes_actor.agents.documents import dumps, json_or_text
from hermes_actor.agents.rows import Row
from hermes_actor.agents.tables import Form, Table
from hermes_actor.agents.times import canonical
from hermes_actor.errors import BadValue

__all__ = ["converted"]

_EVENTS = {
    "tool_approval_requested": "approval_requested", "tool_approval_resolved": "approval_resolved",
}  # fmt: skip


def converted(table: Table, row: Mapping[str, Any]) -> Row:
    """Return *row* with the columns of the registry; what it lacks gets its default later.

    Raises :class:`BadValue` for a time that cannot be read.
    """
    made: Row = {}
    for column in table.columns:
        # An older line of versions kept JSON as text, in columns of another name.
        name = column.name if column.name in row else f"{column.name}_json"
        value = row.get(name)
        if value is None:
            continue
        if column.form is Form.JSON:
            value = dumps(json_or_text(value) if isinstance(value, str) else value)
        elif column.form is Form.TIME:
            value = canonical(value) if value else None
        elif column.form is Form.FLAG:
            value = bool(value)
        made[column.name] = value
    change = _CHANGES.get(table.name)
    if change is not None:
        change(made)
    return made


def _event(row: Row) -> None:
    payload = json_or_text(row.get("payload", "{}"))
    kind = row.get("event_type")
    if kind in _EVENTS:
        row["event_type"] = _EVENTS[kind]
        payload = {**payload, "type": _EVENTS[kind]} if "type" in payload else payload
    elif kind == "channel_message_sent":
        moved = {name: payload.pop(name) for name in ("channel", "to", "messageId", "fromSession")
                 if name in payload}  # fmt: skip
        text = payload.pop("text", "")
        payload.pop("type", None)
        payload |= {"role": "assistant", "content": text}
        payload["metadata"] = {**moved, "source": "session_send"}
        row |= {"event_type": "assistant", "content": text}
    row["payload"] = dumps(payload)
    message = payload.get("messageId") if isinstance(payload, dict) else None
    row["message_id"] = message if isinstance(message, str) else None


def _memory(row: Row) -> None:
    row["created_at"] = row.get("created_at") or row.get("updated_at")
    row |= words.columns(row["memory_key"], row["content"])


def _schedule(row: Row) -> None:
    mode, delivery = (
        json_or_text(row.get(name) or "null") for name in ("session_mode", "delivery")
    )
    kind = mode.get("kind") if isinstance(mode, dict) else mode
    row["session_mode"] = dumps({"kind": "ephemeral" if kind == "ephemeral" else "dedicated"})
    silent = delivery is None or delivery == "silent"
    row["delivery"] = dumps({"kind": "silent"} if silent else delivery)


def _channel(row: Row) -> None:
    row.setdefault("kind", "external")
    row.setdefault("channel_type", row.get("namespace"))
    row.setdefault("updated_at", row.get("created_at"))


def _sandbox(row: Row) -> None:
    if row.get("status") == "active":
        row["status"] = "provisioned"


def _skill(row: Row) -> None:
    row.setdefault("slug", row.get("id"))


def _agent(row: Row) -> None:
    if row.get("agent_id") in (None, ""):
        raise BadValue("an agent without an id")


_CHANGES = {
    "session_events": _event, "memories": _memory, "schedules": _schedule, "agents": _agent,
    "agent_channels": _channel, "sandboxes": _sandbox, "skills": _skill,
}  # fmt: skip
