"""Lists of sessions, one session as a conversation, one message, and exports."""

from __future__ import annotations

import contextlib
from typing import Any, get_args

from hermes_actor.errors import BadValue, NotFound
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.page import Order, Page, Position
from hermes_actor.tools.transcript import text_of
from hermes_actor.web.parameters import Parameter
from hermes_actor.web.stores import Sessions, ShownStore
from hermes_actor.web.views.view import View

__all__ = ["VIEWS", "shown_message"]

_HIDDEN = ("tool",)
"""Sources that lists leave out unless they are asked for by name."""

_ROWS = 50
_MESSAGES = 50

_CALLS = 50
"""Calls of one message that are shown; `export` has all of them."""

SHOWN_CHARACTERS = 8000
"""Of one text of a conversation; a link shows all of it."""

SESSION = Parameter("id", "Id of a session, or the beginning of only one id.", needed=True)


def found_session(store: Sessions, given: str) -> Row:
    """Return the row of the session that *given* means. Raises :class:`NotFound`."""
    exact = store.resolve_session_id(given)
    row = store.get_session(exact) if exact is not None else None
    if row is None:
        raise NotFound(f"there is no session {given[:200]!r}, or several begin so")
    return row


def _list(shown: ShownStore, asked: Row) -> Row:
    store = shown.sessions
    source, order = asked["source"], asked["sort"]
    page = Page(
        source,
        None if source else _HIDDEN,
        _ROWS + 1,
        0,
        False,
        archived=asked["archived"],
        workspace=asked["workspace"],
        after=_position(asked["after"]),
    )
    rows = store.query(queries.list_sessions, page, True, order)
    following = None
    if len(rows) > _ROWS:
        rows = rows[:_ROWS]
        last = store.query(
            queries.position_in_lists, rows[-1].get("_lineage_root_id") or rows[-1]["id"]
        )
        following = last and _key(last)
    for row in rows:
        row.pop("system_prompt", None)  # long, and no part of a list
    return {"sessions": rows, "after": following}


def _key(position: Position) -> str:
    """Return a position as one text. The id is last: it may hold anything."""
    return (
        f"{position.activity!r}~{position.started_at!r}~{position.place}~{position.messages}"
        f"~{position.id}"
    )


def _position(key: str | None) -> Position | None:
    """Return the position that a text stands for. Raises :class:`BadValue`."""
    if key is None:
        return None
    with contextlib.suppress(ValueError):
        activity, started_at, place, messages, session_id = key.split("~", 4)
        numbers = float(activity), float(started_at), int(place), int(messages)
        if all(-(2**63) <= number < 2**63 for number in numbers):  # NaN is not
            return Position(numbers[0], numbers[1], session_id, *numbers[2:])
    raise BadValue("after is no key of a page: begin with the first page")


def _session(shown: ShownStore, asked: Row) -> Row:
    store = shown.sessions
    row = found_session(store, asked["id"])
    session_id = row["id"]
    before, after = asked["before"], asked["after"]
    if asked["last"]:
        before, after = 2**63 - 1, None
    messages = store.query(queries.message_slice, session_id, after, before, _MESSAGES)
    more = {"before": None, "after": None}
    if messages:
        first, last = messages[0]["id"], messages[-1]["id"]
        if store.query(queries.message_slice, session_id, None, first, 1):
            more["before"] = first
        if store.query(queries.message_slice, session_id, last, None, 1):
            more["after"] = last
    return {
        "session": {**row, "archived": store.query(queries.is_archived, session_id)},
        "lineage": [node._asdict() for node in store.query(queries.session_family, session_id)],
        "messages": [shown_message(message) for message in messages],
        **more,
    }


def shown_message(message: Row) -> Row:
    """Return a message for people: its texts cut, with their whole length; calls named."""
    text = text_of(message["content"])
    pictures = 0
    if isinstance(message["content"], list):
        kinds = [str(part.get("type")) for part in message["content"] if isinstance(part, dict)]
        pictures = sum("image" in kind for kind in kinds)
    calls = message["tool_calls"] if isinstance(message["tool_calls"], list) else []
    calls = [call for call in calls if isinstance(call, dict)]
    return {
        "id": message["id"],
        "role": message["role"],
        "timestamp": message["timestamp"],
        "tool_name": message["tool_name"],
        "text": text[:SHOWN_CHARACTERS],
        "characters": len(text),
        "pictures": pictures,
        "reasoning": str(message.get("reasoning") or "")[:SHOWN_CHARACTERS],
        "calls": [_call(call) for call in calls[:_CALLS]],
        "more_calls": max(0, len(calls) - _CALLS),
    }


def _call(call: dict[str, Any]) -> Row:
    function = call.get("function")
    function = function if isinstance(function, dict) else call
    arguments = function.get("arguments")
    return {
        "name": str(function.get("name") or "?")[:200],
        "arguments": str("" if arguments is None else arguments)[:SHOWN_CHARACTERS],
    }


def _message(shown: ShownStore, asked: Row) -> Row:
    store = shown.sessions
    session_id = found_session(store, asked["session"])["id"]
    row = store.query(queries.message, session_id, asked["id"])
    if row is None:
        raise NotFound(f"session {session_id!r} has no message {asked['id']}")
    return {"message": {**row, "text": text_of(row["content"])}}


def _export(shown: ShownStore, asked: Row) -> Row:
    store = shown.sessions
    found = store.query(queries.session_record, found_session(store, asked["id"])["id"])
    if found is None:
        raise NotFound(f"there is no session {asked['id'][:200]!r}")
    return found


VIEWS = (
    View(
        "sessions", "Sessions",
        "Sessions of a store, page by page: the next page begins with the key `after`.",
        _list,
        (
            Parameter("source", "Only sessions of this source, even a hidden one."),
            Parameter("sort", "Order: latest activity, latest start, or most messages.",
                      default="active", choices=get_args(Order)),
            Parameter("archived", "Archived sessions, and no others.", bool, default=False),
            Parameter("workspace", "Only sessions whose repository or folder contains this."),
            Parameter("after", "Key of the page before."),
        ),
    ),
    View(
        "session", "Session", "One session as a conversation, with lineage, tokens and cost.",
        _session,
        (
            SESSION,
            Parameter("after", "Messages after this id.", int, least=0),
            Parameter("before", "Messages before this id.", int, least=0),
            Parameter("last", "The last messages.", bool, default=False),
        ),
        in_menu=False,
    ),
    View(
        "message", "Message", "One message as it is stored.", _message,
        (
            Parameter("session", "Id of the session.", needed=True),
            Parameter("id", "Id of the message.", int, needed=True),
        ),
        in_menu=False,
    ),
    View(
        "export", "Export", "A session with all its messages, as `sessions export` writes it.",
        _export, (SESSION,), in_menu=False,
    ),
)  # fmt: skip
