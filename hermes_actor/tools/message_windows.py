"""``session_search`` with raw messages: windows around hits, scrolling, whole conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hermes_actor.tools.session_search import (
    HIDDEN,
    Row,
    as_limit,
    recent_sessions,
    roles_of,
    root_of,
    when,
)

if TYPE_CHECKING:
    from hermes_actor.api.provider import StoreMethods

__all__ = ["look"]

_SCANNED = 300
_BOOKEND = 3
_READ_WHOLE, _READ_FIRST, _READ_LAST = 30, 20, 10
_ROLES = ["user", "assistant"]


def look(
    db: StoreMethods,
    query: Any,
    role_filter: Any,
    limit: Any,
    current: str | None,
    session_id: Any,
    around: Any,
    sort: Any,
    window: Any,
) -> Row:
    """Scroll, read, discover or browse, depending on the arguments; return the result.

    Scrolls with *session_id* and *around*, reads with *session_id* alone, discovers with *query*,
    else browses.
    """
    size = as_limit(window, 20, otherwise=5)
    if session_id and around is not None:
        return _scroll(db, str(session_id), around, size, current)
    if session_id:
        return _read(db, str(session_id))
    if isinstance(query, str) and query.strip():
        roles = roles_of(role_filter) or _ROLES
        return _discover(db, query.strip(), roles, as_limit(limit, 10), current, sort, size)
    return {**recent_sessions(db, as_limit(limit, 10), current), "mode": "browse"}


def _discover(
    db: StoreMethods,
    query: str,
    roles: list[str],
    limit: int,
    current: str | None,
    sort: Any,
    size: int,
) -> Row:
    hits = db.search_messages(query, exclude_sources=HIDDEN, role_filter=roles, limit=_SCANNED)
    if sort in ("newest", "oldest"):
        hits.sort(key=lambda hit: hit["timestamp"], reverse=sort == "newest")
    # Scheduled jobs talk much and mean little; stable, so the rank stays within both parts.
    hits.sort(key=lambda hit: hit["source"] == "cron")
    own = root_of(db, current) if current else None
    results: list[Row] = []
    seen: set[str] = set()
    titled = db.resolve_session_by_title(query)
    if titled is not None and root_of(db, titled) != own:
        seen.add(root_of(db, titled))
        results.append(_result(db, titled, None, "session_title", size))
    for hit in hits:
        root = root_of(db, hit["session_id"])
        if root == own or root in seen or len(results) >= limit:
            continue
        seen.add(root)
        results.append(_result(db, hit["session_id"], hit, hit["role"], size))
    return {"success": True, "mode": "discover", "query": query, "results": results[:limit],
            "count": len(results[:limit]), "sessions_searched": len(seen)}  # fmt: skip


def _result(db: StoreMethods, session_id: str, hit: Row | None, role: str, size: int) -> Row:
    row, messages = db.get_session(session_id) or {}, db.get_messages(session_id)
    spoken = [message for message in messages if message["role"] in _ROLES]
    anchor: int | None = hit["id"] if hit is not None else None
    place = 0 if anchor is None else _place(messages, anchor)
    root = root_of(db, session_id)
    result = {
        "session_id": session_id,
        **_meta(row),
        "matched_role": role,
        "match_message_id": anchor,
        "snippet": hit["snippet"] if hit is not None else None,
        "bookend_start": [_message(m) for m in spoken[:_BOOKEND]],
        "bookend_end": [_message(m) for m in spoken[-_BOOKEND:]],
        **_around(messages, place or 0, size, anchor),
    }
    if root != session_id:
        result["parent_session_id"] = root
    return result


def _scroll(db: StoreMethods, session_id: str, around: Any, size: int, current: str | None) -> Row:
    if db.get_session(session_id) is None:
        return _error(f"there is no session {session_id!r}")
    if current and root_of(db, session_id) == root_of(db, current):
        return _error("that is the current conversation; it is in your context already")
    warning = None
    try:
        anchor = int(around)
    except (TypeError, ValueError, OverflowError):
        return _error(f"around_message_id {around!r} is no number")
    messages = db.get_messages(session_id)
    place = _place(messages, anchor)
    if place is None:
        for segment in db._session_lineage_root_to_tip(session_id)[:-1]:
            elsewhere = db.get_messages(segment)
            place = _place(elsewhere, anchor)
            if place is not None:
                warning = f"message {anchor} is in session {segment}, an earlier part"
                session_id, messages = segment, elsewhere
                break
    if place is None:
        return _error(f"there is no message {anchor} in session {session_id!r}")
    found: Row = {
        "success": True,
        "mode": "scroll",
        "session_id": session_id,
        "around_message_id": anchor,
        "session_meta": _meta(db.get_session(session_id) or {}),
        "window": size,
        **_around(messages, place, size, anchor),
    }
    return {**found, "warning": warning} if warning else found


def _read(db: StoreMethods, session_id: str) -> Row:
    row = db.get_session(session_id)
    if row is None:
        return _error(f"there is no session {session_id!r}")
    messages = db.get_messages(session_id)
    truncated = len(messages) > _READ_WHOLE
    shown = [*messages[:_READ_FIRST], *messages[-_READ_LAST:]] if truncated else messages
    return {
        "success": True,
        "mode": "read",
        "session_id": session_id,
        "session_meta": _meta(row),
        "messages": [_message(message) for message in shown],
        "message_count": len(messages),
        "truncated": truncated,
    }


def _around(messages: list[Row], place: int, size: int, anchor: int | None) -> Row:
    """Return the messages on both sides of *place*, and how many there are beyond them."""
    first, last = max(0, place - size), place + size + 1
    return {
        "messages": [_message(m, anchor=anchor) for m in messages[first:last]],
        "messages_before": first,
        "messages_after": max(0, len(messages) - last),
    }


def _error(text: str) -> Row:
    return {"error": text, "success": False}


def _place(messages: list[Row], message_id: int) -> int | None:
    return next((n for n, message in enumerate(messages) if message["id"] == message_id), None)


def _meta(row: Row) -> Row:
    return {
        "when": when(row.get("started_at")),
        "source": row.get("source"),
        "model": row.get("model") or "unknown",
        "title": row.get("title"),
    }


def _message(message: Row, anchor: int | None = None) -> Row:
    shown = {key: message[key] for key in ("id", "role", "content", "timestamp")}
    for key in ("tool_name", "tool_calls", "tool_call_id"):
        if message[key]:
            shown[key] = message[key]
    if message["id"] == anchor:
        shown["anchor"] = True
    return shown
