"""Sessions of an agent and their event log."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from hermes_actor.agent_store.subject import Numbers, Records, Subject, counted, mapping
from hermes_actor.agents import times
from hermes_actor.agents.changes.sessions import find_message
from hermes_actor.agents.documents import dumps
from hermes_actor.agents.questions import events
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.values import scope_of
from hermes_actor.agents.verbs import missing
from hermes_actor.errors import BadValue
from hermes_protocol.agents import AgentsAppend, AgentsSweep, Appended

__all__ = ["Events", "Sessions", "short_description"]

_COLUMNS = (
    "session_id", "source_kind", "source_platform", "interactive", "created_at",
    "last_activity_at", "description", "description_source", "message_count",
    "completed_turn_count", "last_message_preview", "metadata", "status", "type", "user_ids",
    "custom_instruction",
)  # fmt: skip


def short_description(text: str) -> str:
    """Return the first words of *text* on one line, at most 80 characters."""
    line = re.sub(r"\s+", " ", text).strip()
    return line if len(line) <= 80 else f"{line[:77]}..."


def _listed(
    rows: Rows,
    agent_id: str,
    user: str | None,
    inactive: bool,
    before: str | None,
    limit: int | None,
) -> Records:
    values: Row = dict(scope_of(TABLES["sessions"], agent_id))
    where = "" if inactive else " AND status <> 'inactive'"
    if user is not None:
        values["who"] = dumps(user)
        where += f" AND {rows.list_has('user_ids', 'who')}"
    if before is not None:
        values["before"] = before
        where += " AND last_activity_at < :before"
    cut = "" if limit is None else f" LIMIT {limit}"
    columns = ", ".join(f'"{name}"' for name in _COLUMNS)
    return rows.all(
        f"SELECT {columns} FROM @sessions WHERE agent_id = :agent_id{where}"
        f" ORDER BY last_activity_at DESC, session_id{cut}",
        values,
    )


class Sessions(Subject):
    """Conversations."""

    table = "sessions"

    def _record(self, row: Mapping[str, Any]) -> Row:
        made = super()._record({name: row[name] for name in _COLUMNS})
        group = made.pop("type") == "group"
        source = {"kind": made.pop("source_kind"), "interactive": made.pop("interactive")}
        if platform := made.pop("source_platform", None):
            source["platform"] = platform
        if group:
            made["type"] = source["type"] = "group"
        for name in ("metadata", "user_ids"):
            if not made[name]:
                del made[name]
        if made.get("description_source") not in ("fallback", "ai"):
            made.pop("description_source", None)
        return {"session_id": made.pop("session_id"), "source": source, **made}

    def upsert(self, entry: Row) -> bool:
        """Insert a session or update it; returns True if it is new.

        Source, type, creation and custom instruction of a session that exists stay; what the entry
        leaves out of the rest becomes empty.
        """
        if not isinstance(mapping(entry, "a session").get("source"), dict):
            raise BadValue("an entry of a session has a session_id and a source with its kind")
        source, now = entry["source"], self._now()
        created = entry.get("created_at") or now
        row = {
            "session_id": entry.get("session_id"),
            "source_kind": source.get("kind"),
            "source_platform": source.get("platform"),
            "interactive": source.get("interactive", False),
            "created_at": times.canonical(created),
            "last_activity_at": times.canonical(entry.get("last_activity_at") or created),
            "description": entry.get("description"),
            "description_source": entry.get("description_source"),
            "message_count": entry.get("message_count", 0),
            "completed_turn_count": entry.get("completed_turn_count", 0),
            "last_message_preview": entry.get("last_message_preview"),
            "metadata": dumps(entry.get("metadata") or {}),
            "status": entry.get("status") or "idle",
            "type": entry.get("type") or source.get("type") or "direct",
            "user_ids": dumps(entry.get("user_ids") or []),
            "custom_instruction": entry.get("custom_instruction"),
        }
        return self._put(row).inserted == 1

    def get(self, session_id: str) -> Row | None:
        """Return a session, ``None`` if there is none."""
        return self._get({"session_id": session_id})

    def visible(self, session_id: str, user_id: str | None, role: str | None) -> Row:
        """Return a session that a user may see: the owner all, others those they take part in.

        Raises :class:`NotFound` for every other one.
        """
        found = self.get(session_id)
        if found is None or (role != "owner" and user_id not in found.get("user_ids", [])):
            raise missing(TABLES["sessions"], {"session_id": session_id})
        return found

    def list(
        self,
        *,
        user_id: str | None = None,
        include_inactive: bool = False,
        limit: int | None = None,
        before: str | datetime | None = None,
    ) -> Records:
        """Return the sessions, latest activity first; those of one user, if named."""
        until = None if before is None else times.canonical(before)
        most = None if limit is None else counted(limit, "limit")
        found = self._store.ask(_listed, self._agent, user_id, include_inactive, until, most)
        return [self._record(row) for row in found]

    def set_description(self, session_id: str, text: str, source: str) -> bool:
        """Set the title of a session; returns False if there is none."""
        if source not in ("fallback", "ai"):
            raise BadValue("the source of a description is 'fallback' or 'ai'")
        values = {"description": text, "description_source": source}
        return self._patch({"session_id": session_id}, values, missing="nothing") is not None

    def set_status(self, session_id: str, status: str) -> bool:
        """Set the status of a session; returns False if there is none."""
        key = {"session_id": session_id}
        return self._patch(key, {"status": status}, missing="nothing") is not None

    def delete(self, session_id: str) -> int:
        """Delete a session and its events; returns how many events went."""
        return self._delete({"session_id": session_id}).get("session_events", 0)

    def mark_stale_inactive(self, older_than: str | datetime) -> int:
        """Make sessions inactive whose last activity is before a time; returns how many."""
        limit = times.canonical(older_than)
        return self._store.submit(AgentsSweep(agent_id=self._agent, older_than=limit))

    def working_memory(self, session_id: str) -> str | None:
        """Return the working memory of a session."""
        row = self._row({"session_id": session_id})
        return None if row is None else row["working_memory"]

    def set_working_memory(
        self, session_id: str, content: str, updated_at: str | datetime | None = None
    ) -> None:
        """Replace it. Raises :class:`NotFound` for an unknown session."""
        values = {"working_memory": content, "working_memory_updated_at": self._now(updated_at)}
        self._patched({"session_id": session_id}, values)

    def wait_for_idle(self) -> None:
        """Return at once: a change that was acknowledged is made."""


class Events(Subject):
    """The log of sessions."""

    table = "session_events"

    def _entry(self, entry: Any) -> str:
        if not isinstance(entry, dict):
            raise BadValue("an entry of the log is an object with a role")
        ts = entry.get("ts")
        return dumps({**entry, "ts": self._now() if ts is None else times.canonical(ts)})

    def _append(self, session_id: str, entries: Sequence[Row], **options: Any) -> Appended:
        made = [self._entry(entry) for entry in entries]
        return self._store.submit(
            AgentsAppend(agent_id=self._agent, session_id=session_id, entries=made, **options)
        )

    def append(self, session_id: str, entry: Row, *, message_id: str | None = None) -> int:
        """Append an entry and return its id; with *message_id* only once.

        Raises :class:`NotFound` for an unknown session.
        """
        return self._append(session_id, [entry], message_id=message_id).ids[0]

    def append_many(self, session_id: str, entries: Sequence[Row]) -> Numbers:
        """Append entries in one step and return their ids."""
        return self._append(session_id, entries).ids

    def append_once(self, session_id: str, message_id: str, entry: Row) -> Row:
        """Append unless the session has an event of this message id."""
        done = self._append(session_id, [entry], message_id=message_id)
        return {"appended": done.appended, "id": done.ids[0]}

    def record_message(
        self,
        session_id: str,
        entry: Row,
        *,
        message_id: str | None = None,
        count: int = 1,
        preview: str | None = None,
        user_id: str | None = None,
    ) -> Row:
        """Append a message and count it in its session, in one step."""
        done = self._append(
            session_id, [entry], message_id=message_id, count=count, preview=preview,
            user_id=user_id,
        )  # fmt: skip
        return {
            "appended": done.appended,
            "id": done.ids[0],
            "message_count": done.message_count,
            "last_activity_at": done.last_activity_at,
        }

    def session_started(
        self,
        session_id: str,
        source: Row,
        *,
        provider: str,
        model: str,
        metadata: Row | None = None,
    ) -> int:
        """Append the entry with which the log of a session begins."""
        entry: Row = {"role": "system", "type": "session_started", "sessionId": session_id}
        entry |= {"source": source, "model": {"provider": provider, "model": model}}
        return self.append(session_id, {**entry, **({"metadata": metadata} if metadata else {})})

    def find_by_message_id(self, session_id: str, message_id: str) -> int | None:
        """Return the id of the first event with a message id."""
        return self._store.ask(find_message, self._agent, session_id, message_id)

    def history(
        self, session_id: str, *, after_id: int | None = None, limit: int | None = None
    ) -> Records:
        """Return what people see of a session, in the order of time."""
        after = None if after_id is None else counted(after_id, "after_id", None)
        most = None if limit is None else counted(limit, "limit")
        return self._store.ask(events.history, self._agent, session_id, after, most)

    def messages_since(self, session_id: str, after_id: int) -> Records:
        """Return the messages after an id, in the order in which they were appended."""
        after = counted(after_id, "after_id", None)
        return self._store.ask(events.messages_since, self._agent, session_id, after)

    def recent_messages(self, session_id: str, limit: int, offset: int = 0) -> Records:
        """Return the newest messages, oldest first, after *offset* newer ones."""
        most, skipped = counted(limit, "limit"), counted(offset, "offset")
        return self._store.ask(events.recent_messages, self._agent, session_id, most, skipped)

    def entries(self, session_id: str) -> Records:
        """Return every entry with its id, in the order of time."""
        return self._store.ask(events.entries, self._agent, session_id)

    def entries_since_compaction(self, session_id: str) -> Row:
        """Return the newest summary and the entries after it."""
        return self._store.ask(events.entries_since_compaction, self._agent, session_id)

    def cursors(self, session_id: str) -> Row:
        """Return the newest id, that of the last introspection, and what came after it."""
        return self._store.ask(events.cursors, self._agent, session_id)

    def compaction_summary(self, session_id: str) -> str | None:
        """Return the newest summary."""
        return self._store.ask(events.compaction, self._agent, session_id)[1]

    def set_compaction_summary(
        self, session_id: str, content: str, updated_at: str | datetime | None = None
    ) -> int:
        """Append a summary; nothing is deleted."""
        entry = {"role": "system", "type": "context_compaction", "content": content}
        return self.append(session_id, {**entry, "ts": self._now(updated_at)})
