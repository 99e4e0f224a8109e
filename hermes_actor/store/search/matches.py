"""Search in messages: by words, by trigrams, and by short CJK terms.

A search must not answer from an index that is behind: the caller asks :func:`index_lag` in the
snapshot of the search, and lets the owner catch up if it must. If no owner can be
asked, the search covers the rest by itself.
"""

from __future__ import annotations

from typing import Any

from hermes_actor.sqlite import Connection, primary_code, sqlite3
from hermes_actor.store import queries
from hermes_actor.store.message_codec import decode_content
from hermes_actor.store.registry import answers
from hermes_actor.store.rows import Row, dicts, first, placeholders, scalar
from hermes_actor.store.schema_features import SchemaFeatures, features_of
from hermes_actor.store.search.cjk_terms import candidates
from hermes_actor.store.search.coverage import check_usable, covers
from hermes_actor.store.search.query import Filters, Plan, Route, plan_query
from hermes_actor.store.search.ranking import COLUMNS, Condition, by_id, by_rank, count_hits
from hermes_actor.store.search.temp_index import unindexed
from hermes_actor.store.sessions.title_text import escape_like

__all__ = ["count_matches", "index_lag", "search_messages", "short_text", "term_snippet"]

_CONTEXT_LENGTH = 200
_SNIPPET_LENGTH = 120
_SNIPPET_BEFORE = 40
_NO_TEXT = "[multimodal content]"


def _sql(features: SchemaFeatures, filters: Filters) -> Condition:
    conditions, parameters = [features.findable] if features.active else [], list[Any]()
    for column, values, word in (
        ("s.source", filters.sources, "IN"),
        ("s.source", filters.excluded, "NOT IN"),
        ("m.role", filters.roles or None, "IN"),
    ):
        if values is not None:
            conditions.append(f"{column} {word} {placeholders(len(values))}")
            parameters.extend(values)
    if filters.before is not None:
        conditions.append("m.id < ?")
        parameters.append(filters.before)
    return Condition(" AND ".join(conditions) or "1", parameters)


def index_lag(conn: Connection, through: int | None = None, *, exact: bool = False) -> int | None:
    """Return the message id that the indexes must reach first; ``None`` if there is no need.

    There is none if they are complete, or cover all messages up to *through*. Entries of deleted
    messages do not count, because searches join messages, unless the indexes must be *exact*.
    """
    conn.layout_checked = False
    features = features_of(conn)
    if not features.watermark:
        return None
    newest: int = scalar(conn, "SELECT MAX(id) FROM messages") or 0
    watermark = scalar(conn, "SELECT value FROM hermes_actor_meta WHERE key = 'watermark'") or 0
    # What is missing is for the owner to rebuild, if it can.
    wanted = newest if through is None else min(through, newest)
    if watermark < wanted or not features.whole or not covers(conn, watermark):
        return newest
    noted = features.deferrable and features.stale and _is_noted(conn, wanted, exact)
    return newest if noted else None


def _is_noted(conn: Connection, through: int, exact: bool) -> bool:
    only = "" if exact else " JOIN messages m ON m.id = n.id AND m.id <= ?"
    sql = f"SELECT 1 FROM hermes_actor_stale n{only} LIMIT 1"
    return bool(scalar(conn, sql, () if exact else (through,)))


@answers(queries.search_messages)
def search_messages(
    conn: Connection,
    query: str | None,
    filters: Filters,
    limit: int | None,
    offset: int | None,
    alone_until: float | None = None,
) -> list[Row]:
    """Return hits with their neighbours, best first (short CJK terms: newest first).

    *alone_until*: the indexes may be behind and no owner can be asked; search the rest too, until
    this time of ``time.monotonic``. Hits among the rest then come first. Raises
    :class:`IndexBehind` if that takes longer.
    """
    hits, features = _found(conn, query, filters, limit, offset, alone_until), features_of(conn)
    for hit in hits:
        hit["context"] = _context(conn, features, hit)
    return hits


def _found(
    conn: Connection,
    query: str | None,
    filters: Filters,
    limit: int | None,
    offset: int | None,
    alone_until: float | None,
) -> list[Row]:
    """Return hits without their neighbours."""
    plan = plan_query(query)
    if plan is None:
        return []
    features = features_of(conn)
    if plan.route is Route.TRIGRAMS and not features.trigrams:
        plan = Plan(Route.LIKE, "", tuple(plan.match.replace('"', "").split()))
    try:
        if plan.route is Route.LIKE:
            usable = alone_until is None
            hits = _by_terms(conn, features, plan, filters, limit, offset, usable)
        else:
            table = "messages_fts" if plan.route is Route.WORDS else "messages_fts_trigram"
            only = _sql(features, filters)
            if alone_until is None:
                hits = _by_index(conn, table, plan.match, only, filters, limit, offset)
            else:
                known = _undoubted(features, only)
                with unindexed(conn, table, alone_until) as rest:
                    hits = _by_index(conn, rest, plan.match, only, filters, -1, 0)
                    hits += _by_index(conn, table, plan.match, known, filters, -1, 0)
                if filters.by_id:
                    hits.sort(key=lambda hit: -hit["id"])
                end = None if limit is None or limit < 0 else (offset or 0) + limit
                hits = hits[max(offset or 0, 0) : end]
    except sqlite3.OperationalError as error:
        # A malformed question finds nothing; a failing disk is not a malformed question.
        if primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        check_usable(conn)
        return []
    return hits


