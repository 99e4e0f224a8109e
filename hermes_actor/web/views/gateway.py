"""Chats of gateways: their routes to sessions, and the turns that are held."""

from __future__ import annotations

# Imported for its answers.
from hermes_actor.api import turns
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.web.stores import ShownStore
from hermes_actor.web.views.view import View

__all__ = ["VIEWS"]

_MOST = 500
"""Chats on one page, the latest used first."""


def _chats(shown: ShownStore, _asked: Row) -> Row:
    store = shown.sessions
    held = {turn.root: turn for turn in store.list_turns()}
    routes: list[Row] = [
        {
            "scope": scope,
            "key": route.key,
            "session_id": route.entry.get("session_id"),
            "platform": route.entry.get("platform"),
            "suspended": bool(route.entry.get("suspended")),
            "resume_pending": bool(route.entry.get("resume_pending")),
            "used_at": route.updated_at,
        }
        for scope in store.query(queries.route_scopes)
        for route in store.query(queries.all_routes, scope)
    ]
    routes.sort(key=lambda route: -route["used_at"])
    return {
        "chats": routes[:_MOST],
        "total": len(routes),
        "turns": [
            {**turn._asdict(), "state": "ended" if turns.ended_turn(turn) else "held"}
            for turn in held.values()
        ],
    }


VIEWS = (
    View("chats", "Chats", "Chats of gateways with their sessions, and the turns held.", _chats),
)
