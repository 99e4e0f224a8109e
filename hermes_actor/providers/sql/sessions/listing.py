"""Lists of sessions on a server, with preview and last activity."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, exists, func, or_, select, true

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers
from hermes_actor.providers.sql.sessions.lineage import CONTINUES, child, compression_tip, parent
from hermes_actor.providers.sql.sessions.session_row import BY_ID
from hermes_actor.providers.sql.tables import (
    SESSION_COLUMNS,
    archived,
    bindings,
    messages,
    sessions,
)
from hermes_actor.providers.sql.types import StoredReal, StoredText
from hermes_actor.store import queries
from hermes_actor.store.rows import Row, chunks
from hermes_actor.store.sessions import listing as file_listing
from hermes_actor.store.sessions.page import Order, Page, Position

__all__ = ["page_of"]

_CHUNK = 500

# Twice the characters that a preview looks at: each may be kept as a mark of two, or, of bytes,
# as two digits.
_PREVIEW_READ = 8 * file_listing.PREVIEW_CUT + 2


def _latest(session_id: ColumnElement[Any]) -> ColumnElement[Any]:
    latest = select(func.max(messages.c.timestamp)).where(messages.c.session_id == session_id)
    return latest.scalar_subquery()


def _activity(of: Any) -> ColumnElement[Any]:
    """Return an expression: the time of the latest message, or the start without one."""
    return func.coalesce(_latest(of.c.id), of.c.started_at, type_=StoredReal())


_PREVIEW = (
    select(func.substr(messages.c.content, 1, _PREVIEW_READ, type_=StoredText()))
    .where(
        messages.c.session_id == sessions.c.id,
        messages.c.role == "user",
        messages.c.content.is_not(None),
    )
    .order_by(messages.c.timestamp, messages.c.id)
    .limit(1)
    .scalar_subquery()
)
_RICH = select(
    *SESSION_COLUMNS, _activity(sessions).label("last_active"), _PREVIEW.label("preview")
)

_member = sessions.alias()
_ROOT_OR_BRANCH = or_(
    sessions.c.parent_session_id.is_(None),
    exists().where(
        parent.c.id == sessions.c.parent_session_id,
        parent.c.end_reason == "branched",
        sessions.c.started_at >= parent.c.ended_at,
    ),
)


def page_of(statement: Select[Any], limit: int, offset: int) -> Select[Any]:
    """Limit *statement* as SQLite does: a negative limit is none, a negative offset is zero."""
    if limit >= 0:
        statement = statement.limit(limit)
    elif offset > 0:
        statement = statement.limit(2**62)  # MySQL has no offset without a limit
    return statement.offset(offset) if offset > 0 else statement


def _listed(page: Page) -> ColumnElement[bool]:
    if page.workspace is not None:
        raise file_listing.no_workspaces()
    marked = exists().where(archived.c.session_id == sessions.c.id)
    condition: ColumnElement[bool] = marked if page.archived else ~marked
    if not page.include_children:
        condition &= _ROOT_OR_BRANCH
    if page.source:
        condition &= sessions.c.source == page.source
    if page.exclude_sources:
        condition &= sessions.c.source.not_in(list(page.exclude_sources))
    return condition


@answers(queries.list_sessions)
def list_sessions(
    conn: ServerConnection, page: Page, project_tips: bool, order: Order
) -> list[Row]:
    """Return one page of listed sessions with preview and activity.

    Top-level ones, unless the page includes children. With *project_tips* a compressed root shows
    the newest facts of its tip.
    """
    listed = _listed(page)
    if order == "active":
        by_activity = _by_lineage_activity(listed, page.after)
        ids = conn.column(page_of(by_activity, page.limit, page.offset))
        rows = _rich_by_id(conn, ids)
    else:
        first = [sessions.c.message_count.desc()] if order == "messages" else []
        newest = _RICH.where(listed & _after(page.after, order)).order_by(
            *first, sessions.c.started_at.desc(), sessions.c.place
        )
        rows = _finished(conn.rows(page_of(newest, page.limit, page.offset)))
    if project_tips and not page.include_children:
        tip_of, shown = partial(compression_tip, conn), partial(rich_row, conn)
        rows = [file_listing.projected(row, tip_of, shown) for row in rows]
    return rows


def _after(after: Position | None, order: Order) -> ColumnElement[bool]:
    """Return a condition: comes after *after* by start, or by number of messages."""
    if after is None:
        return true()
    by_start = _below(sessions.c.started_at, after.started_at, sessions.c.place > after.place)
    if order == "messages":
        return _below(sessions.c.message_count, after.messages, by_start)
    return by_start


def _below(
    value: ColumnElement[Any], limit: float, when_equal: ColumnElement[bool]
) -> ColumnElement[bool]:
    return or_(value < limit, and_(value == limit, when_equal))


@answers(queries.position_in_lists)
def position(conn: ServerConnection, session_id: str) -> Position | None:
    """Return the position of a session; ``None`` if there is no such session."""
    statement = select(
        _lineage_activity(sessions.c.id == session_id).label("activity"),
        *(sessions.c[name] for name in ("started_at", "id", "place", "message_count")),
    ).where(sessions.c.id == session_id)
    row = conn.first(statement)
    if row is None:
        return None
    return Position(
        row["activity"], row["started_at"], row["id"], row["place"], row["message_count"] or 0
    )


def _by_lineage_activity(listed: ColumnElement[bool], after: Position | None) -> Select[Any]:
    """Return a query for ids by the latest activity of a session and all its continuations.

    Only for those that come after *after*.
    """
    activity = _lineage_activity(listed)
    ids = (
        select(sessions.c.id)
        .where(listed)
        .order_by(activity.desc(), sessions.c.started_at.desc(), sessions.c.id.desc())
    )
    if after is None:
        return ids
    by_id = _below(sessions.c.started_at, after.started_at, sessions.c.id < after.id)
    return ids.where(_below(activity, after.activity, by_id))


def _lineage_activity(listed: ColumnElement[bool]) -> ColumnElement[Any]:
    """Return an expression: the latest activity of a session and of its continuations."""
    chain = (
        select(sessions.c.id.label("root"), sessions.c.id.label("member"))
        .where(listed, sessions.c.end_reason == "compression")
        .cte("chain", recursive=True)
    )
    # UNION and not UNION ALL: a lineage that runs in a circle ends.
    chain = chain.union(
        select(chain.c.root, child.c.id)
        .join(parent, parent.c.id == chain.c.member)
        .join(child, CONTINUES)
    )
    of_lineage = (
        select(func.max(_activity(_member)))
        .select_from(chain)
        .join(_member, _member.c.id == chain.c.member)
        .where(chain.c.root == sessions.c.id)
        .scalar_subquery()
    )
    return case((sessions.c.end_reason == "compression", of_lineage), else_=_activity(sessions))


@answers(queries.listed_session)
def rich_row(conn: ServerConnection, session_id: str) -> Row | None:
    """Return one session as a list shows it, not projected to its tip; or ``None``."""
    row = conn.first(_RICH.where(BY_ID), {"key": session_id})
    return row and _finished([row])[0]


@answers(queries.search_sessions)
def search_sessions(
    conn: ServerConnection, source: str | None, limit: int, offset: int
) -> list[Row]:
    """Return one page of sessions, children included, latest active first."""
    active = _activity(sessions).label("last_active")
    statement = select(*SESSION_COLUMNS, active)
    if source:
        statement = statement.where(sessions.c.source == source)
    ordered = statement.order_by(active.desc(), sessions.c.started_at.desc(), sessions.c.id.desc())
    return conn.rows(page_of(ordered, limit, offset))


@answers(queries.ids_by_activity)
def ids_by_activity(conn: ServerConnection, source: str | None, limit: int) -> list[str]:
    """Return the ids of sessions, children included, latest active first."""
    statement = select(sessions.c.id)
    if source:
        statement = statement.where(sessions.c.source == source)
    latest = _activity(sessions).desc()
    ordered = statement.order_by(latest, sessions.c.started_at.desc(), sessions.c.id.desc())
    return conn.column(page_of(ordered, limit, 0))


@answers(queries.unlinked_telegram_sessions)
def unlinked_telegram_sessions(conn: ServerConnection, user_id: str, limit: int) -> list[Row]:
    """Return Telegram sessions of a user that no topic holds, latest active first."""
    statement = _RICH.where(
        sessions.c.source == "telegram",
        sessions.c.user_id == user_id,
        ~exists().where(bindings.c.session_id == sessions.c.id),
    ).order_by(_activity(sessions).desc(), sessions.c.started_at.desc(), sessions.c.place)
    return _finished(conn.rows(page_of(statement, limit, 0)))


def _rich_by_id(conn: ServerConnection, ids: list[str]) -> list[Row]:
    found: dict[str, Row] = {}
    for part in chunks(ids, _CHUNK):
        for row in conn.rows(_RICH.where(sessions.c.id.in_(part))):
            found[row["id"]] = row
    return _finished([found[session_id] for session_id in ids if session_id in found])


def _finished(rows: list[Row]) -> list[Row]:
    for row in rows:
        row["preview"] = _preview(row["preview"])
    return rows


def _preview(content: str | bytes | None) -> str:
    """Return a preview as SQLite's functions cut it: they end at a NUL, and take bytes for text."""
    if isinstance(content, bytes):
        content = content[: 4 * file_listing.PREVIEW_CUT].decode("utf-8", "replace")
    text = (content or "").partition("\x00")[0].replace("\n", " ").replace("\r", " ")
    return file_listing.shortened(text[: file_listing.PREVIEW_CUT])
