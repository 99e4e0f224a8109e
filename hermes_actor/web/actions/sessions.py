"""Actions on sessions: rename, archive, delete, prune."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

from hermes_actor.errors import NotFound
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.web.actions.action import Action, Preview, isolated
from hermes_actor.web.parameters import Parameter, Values
from hermes_actor.web.stores import ShownStore

__all__ = ["ACTIONS"]

_SHOWN = 50
_DAY_SECONDS = 86_400.0


_SESSION = Parameter("id", "Id of a session, all of it.", needed=True)
"""Not the beginning of one: after its session is gone it would mean another one."""


def _named(row: Row) -> str:
    shown_id = isolated(str(row["id"]))
    return f"“{isolated(row['title'])}” ({shown_id})" if row["title"] else shown_id


def _session(shown: ShownStore, values: Values) -> Row:
    row = shown.sessions.get_session(values["id"])
    if row is None:
        raise NotFound(f"there is no session {values['id'][:200]!r}")
    return row


def _rename_preview(shown: ShownStore, values: Values) -> Preview:
    row = _session(shown, values)
    new = f"Rename session {_named(row)} to “{isolated(values['title'] or '')}”?"
    return Preview(new if values["title"] else f"Clear the title of session {_named(row)}?")


def _rename(shown: ShownStore, values: Values) -> Row:
    row = _session(shown, values)
    if not shown.sessions.set_session_title(row["id"], values["title"]):
        raise NotFound(f"there is no session {row['id']!r} any more")
    title = shown.sessions.get_session_title(row["id"])
    text = f"Renamed to “{isolated(title)}”." if title else "The title is cleared."
    return {"id": row["id"], "title": title, "text": text}


def _mark_preview(shown: ShownStore, values: Values) -> Preview:
    row, verb = _session(shown, values), "Archive" if values["archived"] else "Unarchive"
    lineage = shown.sessions.query(queries.compression_lineage, row["id"])
    more = f" with its whole conversation of {len(lineage)} sessions" if len(lineage) > 1 else ""
    return Preview(f"{verb} session {_named(row)}{more}?")


def _mark(shown: ShownStore, values: Values) -> Row:
    row, archived = _session(shown, values), values["archived"]
    changed = shown.sessions.archive_session(row["id"], archived)
    done = "Archived." if archived else "Taken out of the archive."
    return {"id": row["id"], "changed": changed, "text": done}


def _delete_preview(shown: ShownStore, values: Values) -> Preview:
    row = _session(shown, values)
    delegates = shown.sessions.query(queries.delegates_of, row["id"])
    more = f", with the {len(delegates)} delegates that worked for it" if delegates else ""
    return Preview(
        f"Delete session {_named(row)} and its {row['message_count'] or 0:,} messages{more}?"
        " This cannot be undone.",
        tuple(map(str, delegates[:_SHOWN])),
        len(delegates),
    )


def _delete(shown: ShownStore, values: Values) -> Row:
    row = _session(shown, values)
    if not shown.sessions.delete_session(row["id"], shown.home / "sessions"):
        raise NotFound(f"there is no session {row['id']!r} any more")
    return {"id": row["id"], "text": f"Deleted session {_named(row)}."}


def _matching(shown: ShownStore, values: Values) -> list[Row]:
    asked: dict[str, Any] = {
        "started_before": time.time() - values["older_than_days"] * _DAY_SECONDS
    }
    if values["source"]:
        asked["source"] = values["source"]
    store = shown.sessions
    rows = store.query(queries.matching_sessions, asked, False)
    return store.query(queries.with_delegates, rows)


def _prune_preview(shown: ShownStore, values: Values) -> Preview:
    rows = _matching(shown, values)
    source = f" of source {isolated(values['source'])}" if values["source"] else ""
    return Preview(
        f"Delete {len(rows):,} ended sessions{source} that started more than"
        f" {values['older_than_days']} days ago? This cannot be undone.",
        tuple(_named(row) for row in rows[:_SHOWN]),
        len(rows),
    )


def _prune(shown: ShownStore, values: Values) -> Row:
    ids = [row["id"] for row in _matching(shown, values) if "delegate_of" not in row]
    removed = shown.sessions.remove_sessions(ids, shown.home / "sessions")
    return {"removed": removed, "text": f"Deleted {len(removed):,} sessions."}


def _to_session(values: Values) -> str:
    return f"session?{urlencode({'id': values['id']}, errors='replace')}"


def _to_list(_values: Values) -> str:
    return "sessions"


ACTIONS = (
    Action(
        "rename", "Rename session", "Set or clear the title of a session.",
        _rename_preview, _rename, _to_session,
        (_SESSION, Parameter("title", "The new title; empty clears it.")),
    ),
    Action(
        "archive", "Archive session", "Hide a conversation from lists, or show it again.",
        _mark_preview, _mark, _to_session,
        (_SESSION, Parameter("archived", "False takes it out of the archive.", bool, default=True)),
    ),
    Action(
        "delete", "Delete session", "Delete a session, its messages and its transcript files.",
        _delete_preview, _delete, _to_list, (_SESSION,), is_destructive=True,
    ),
    Action(
        "prune", "Prune sessions", "Delete old ended sessions; archived ones stay.",
        _prune_preview, _prune, _to_list,
        (
            Parameter("older_than_days", "Started more than this many days ago.", int, default=90,
                      least=1, most=36_500),
            Parameter("source", "Only sessions of this source."),
        ),
        is_destructive=True,
    ),
)  # fmt: skip