def _by_index(
    conn: Connection,
    table: str,
    match: str,
    only: Condition,
    filters: Filters,
    limit: int | None,
    offset: int | None,
) -> list[Row]:
    """Return one page of hits in a full-text table, in the order that *filters* ask for."""
    if filters.by_id:
        return by_id(conn, table, match, only, filters.before, limit, offset)
    newest_first = filters.newest_first and limit is not None and limit >= 0
    return by_rank(conn, table, match, only, limit, offset, newest_first)


@answers(queries.count_matches)
def count_matches(
    conn: Connection, query: str | None, filters: Filters, alone_until: float | None = None
) -> int:
    """Return the number of hits on all pages; *alone_until*: see :func:`search_messages`."""
    plan, features = plan_query(query), features_of(conn)
    if plan is None:
        return 0
    indexed = plan.route is Route.WORDS or (plan.route is Route.TRIGRAMS and features.trigrams)
    if not indexed or alone_until is not None:
        return len(_found(conn, query, filters, -1, 0, alone_until))
    table = "messages_fts" if plan.route is Route.WORDS else "messages_fts_trigram"
    try:
        return count_hits(conn, table, plan.match, _sql(features, filters))
    except sqlite3.OperationalError as error:
        if primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        check_usable(conn)
        return 0


def _undoubted(features: SchemaFeatures, only: Condition) -> Condition:
    """Return *only* without the messages for which the index may hold the wrong text."""
    if not features.stale:
        return only
    noted = "m.id NOT IN (SELECT id FROM hermes_actor_stale)"
    return Condition(f"{only.sql} AND {noted}", only.parameters)


def _by_terms(
    conn: Connection,
    features: SchemaFeatures,
    plan: Plan,
    filters: Filters,
    limit: int | None,
    offset: int | None,
    indexes_are_complete: bool,
) -> list[Row]:
    condition, parameters = _sql(features, filters)
    matches = " OR ".join(
        f"m.{column} LIKE ? ESCAPE '\\'"
        for _ in plan.terms
        for column in ("content", "tool_name", "tool_calls")
    )
    patterns = [f"%{escape_like(term)}%" for term in plan.terms for _ in range(3)]
    snippet = (
        f"SUBSTR(m.content, MAX(1, INSTR(m.content, ?) - {_SNIPPET_BEFORE}), {_SNIPPET_LENGTH})"
    )
    select = (
        f"SELECT {COLUMNS.format(snippet=snippet)} FROM messages m"
        f" JOIN sessions s ON s.id = m.session_id WHERE ({matches}) AND {condition}"
    )
    bound = [plan.terms[0], *patterns, *parameters]
    try:
        found = candidates(conn, features, plan.terms) if indexes_are_complete else None
    except sqlite3.OperationalError as error:
        # An SQLite without the tokenizer, reading what another one has indexed.
        if primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        found = None
    if found is not None and filters.by_id:
        found.sort(reverse=True)
    if found is None or limit is None or limit < 0 or offset is None:
        order = "m.id DESC" if filters.by_id else "m.timestamp DESC, m.id"
        only = "" if found is None else f" AND m.id IN ({', '.join(map(str, found))})"
        return dicts(
            conn,
            f"{select}{only} ORDER BY {order} LIMIT ? OFFSET ?",
            (*bound, limit, offset),
        )
    return _confirmed(conn, f"{select} AND m.id = ?", bound, found, limit, max(offset, 0))


def _confirmed(
    conn: Connection, select: str, bound: list[Any], found: list[int], limit: int, offset: int
) -> list[Row]:
    """Return one page of the candidates that the full condition confirms, in their order."""
    page: list[Row] = []
    for message_id in found:
        if len(page) >= offset + limit:
            break
        hit = first(conn, select, (*bound, message_id))
        if hit is not None:
            page.append(hit)
    return page[offset : offset + limit]


def _context(conn: Connection, features: SchemaFeatures, hit: Row) -> list[dict[str, str]]:
    """Return the message before the hit, the hit, and the one after, as short texts."""
    place = (hit["session_id"], hit["timestamp"], hit["timestamp"], hit["id"])
    near = f"FROM messages m WHERE m.session_id = ? AND {features.visible} AND"
    rows = conn.execute(
        f"""
        SELECT * FROM (SELECT m.role, m.content {near}
            m.timestamp <= ? AND (m.timestamp < ? OR m.id < ?)
            ORDER BY m.timestamp DESC, m.id DESC LIMIT 1)
        UNION ALL SELECT m.role, m.content FROM messages m WHERE m.id = ?
        UNION ALL SELECT * FROM (SELECT m.role, m.content {near}
            m.timestamp >= ? AND (m.timestamp > ? OR m.id > ?)
            ORDER BY m.timestamp, m.id LIMIT 1)
        """,
        (*place, hit["id"], *place),
    ).fetchall()
    return [{"role": role, "content": short_text(content)} for role, content in rows]


def term_snippet(content: Any, term: str) -> Any:
    """Return what ``SUBSTR`` and ``INSTR`` cut around *term*.

    Both treat bytes as text, and the first one ends at a NUL.
    """
    if content is None:
        return None
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else str(content)
    start = max(0, text.find(term) - _SNIPPET_BEFORE)
    return text.partition("\x00")[0][start : start + _SNIPPET_LENGTH]


def short_text(stored: Any) -> str:
    """Return the beginning of a message, as the context of a hit shows it."""
    content = decode_content(stored)
    if isinstance(content, list):
        parts = (p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text")
        content = " ".join(str(text) for text in parts if text).strip() or _NO_TEXT
    return content[:_CONTEXT_LENGTH] if isinstance(content, str) else ""
