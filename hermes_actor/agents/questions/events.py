"""Reads of the event log: history, messages, entries, cursors."""

from __future__ import annotations

from typing import Any

from hermes_actor.agents.documents import loads
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.values import scope_of

__all__ = [
    "cursors", "entries", "entries_since_compaction", "history", "messages_since",
    "recent_messages",
]  # fmt: skip

_EVENTS = TABLES["session_events"]
_SESSION = "FROM @session_events WHERE agent_id = :agent_id AND session_id = :session_id"
_MESSAGES = "event_type IN ('user', 'assistant', 'error')"
_SHOWN = (
    "(content IS NOT NULL OR event_type IN"
    " ('tool_call', 'tool_result', 'introspection_start', 'introspection_end'))"
)


def _values(agent_id: str, session_id: str, **others: Any) -> Row:
    return {**scope_of(_EVENTS, agent_id), "session_id": session_id, **others}


def history(
    rows: Rows, agent_id: str, session_id: str, after_id: int | None, limit: int | None
) -> list[Row]:
    """Return what people see of a session, in the order of time."""
    values = _values(agent_id, session_id)
    page = ""
    if after_id is not None:
        values["after"], page = after_id, " AND id > :after"
    cut = f" LIMIT {int(limit)}" if limit is not None else ""
    found = rows.all(
        f"SELECT event_type, ts, content, payload, user_id {_SESSION} AND {_SHOWN}{page}"
        f" ORDER BY ts, id{cut}",
        values,
    )
    agent = rows.value(
        "SELECT name FROM @agents WHERE agent_id = :agent_id", scope_of(_EVENTS, agent_id)
    )
    names = _names(rows, {row["user_id"] for row in found if row["user_id"]})
    return [_message(row, agent, names) for row in found]


def _names(rows: Rows, ids: set[str]) -> dict[str, str]:
    if not ids:
        return {}
    values = {f"u{number}": one for number, one in enumerate(sorted(ids))}
    listed = ", ".join(f":{name}" for name in values)
    found = rows.all(f"SELECT user_id, name FROM @users WHERE user_id IN ({listed})", values)
    return {row["user_id"]: row["name"] for row in found if row["name"]}


def _message(row: Row, agent: str | None, names: dict[str, str]) -> Row:
    """Return one event as people see it."""
    payload, kind = loads(row["payload"]), row["event_type"]
    made: Row = {"ts": row["ts"]}
    if kind == "user":
        made |= {"role": "user", "content": row["content"]}
        made |= _given(payload, {
            "messageId": ("message_id", str), "attachments": ("attachments", list),
            "metadata": ("metadata", dict),
        })  # fmt: skip
        name = names.get(row["user_id"] or "")
        return {**made, "name": name} if name else made
    if kind == "assistant":
        made |= {"role": "assistant", "content": row["content"]}
        made |= _given(payload, {
            "provider": ("provider", str), "model": ("model", str),
            "stopReason": ("stop_reason", str), "thinking": ("thinking", str),
            "actions": ("actions", list), "metadata": ("metadata", dict),
        })  # fmt: skip
        return {**made, "name": agent} if agent else made
    if kind in ("tool_call", "tool_result"):
        return {**made, **_tool(payload, kind)}
    if kind in ("introspection_start", "introspection_end"):
        made |= {"role": "introspection", "content": "", "introspection_phase": kind[14:]}
        if kind == "introspection_end":
            made["introspection_summary"] = payload.get("summary") or ""
        return made
    return {**made, "role": "error", "content": row["content"]}


def _given(payload: Row, wanted: dict[str, tuple[str, type]]) -> Row:
    return {
        name: payload[key]
        for key, (name, form) in wanted.items()
        if isinstance(payload.get(key), form)
    }


def _tool(payload: Row, kind: str) -> Row:
    text = payload.get("text")
    if not isinstance(text, str):
        text = payload.get("content")
    made = {
        "role": "tool",
        "content": text if isinstance(text, str) else "",
        "tool": payload.get("name") or payload.get("tool") or "",
        "tool_phase": kind[5:],
        "tool_is_error": bool(payload.get("isError")) if kind == "tool_result" else False,
    }
    if payload.get("args") is not None:
        made["tool_args"] = payload["args"]
    if isinstance(payload.get("toolCallId"), str):
        made["tool_call_id"] = payload["toolCallId"]
    return {**made, "introspection": True} if payload.get("introspection") is True else made


