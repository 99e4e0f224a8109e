"""Search in messages on a server: by words, by parts of a CJK text, and by short CJK terms."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, false, func, literal, or_, select

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.query_tree import Node, parse, snippets
from hermes_actor.providers.sql.registry import answers
from hermes_actor.providers.sql.sessions.listing import page_of
from hermes_actor.providers.sql.tables import messages, sessions
from hermes_actor.providers.sql.types import like_literal
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.search import matches as file_matches
from hermes_actor.store.search.query import Filters, Plan, Route, plan_query

__all__ = ["SEARCHED", "search_similar"]

SEARCHED = (messages.c.content, messages.c.tool_name, messages.c.tool_calls)
"""The columns that a search looks at."""

_HIT = select(
    messages.c.id,
    messages.c.session_id,
    messages.c.role,
    literal(None).label("snippet"),
    messages.c.timestamp,
    messages.c.tool_name,
    sessions.c.source,
    sessions.c.model,
    sessions.c.started_at.label("session_started"),
    messages.c.content.label("_content"),
    messages.c.tool_calls.label("_tool_calls"),
).join(sessions, sessions.c.id == messages.c.session_id)


def _passing(filters: Filters) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if filters.sources is not None:
        chosen = list(filters.sources)
        conditions.append(sessions.c.source.in_(chosen) if chosen else false())
    if filters.excluded:
        conditions.append(sessions.c.source.not_in(list(filters.excluded)))
    if filters.roles:
        conditions.append(messages.c.role.in_(list(filters.roles)))
    if filters.before is not None:
        conditions.append(messages.c.id < filters.before)
    return conditions


@answers(queries.search_messages)
def search_messages(
    conn: ServerConnection,
    query: str | None,
    filters: Filters,
    limit: int,
    offset: int,
) -> list[Row]:
    """Return hits with their neighbours, best first (CJK terms: newest first)."""
    plan = plan_query(query)
    if plan is None:
        return []
    statement = _HIT.where(*_passing(filters))
    if plan.route is Route.LIKE:
        found = _ordered(_by_terms(conn, statement, plan), filters)
        hits = conn.rows(page_of(found, limit, offset))
        for hit in hits:
            hit["snippet"] = file_matches.term_snippet(hit["_content"], plan.terms[0])
    else:
        tree = parse(plan.match, plan.route)
        if tree is None:
            return []
        ordered = _matching(conn, statement, plan, tree, filters.newest_first)
        hits = conn.rows(page_of(_ordered(ordered, filters), limit, offset))
        _add_snippets(conn, hits, plan, tree)
    for hit in hits:
        del hit["_content"], hit["_tool_calls"]
    _add_contexts(conn, hits)
    return hits


def _ordered(statement: Select[Any], filters: Filters) -> Select[Any]:
    if not filters.by_id:
        return statement
    return statement.order_by(None).order_by(messages.c.id.desc())


@answers(queries.count_matches)
def count_matches(conn: ServerConnection, query: str | None, filters: Filters) -> int:
    """Return the number of hits on all pages."""
    plan = plan_query(query)
    if plan is None:
        return 0
    statement = _HIT.with_only_columns(messages.c.id).where(*_passing(filters))
    if plan.route is Route.LIKE:
        found = _by_terms(conn, statement, plan)
    else:
        tree = parse(plan.match, plan.route)
        if tree is None:
            return 0
        found = _matching(conn, statement, plan, tree)
    hits = found.order_by(None).subquery()
    return int(conn.scalar(select(func.count()).select_from(hits)))


def _matching(
    conn: ServerConnection,
    statement: Select[Any],
    plan: Plan,
    tree: Node,
    newest_first: bool = False,
) -> Select[Any]:
    if plan.route is Route.TRIGRAMS:
        parts = statement.where(conn.dialect.contains_parts(tree))
        return parts.order_by(messages.c.timestamp.desc(), messages.c.id)
    condition, rank = conn.dialect.contains_words(conn, tree)
    end = messages.c.id.desc() if newest_first else messages.c.id
    return statement.where(condition).order_by(rank.desc(), end)


def _by_terms(conn: ServerConnection, statement: Select[Any], plan: Plan) -> Select[Any]:
    matches = [
        conn.dialect.like(conn.dialect.before_nul(column), f"%{like_literal(term)}%")
        for term in plan.terms
        for column in SEARCHED
    ]
    found = statement.where(conn.dialect.may_contain(conn, plan.terms), or_(*matches))
    return found.order_by(messages.c.timestamp.desc(), messages.c.id)


def _add_snippets(conn: ServerConnection, hits: list[Row], plan: Plan, tree: Node) -> None:
    texts = {hit["id"]: _searched_text(hit) for hit in hits}
    found = snippets(plan.match, plan.route, texts.items())
    missing = [hit["id"] for hit in hits if hit["id"] not in found]
    if missing:
        found |= conn.dialect.headlines(conn, tree, missing)
    for hit in hits:
        hit["snippet"] = found.get(hit["id"], texts[hit["id"]][:120])


def _searched_text(hit: Row) -> str:
    parts = (hit["_content"], hit["tool_name"], hit["_tool_calls"])
    return " ".join(
        part.decode("utf-8", "replace") if isinstance(part, bytes) else part or "" for part in parts
    )


def search_similar(conn: ServerConnection, wanted: str, limit: int) -> list[Row]:
    """Return messages that hold something like *wanted*, nearest first.

    Raises :class:`Unsupported` if the dialect cannot compare texts so.
    """
    condition, nearness = conn.dialect.similar(wanted)
    statement = (
        _HIT.add_columns(nearness.label("similarity"))
        .where(condition)
        .order_by(nearness.desc(), messages.c.id)
    )
    hits = conn.rows(page_of(statement, limit, 0))
    for hit in hits:
        hit["snippet"] = file_matches.term_snippet(hit.pop("_content"), wanted)
        del hit["_tool_calls"]
    _add_contexts(conn, hits)
    return hits


_hit, _near = messages.alias("hit"), messages.alias("near")


def _neighbour(before: bool) -> Any:
    """Return an expression: the id of a hit's neighbour in its session, by time, then by id."""
    at, this = _hit.c.timestamp, _hit.c.id
    if before:
        # The first part says nothing new, but an index can be used for it.
        nearer = and_(_near.c.timestamp <= at, or_(_near.c.timestamp < at, _near.c.id < this))
        order = (_near.c.timestamp.desc(), _near.c.id.desc())
    else:
        nearer = and_(_near.c.timestamp >= at, or_(_near.c.timestamp > at, _near.c.id > this))
        order = (_near.c.timestamp.asc(), _near.c.id.asc())
    of_session = _near.c.session_id == _hit.c.session_id
    found = select(_near.c.id).where(of_session, nearer).order_by(*order).limit(1)
    return found.correlate(_hit).scalar_subquery()


_IDS: Any = bindparam("ids", expanding=True)
_CONTEXTS = select(_neighbour(before=True), _hit.c.id, _neighbour(before=False)).where(
    _hit.c.id.in_(_IDS)
)
_TEXTS = select(messages.c.id, messages.c.role, messages.c.content).where(messages.c.id.in_(_IDS))


def _add_contexts(conn: ServerConnection, hits: list[Row]) -> None:
    """Add to every hit the message before it, itself, and the one after it, as short texts.

    Two statements however many hits there are: each is a round trip to the server.
    """
    if not hits:
        return
    contexts = {ids[1]: ids for ids in conn.tuples(_CONTEXTS, {"ids": [hit["id"] for hit in hits]})}
    wanted = {one for ids in contexts.values() for one in ids if one is not None}
    texts = {
        one: (role, file_matches.short_text(content))
        for one, role, content in conn.tuples(_TEXTS, {"ids": sorted(wanted)})
    }
    for hit in hits:
        near = [texts[one] for one in contexts[hit["id"]] if one is not None]
        hit["context"] = [{"role": role, "content": content} for role, content in near]
