"""Rules of routes: which session a chat has, and how that changes. One change is one transaction.

The order in :func:`open_route` is the contract: a stored route wins over everything that could be
guessed from the sessions, and a reset is never undone by a session that is found again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import hermes_protocol.operations as ops
from hermes_actor.errors import UnknownSession
from hermes_actor.store.gateway.entries import dumps, fresh_entry, loads
from hermes_actor.store.gateway.tables import Entry, StoredRoute, Tables
from hermes_actor.store.gateway.turn_rules import fence, holds

__all__ = ["ACCIDENTS", "CHANGES", "continue_routes", "last_use", "reset_reason"]

ACCIDENTS = ("agent_close", "ws_orphan_reap")
"""Reasons of an end that was no decision: a session with one may go on."""

_SKEW_SECONDS = 60.0
"""Longest time by which the clocks of two hosts may differ."""
_TOUCH_SECONDS = 1.0
"""A route that was used less than this ago is not written again."""


def open_route(tables: Tables, op: ops.RouteOpen) -> ops.Route:
    """Return the route of a chat: as it was, moved on, or to a session that begins now."""
    tables.lock(op.scope, op.key)
    if op.gone:
        tables.remove_turn(op.gone)
    found = tables.find(op.scope, op.key)
    if found is None:
        return _recover(tables, op) or _begin(tables, op)
    _check_turn(tables, op, found.entry, op.now)
    if op.force_new and op.seen in (None, found.entry["session_id"]):
        return _restart(tables, op, found.entry, None)
    old_id = found.entry["session_id"]
    tip = tables.tip(old_id)
    state = tables.session(tip)
    if state is None:
        # A crash of another program between its two writes: the chat gets the row it points at.
        tables.create_session(tip, op.key, op.peer, op.now)
    elif state.ended_at is not None:
        if found.entry.get("expiry_finalized"):
            # The watcher of another program says that it was a reset, and not why.
            known = state.end_reason != "session_reset"
            reason = state.end_reason if known else _reason(tables, op, found, tip)
            return _restart(tables, op, found.entry, reason)
        if state.end_reason not in ACCIDENTS or tables.last_message(tip) is None:
            return _begin(tables, op)
        tables.reopen_session(tip)
    reason = _reason(tables, op, found, tip)
    if reason is not None:
        return _restart(tables, op, {**found.entry, "session_id": tip}, reason)
    return _keep(tables, op, found, tip)


def _keep(tables: Tables, op: ops.RouteOpen, found: StoredRoute, tip: str) -> ops.Route:
    entry = {**found.entry, "session_id": tip}
    moved = tip != found.entry["session_id"]
    # The first touch of an entry says that its session is not new any more.
    new = entry.get("created_at") == entry.get("updated_at")
    if moved or new or abs(op.now - found.updated_at) >= _TOUCH_SECONDS:
        entry["updated_at"] = op.now_text
        tables.put(op.scope, StoredRoute(op.key, entry, op.now))
    return ops.Route(entry=dumps(entry), outcome="moved" if moved else "kept")


def _reason(tables: Tables, op: ops.RouteOpen, found: StoredRoute, tip: str) -> str | None:
    """Return why the session of a route is to be reset now, if it is."""
    if found.entry.get("suspended"):
        return "suspended"
    # The turn under which the memory hook was called does not keep the session.
    if op.held or (not op.turn and holds(tables, tip, op.now)):
        return None
    used = last_use(found, tables.last_message(tip), op.now)
    return reset_reason(found.entry, used, op.idle_before, op.daily_before, op.fresh_after)


def last_use(route: StoredRoute, last_message: float | None, now: float) -> float:
    """Return when a chat was used last: by its route, or by the newest message if that is later.

    A message of the future was stored while the clock was wrong. It must not keep a session alive
    until then; the route is written again by the next message.
    """
    if last_message is None or last_message > now + _SKEW_SECONDS:
        return route.updated_at
    return max(route.updated_at, last_message)


def reset_reason(
    entry: Entry,
    used: float,
    idle_before: float | None,
    daily_before: float | None,
    fresh_after: str | None = None,
) -> str | None:
    """Return the reason of a reset by policy for a chat that was last used at *used*."""
    if idle_before is not None and used < idle_before:
        return "idle"
    if daily_before is not None and used < daily_before:
        return "daily"
    marked = str(entry.get("last_resume_marked_at") or entry.get("updated_at") or "")
    if entry.get("resume_pending") and fresh_after is not None and marked < fresh_after:
        return "resume_pending_expired"
    return None


def _recover(tables: Tables, op: ops.RouteOpen) -> ops.Route | None:
    """Go on in a session of a chat without a route. By its last message, or it would live for ever.

    A chat with a route never comes here: what is found again could undo its reset.
    """
    found = None if op.force_new else tables.live_session(op.key, op.peer.source)
    used = None if found is None else tables.last_message(found)
    if found is None or used is None:
        return None
    reason = None if op.held else reset_reason({}, used, op.idle_before, op.daily_before)
    if reason is not None:
        tables.end_session(found, op.now, reason)
        return None
    tables.reopen_session(found)
    return _write(tables, op, {**_given_entry(op), "session_id": found}, "recovered")


def _begin(tables: Tables, op: ops.RouteOpen) -> ops.Route:
    """Start a session without a notice."""
    tables.create_session(op.new_id, op.key, op.peer, op.now)
    return _write(tables, op, _given_entry(op), "created")


def _given_entry(op: ops.RouteOpen) -> Entry:
    entry = loads(op.entry)
    assert entry is not None
    return entry


def _restart(tables: Tables, op: ops.RouteOpen, old: Entry, reason: str | None) -> ops.Route:
    """End the session of a chat and start another one; with a *reason* it is an automatic reset."""
    entry = _given_entry(op)
    if reason is not None:
        entry["was_auto_reset"] = True
        entry["auto_reset_reason"] = reason
        tokens = old.get("last_prompt_tokens")
        entry["reset_had_activity"] = isinstance(tokens, int | float) and tokens > 0
    _replace_session(tables, op, old["session_id"], op.peer, reason or "session_reset")
    return _write(tables, op, entry, "reset", reason, old["session_id"])


def _replace_session(
    tables: Tables, op: ops.RouteOpen | ops.RouteReset, old: str, peer: ops.Peer, reason: str
) -> None:
    tables.end_session(old, op.now, reason)
    tables.create_session(op.new_id, op.key, peer, op.now)


def _write(
    tables: Tables,
    op: ops.RouteOpen,
    entry: Entry,
    outcome: str,
    reason: str | None = None,
    old_id: str | None = None,
) -> ops.Route:
    tables.put(op.scope, StoredRoute(op.key, entry, op.now))
    return ops.Route(entry=dumps(entry), outcome=outcome, reason=reason, old_id=old_id)


def change_route(tables: Tables, op: ops.RouteChange) -> ops.Route | None:
    """Merge fields into the entry of a chat."""
    found = tables.find(op.scope, op.key)
    if found is None or op.expect not in (None, found.entry["session_id"]):
        return None
    if any(found.entry.get(flag) for flag in op.unless):
        return None
    used = found.updated_at if op.now is None else op.now
    _check_turn(tables, op, found.entry, op.at or used)
    fields = _fields(op.set)
    entry = {**found.entry, **fields}
    if entry != found.entry or used != found.updated_at:
        tables.put(op.scope, StoredRoute(op.key, entry, used))
    return ops.Route(entry=dumps(entry))


def _fields(text: str) -> Entry:
    """Return the fields of a change. A change of ``session_id`` is a switch, and is left out."""
    fields: Entry = json.loads(text)
    fields.pop("session_id", None)
    return fields


def reset_route(tables: Tables, op: ops.RouteReset) -> ops.Route | None:
    """End the session of a chat and start another one, as the user asked."""
    found = tables.find(op.scope, op.key)
    if found is None:
        return None
    _check_turn(tables, op, found.entry, op.now)
    old_id = tables.tip(found.entry["session_id"])
    entry = fresh_entry(found.entry, op.new_id, op.now_text) | {"is_fresh_reset": True}
    if op.display_name is not None:
        entry["display_name"] = op.display_name
    # Without a parent: a reset begins another conversation, and must not be resumed into the old.
    _replace_session(tables, op, old_id, _peer_of(entry), op.reason)
    tables.put(op.scope, StoredRoute(op.key, entry, op.now))
    return ops.Route(entry=dumps(entry), outcome="reset", reason=op.reason, old_id=old_id)


def switch_route(tables: Tables, op: ops.RouteSwitch) -> ops.Route | None:
    """Have a chat go on in another session. Raises :class:`UnknownSession`."""
    found = tables.find(op.scope, op.key)
    if found is None:
        return None
    old_id = found.entry["session_id"]
    if old_id == op.target:
        return ops.Route(entry=dumps(found.entry))
    if tables.session(op.target) is None:
        raise UnknownSession(f"there is no session {op.target!r} to switch to")
    _check_turn(tables, op, found.entry, op.now)
    tables.end_session(old_id, op.now, "session_switch")
    tables.reopen_session(op.target)
    entry = fresh_entry(found.entry, op.target, op.now_text)
    tables.put(op.scope, StoredRoute(op.key, entry, op.now))
    return ops.Route(entry=dumps(entry), outcome="moved", reason="session_switch", old_id=old_id)


def claim_route(tables: Tables, op: ops.RouteClaim) -> bool:
    """Finish an expired session, if the caller is the first and no message has come meanwhile."""
    found = tables.find(op.scope, op.key)
    if found is None or found.entry.get("expiry_finalized"):
        return False
    tip = tables.tip(found.entry["session_id"])
    used = last_use(found, tables.last_message(tip), op.now)
    if op.session_id not in (tip, found.entry["session_id"]) or used >= op.before:
        return False
    if op.turn:
        fence(tables, tip, op.turn, op.now)
    elif holds(tables, tip, op.now):
        return False
    tables.finalize_session(tip)
    tables.end_session(tip, op.now, op.reason)
    entry = {**found.entry, "session_id": tip, "expiry_finalized": True}
    tables.put(op.scope, StoredRoute(op.key, entry, found.updated_at))
    return True


def mark_routes(tables: Tables, op: ops.RoutesMark) -> int:
    """Mark routes that were in use when a gateway died."""
    marked = 0
    for route in tables.used_since(op.scope, op.since):
        if route.entry.get("suspended") or route.entry.get("resume_pending"):
            continue
        flags = {"resume_pending": True, "resume_reason": op.reason}
        entry = {**route.entry, **flags, "last_resume_marked_at": op.now_text}
        tables.put(op.scope, route._replace(entry=entry))
        marked += 1
    return marked


def prune_routes(tables: Tables, op: ops.RoutesPrune) -> list[str]:
    """Forget routes that were not used for long."""
    keep = set(op.keep)
    gone = [
        route.key
        for route in tables.unused_since(op.scope, op.before)
        if not route.entry.get("suspended") and route.key not in keep
    ]
    for key in gone:
        tables.drop(op.scope, key)
    return gone


def write_routes(tables: Tables, op: ops.RoutesWrite) -> list[str]:
    """Write and drop whole entries, and return the keys that were refused."""
    refused = []
    for key, text in op.put.items():
        entry, found = loads(text), tables.find(op.scope, key)
        if entry is None or _is_refused(op, key, found):
            refused.append(key)
        else:
            tables.put(op.scope, StoredRoute(key, entry, op.times.get(key, op.now)))
    for key in op.drop:
        if _is_refused(op, key, tables.find(op.scope, key)):
            refused.append(key)
        else:
            tables.drop(op.scope, key)
    return refused


def _is_refused(op: ops.RoutesWrite, key: str, found: StoredRoute | None) -> bool:
    if found is None:
        return False
    return op.only_missing or op.expect.get(key) not in (None, found.entry["session_id"])


def continue_routes(tables: Tables, op: ops.SessionContinue) -> None:
    """Lead every chat of a compressed session, and the turn of its conversation, to the new one."""
    for scope, route in tables.routes_to(op.old):
        tables.put(scope, route._replace(entry={**route.entry, "session_id": op.new}))
    held = tables.turn(tables.root(op.old))
    if held is not None:
        tables.set_turn(held.token, session=op.new)


def _check_turn(tables: Tables, op: Any, entry: Entry, now: float) -> None:
    if op.turn:
        fence(tables, entry["session_id"], op.turn, now)


def _peer_of(entry: Entry) -> ops.Peer:
    """Return the peer of a chat by its entry, which another program may have written."""
    given = entry.get("origin")
    origin = given if isinstance(given, dict) else {}

    def text(values: Entry, name: str) -> str | None:
        value = values.get(name)
        return None if value is None else str(value)

    return ops.Peer(
        source=text(entry, "platform") or "unknown",
        chat_type=text(entry, "chat_type"),
        display_name=text(entry, "display_name"),
        origin_json=dumps(origin) if origin else None,
        profile_name=text(origin, "profile"),
        user_id=text(origin, "user_id"),
        chat_id=text(origin, "chat_id"),
        thread_id=text(origin, "thread_id"),
    )


CHANGES: dict[type[ops.Operation[Any]], Callable[[Any, Any], Any]] = {
    ops.RouteOpen: open_route,
    ops.RouteChange: change_route,
    ops.RouteReset: reset_route,
    ops.RouteSwitch: switch_route,
    ops.RouteClaim: claim_route,
    ops.RoutesMark: mark_routes,
    ops.RoutesPrune: prune_routes,
    ops.RoutesWrite: write_routes,
}
"""The rule of each operation on routes."""
