"""Changes of sessions, of their event log, and of memories."""

from __future__ import annotations

from typing import Any

from hermes_actor.agents import verbs
from hermes_actor.agents.changes.registry import applies
from hermes_actor.agents.documents import dumps, loads
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.values import scope_of
from hermes_actor.errors import BadValue
from hermes_protocol.agents import AgentsAppend, AgentsMergeMemory, AgentsSweep, Appended

__all__ = ["ROLES", "event_row"]

ROLES = ("system", "user", "assistant", "tool_call", "tool_result", "error")

_SESSIONS, _EVENTS, _MEMORIES = TABLES["sessions"], TABLES["session_events"], TABLES["memories"]


@applies(AgentsSweep)
def sweep(rows: Rows, op: AgentsSweep) -> int:
    """Make old sessions inactive."""
    values = {**scope_of(_SESSIONS, op.agent_id), "limit": op.older_than}
    return rows.run(
        "UPDATE @sessions SET status = 'inactive' WHERE agent_id = :agent_id"
        " AND status <> 'inactive' AND last_activity_at < :limit",
        values,
    )


def event_row(session_id: str, entry: Any) -> Row:
    """Return the columns that follow from an entry of the log. Raises :class:`BadValue`."""
    if not isinstance(entry, dict):
        raise BadValue("an entry of the log is an object")
    role, kind, text = entry.get("role"), entry.get("type"), None
    if role not in ROLES:
        raise BadValue(f"an entry has a role of {', '.join(ROLES)}; not {str(role)[:60]!r}")
    if kind is not None and (not isinstance(kind, str) or not kind):
        raise BadValue("the type of an entry is a text")
    if role in ("user", "assistant"):
        text = entry.get("content")
    elif role == "error":
        text = entry.get("message")
    user, message = entry.get("userId"), entry.get("messageId")
    return {
        "session_id": session_id,
        "ts": entry.get("ts"),
        "event_type": kind or role,
        "payload": dumps(entry),
        "content": text if isinstance(text, str) else None,
        "user_id": user if isinstance(user, str) else None,
        "message_id": message if isinstance(message, str) else None,
    }


@applies(AgentsAppend)
def append(rows: Rows, op: AgentsAppend) -> Appended:
    """Append entries to the log of a session, and count them there."""
    # The lock makes two appends of one message id wait for each other.
    session = verbs.find(rows, _SESSIONS, op.agent_id, {"session_id": op.session_id}, lock=True)
    if session is None:
        raise verbs.missing(_SESSIONS, {"session_id": op.session_id})
    entries = [loads(text) for text in op.entries]
    if op.message_id is not None:
        there = find_message(rows, op.agent_id, op.session_id, op.message_id)
        if there is not None:
            counted = op.count is not None
            return Appended(
                ids=[there],
                appended=False,
                message_count=session["message_count"] if counted else None,
                last_activity_at=session["last_activity_at"] if counted else None,
            )
        for entry in entries[:1]:
            if isinstance(entry, dict):
                entry["messageId"] = op.message_id
    made = [event_row(op.session_id, entry) for entry in entries]
    ids = [verbs.insert(rows, _EVENTS, op.agent_id, row)["id"] for row in made]
    if op.count is None:
        return Appended(ids=ids)
    changed = _counted(session, op, made)
    verbs.update(rows, _SESSIONS, op.agent_id, {"session_id": op.session_id}, changed)
    return Appended(
        ids=ids,
        message_count=changed["message_count"],
        last_activity_at=changed["last_activity_at"],
    )


def _counted(session: Row, op: AgentsAppend, made: list[Row]) -> Row:
    """Return the columns of *session* that an appended message changes."""
    newest = max((row["ts"] for row in made), default=session["last_activity_at"])
    changed = {
        "message_count": session["message_count"] + (op.count or 0),
        # Forward only: a message of the past does not make a session older.
        "last_activity_at": max(session["last_activity_at"], newest),
    }
    if op.preview is not None:
        changed["last_message_preview"] = op.preview
    people = loads(session["user_ids"])
    if op.user_id is not None and op.user_id not in people:
        changed["user_ids"] = dumps([*people, op.user_id])
    return changed


def find_message(rows: Rows, agent_id: str, session_id: str, message_id: str) -> int | None:
    """Return the id of the first event with *message_id*."""
    scope = scope_of(_EVENTS, agent_id)
    values = {**scope, "session_id": session_id, "message_id": message_id}
    found = rows.value(
        "SELECT MIN(id) AS id FROM @session_events WHERE agent_id = :agent_id"
        " AND session_id = :session_id AND message_id = :message_id",
        values,
    )
    return None if found is None else int(found)


@applies(AgentsMergeMemory)
def merge_memory(rows: Rows, op: AgentsMergeMemory) -> Row:
    """Change a memory; metadata is merged one level deep."""
    key = {"memory_key": op.memory_key}
    found = verbs.find(rows, _MEMORIES, op.agent_id, key, lock=True)
    if found is None:
        raise verbs.missing(_MEMORIES, key)
    values = dict(op.set)
    if op.metadata is not None:
        given = loads(op.metadata)
        if not isinstance(given, dict):
            raise BadValue("metadata is an object")
        values["metadata"] = dumps({**loads(found["metadata"]), **given})
    changed = verbs.update(rows, _MEMORIES, op.agent_id, key, values)
    assert changed is not None
    return changed