def _plain(row: Row, *, people: bool) -> Row:
    payload = loads(row["payload"])
    made = {"role": row["event_type"], "content": row["content"] or "", "ts": row["ts"]}
    if people:
        made["event_id"] = row["id"]
        if row["user_id"]:
            made["user_id"] = row["user_id"]
        made |= _given(payload, {"messageId": ("message_id", str), "userName": ("user_name", str),
                                 "mentioned": ("mentioned", bool)})  # fmt: skip
    return made


def messages_since(rows: Rows, agent_id: str, session_id: str, after_id: int) -> list[Row]:
    """Return the messages with a higher id, in the order in which they were appended."""
    found = rows.all(
        f"SELECT id, event_type, ts, content, payload, user_id {_SESSION} AND {_MESSAGES}"
        " AND id > :after ORDER BY id",
        _values(agent_id, session_id, after=after_id),
    )
    return [_plain(row, people=True) for row in found]


def recent_messages(
    rows: Rows, agent_id: str, session_id: str, limit: int, offset: int
) -> list[Row]:
    """Return the newest messages, oldest first, after *offset* newer ones."""
    found = rows.all(
        f"SELECT id, event_type, ts, content, payload, user_id {_SESSION} AND {_MESSAGES}"
        f" ORDER BY id DESC LIMIT {max(0, int(limit))} OFFSET {max(0, int(offset))}",
        _values(agent_id, session_id),
    )
    return [_plain(row, people=False) for row in reversed(found)]


def entries(rows: Rows, agent_id: str, session_id: str) -> list[Row]:
    """Return every entry with its id, in the order of time."""
    found = rows.all(
        f"SELECT id, payload {_SESSION} ORDER BY ts, id", _values(agent_id, session_id)
    )
    return [{"id": row["id"], "entry": loads(row["payload"])} for row in found]


def compaction(rows: Rows, agent_id: str, session_id: str) -> tuple[int, str | None]:
    """Return the id and the text of the newest summary; 0 and nothing without one."""
    found = rows.one(
        f"SELECT id, payload {_SESSION} AND event_type = 'context_compaction'"
        " ORDER BY id DESC LIMIT 1",
        _values(agent_id, session_id),
    )
    if found is None:
        return 0, None
    text = loads(found["payload"]).get("content")
    return found["id"], text if isinstance(text, str) else None


def entries_since_compaction(rows: Rows, agent_id: str, session_id: str) -> Row:
    """Return the newest summary and the entries after it."""
    after, summary = compaction(rows, agent_id, session_id)
    found = rows.all(
        f"SELECT id, payload {_SESSION} AND id > :after ORDER BY id",
        _values(agent_id, session_id, after=after),
    )
    made: Row = {"entries": [loads(row["payload"]) for row in found]}
    return {"compaction_summary": summary, **made} if summary is not None else made


def cursors(rows: Rows, agent_id: str, session_id: str) -> Row:
    """Return the newest id, that of the last introspection, and what came after it."""
    values = _values(agent_id, session_id)
    latest = rows.value(f"SELECT MAX(id) AS id {_SESSION}", values) or 0
    last = rows.value(
        f"SELECT MAX(id) AS id {_SESSION} AND event_type = 'introspection_end'", values
    )
    counted = rows.all(
        f"SELECT event_type, COUNT(*) AS n {_SESSION} AND event_type IN ('agent_end', 'user')"
        " AND id > :after GROUP BY event_type",
        {**values, "after": last or 0},
    )
    counts = {row["event_type"]: int(row["n"]) for row in counted}
    return {
        "latest_id": int(latest),
        "last_introspection_id": int(last or 0),
        "turns_since": counts.get("agent_end", 0),
        "user_messages_since": counts.get("user", 0),
    }
