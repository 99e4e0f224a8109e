"""``session_search``: the tool with which an agent remembers earlier conversations.

Takes what a model gives, which may be anything, and returns JSON as a string. With a query it
returns summaries of the best conversations, without one the latest conversations. *session_id*,
*sort*, *window* or ``raw=True`` ask for the messages themselves: see
:mod:`hermes_actor.tools.message_windows`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hermes_actor.errors import HermesActorError
from hermes_actor.store.surrogates import json_bytes, without_surrogates
from hermes_actor.tools.excerpt import cut_around
from hermes_actor.tools.summaries import (
    EACH_SECONDS,
    SummaryRequest,
    TooSlow,
    query_terms,
    summarize_all,
)
from hermes_actor.tools.timestamps import in_words
from hermes_actor.tools.transcript import transcript

if TYPE_CHECKING:
    from hermes_actor.api.provider import StoreMethods

__all__ = ["as_limit", "recent_sessions", "root_of", "session_search", "when"]

HIDDEN = ["tool", "subagent"]
"""Sources whose conversations are not a memory of the user's."""

_SCANNED = 50
_MAX_CHARS = 100_000

Row = dict[str, Any]


def session_search(
    query: Any = None,
    role_filter: Any = None,
    limit: Any = 3,
    *,
    db: StoreMethods | None = None,
    current_session_id: str | None = None,
    session_id: Any = None,
    around_message_id: Any = None,
    sort: Any = None,
    window: Any = None,
    raw: bool = False,
    max_concurrency: int = 3,
    summary_seconds: float = EACH_SECONDS,
) -> str:
    """Search earlier conversations. Never raises; an error is in the JSON.

    Args:
        query: What to look for; blank lists the latest conversations.
        role_filter: Roles whose messages count, separated by commas.
        limit: Conversations, 1 to 5 (10 with raw messages); anything odd counts as 3.
        db: The store; opened on demand.
        current_session_id: The conversation that asks; its lineage is left out.
        max_concurrency: Summaries at the same time, 1 to 5.
        summary_seconds: How long the summary of one conversation may take; all: a minute.
    """
    close: Callable[[], None] = lambda: None  # noqa: E731
    # JSON of a model can hold half an emoji, which no store takes.
    query, role_filter, session_id, current_session_id = map(
        without_surrogates, (query, role_filter, session_id, current_session_id)
    )
    try:
        if db is None:
            from hermes_actor.session_db import SessionDB

            own = SessionDB()
            db, close = own, own.close
        if raw or session_id or sort is not None or window is not None:
            from hermes_actor.tools.message_windows import look

            found = look(db, query, role_filter, limit, current_session_id, session_id,
                         around_message_id, sort, window)  # fmt: skip
        elif not isinstance(query, str) or not query.strip():
            found = recent_sessions(db, as_limit(limit), current_session_id)
        else:
            found = _found(db, query.strip(), roles_of(role_filter), as_limit(limit),
                           current_session_id, max_concurrency, summary_seconds)  # fmt: skip
    except (HermesActorError, TooSlow, OSError) as error:
        found = {"error": str(error) or type(error).__name__, "success": False}
    finally:
        close()
    return json_bytes(found).decode()


def as_limit(limit: Any, most: int = 5, *, otherwise: int = 3) -> int:
    """Convert what a model gave to a number from 1 to *most*; *otherwise* if it is not a number."""
    try:
        return max(1, min(most, int(limit)))
    except (TypeError, ValueError, OverflowError):
        return otherwise


def roles_of(role_filter: Any) -> list[str] | None:
    """Split a comma-separated list of roles; ``None`` if it names none."""
    if not isinstance(role_filter, str):
        return None
    return [role.strip() for role in role_filter.split(",") if role.strip()] or None


def root_of(db: StoreMethods, session_id: str) -> str:
    """Return the id of the oldest ancestor of a session, or its own."""
    return db._session_lineage_root_to_tip(session_id)[0]


def recent_sessions(db: StoreMethods, limit: int, current: str | None) -> Row:
    """Return a document of the latest active conversations, without that of *current*."""
    excluded = {current, root_of(db, current)} if current else set()
    rows = db.list_sessions_rich(exclude_sources=HIDDEN, limit=limit + 5, order_by_last_active=True)
    results = [
        {
            "session_id": row["id"],
            "title": row["title"],
            "source": row["source"],
            "started_at": row["started_at"],
            "last_active": row["last_active"],
            "message_count": row["message_count"],
            "preview": row["preview"],
        }
        for row in rows
        if not {row["id"], row.get("_lineage_root_id")} & excluded
        and row["parent_session_id"] is None
    ][:limit]
    message = f"The {len(results)} latest conversations. Give a query to search in all of them."
    return {"success": True, "mode": "recent", "results": results, "count": len(results),
            "message": message}  # fmt: skip


def _found(
    db: StoreMethods,
    query: str,
    roles: list[str] | None,
    limit: int,
    current: str | None,
    max_concurrency: int,
    summary_seconds: float,
) -> Row:
    hits = db.search_messages(query, exclude_sources=HIDDEN, role_filter=roles, limit=_SCANNED)
    if not hits:
        message = "No earlier conversation matches. Try fewer or other words."
        return {"success": True, "query": query, "results": [], "count": 0, "message": message}
    groups = _grouped(db, hits, limit, current)
    requests = [_request(db, query, root, hit) for root, hit in groups.items()]
    kept = [(request, hit) for request, hit in zip(requests, groups.values(), strict=True)
            if request.messages]  # fmt: skip
    asked = [request for request, _ in kept]
    summaries = summarize_all(asked, max_concurrency, summary_seconds)
    results = [
        {
            "session_id": request.session["id"],
            "when": when(request.session["started_at"]),
            "source": request.session["source"] or hit["source"],
            "model": request.session["model"] or hit["model"],
            "summary": summary,
        }
        for (request, hit), summary in zip(kept, summaries, strict=True)
    ]
    return {"success": True, "query": query, "results": results, "count": len(results),
            "sessions_searched": len(groups)}  # fmt: skip


def _grouped(db: StoreMethods, hits: list[Row], limit: int, current: str | None) -> dict[str, Row]:
    """Return the best hit of each lineage, in rank order, the caller's own left out."""
    own = root_of(db, current) if current else None
    groups: dict[str, Row] = {}
    for hit in hits:
        root = root_of(db, hit["session_id"])
        if root == own or hit["session_id"] == current:
            continue
        groups.setdefault(root, hit)
        if len(groups) == limit:
            break
    return groups


def _request(db: StoreMethods, query: str, root: str, hit: Row) -> SummaryRequest:
    # Down to the segment that holds the hit: it must be in the text that is summarised.
    segments = db._session_lineage_root_to_tip(hit["session_id"])
    messages = [message for segment in segments for message in db.get_messages(segment)]
    row = db.get_session(root) or {}
    session = {key: row.get(key) for key in ("title", "source", "model", "started_at")}
    text = cut_around(transcript(messages), query, _MAX_CHARS)
    return SummaryRequest(query, query_terms(query), {"id": root, **session}, messages, text)


def when(moment: Any) -> str:
    """Format a time as local time in words; text that is not a number is returned as it is."""
    if isinstance(moment, str):
        if not moment.strip().isdigit():
            return moment or "unknown"
        moment = float(moment)
    return in_words(moment, "%B %d, %Y at %I:%M %p", "unknown")
