"""Lists of sessions, with preview and last activity.

Pages are cut before anything is computed for their rows, so a list costs what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from hermes_actor.errors import Unsupported
from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.inspection import has_column
from hermes_actor.store.registry import answers
from hermes_actor.store.rows import Row, chunks, dicts, placeholders
from hermes_actor.store.schema_features import SchemaFeatures, features_of
from hermes_actor.store.sessions.activity import Listed, by_activity, lineage_activity
from hermes_actor.store.sessions.lineage import activity_of, compression_tip
from hermes_actor.store.sessions.page import Order, Page, Position
from hermes_actor.store.sessions.telegram_topics import has_topics

__all__ = [
    "PREVIEW_CUT", "list_sessions", "no_workspaces", "projected", "rich_row",
    "search_sessions", "shortened", "unlinked_telegram_sessions",
]  # fmt: skip

PREVIEW_CUT = 63
_PREVIEW_LENGTH = 60

_LAST_ACTIVE = activity_of("s")

# Each replaced character is one character, so cutting first (with room for the bytes of a BLOB)
# gives the same text without touching the rest of a long message.
_PREVIEW = f"""
    COALESCE((SELECT CAST(SUBSTR(REPLACE(REPLACE(SUBSTR(m.content, 1, {4 * PREVIEW_CUT}),
                          CHAR(10), ' '), CHAR(13), ' '), 1, {PREVIEW_CUT}) AS BLOB)
              FROM messages m WHERE m.session_id = s.id AND m.role = 'user'
                AND m.content IS NOT NULL AND {{visible}}
              ORDER BY m.timestamp, m.id LIMIT 1), x'')
"""

_PROJECTED = (
    "id", "ended_at", "end_reason", "message_count", "tool_call_count", "title", "last_active",
    "preview", "model", "system_prompt",
)  # fmt: skip

_WORKSPACE = (
    "instr(lower(COALESCE(NULLIF(s.git_repo_root, ''), NULLIF(s.cwd, ''), '')), lower(?)) > 0"
)


@answers(queries.list_sessions)
def list_sessions(conn: Connection, page: Page, project_tips: bool, order: Order) -> list[Row]:
    """Return one page of listed sessions with preview and activity.

    Top-level ones, unless the page includes children. With *project_tips* a compressed root shows
    the newest facts of its tip. Raises :class:`Unsupported` if workspaces are not recorded.
    """
    features = features_of(conn)
    listed = _listed(features, page)
    if page.workspace is not None:
        if not has_column(conn, "sessions", "git_repo_root"):
            raise no_workspaces()
        listed = Listed(
            f"{listed.where} AND {_WORKSPACE}", (*listed.parameters, page.workspace), listed.source
        )
    if order == "active":
        if page.after is not None:
            listed = listed._replace(after=page.after[:3])
        ids = by_activity(conn, listed, limit=page.limit, offset=page.offset, through_lineage=True)
        rows = _rich_by_id(conn, features, ids)
    else:
        first = "s.message_count DESC, " if order == "messages" else ""
        listed = _from(listed, page.after, order)
        rows = dicts(
            conn,
            f"""
            SELECT s.*, {_LAST_ACTIVE} AS last_active, {_preview(features)} AS preview
            FROM (SELECT s.rowid AS place, s.id FROM sessions s WHERE {listed.where}
                  ORDER BY {first}s.started_at DESC, s.rowid LIMIT ? OFFSET ?) page
            JOIN sessions s ON s.rowid = page.place
            ORDER BY {first}s.started_at DESC, s.rowid
            """,
            (*listed.parameters, page.limit, page.offset),
        )
        _finish_previews(rows)
    if project_tips and not page.include_children:
        tip_of, shown = partial(compression_tip, conn), partial(rich_row, conn)
        rows = [projected(row, tip_of, shown) for row in rows]
    return rows


_AFTER_START = "(s.started_at < ?2 OR s.started_at = ?2 AND s.rowid > ?3)"
_AFTER_COUNT = f"(s.message_count < ?1 OR s.message_count = ?1 AND {_AFTER_START})"


def _from(listed: Listed, after: Position | None, order: Order) -> Listed:
    """Return *listed* without what comes before *after* by start, or by number of messages."""
    if after is None:
        return listed
    condition = _AFTER_COUNT if order == "messages" else _AFTER_START
    # Named by what they are: each is used twice, between parameters that have no number.
    values = {"?1": after.messages, "?2": after.started_at, "?3": after.place}
    used = re.findall(r"\?\d", condition)
    return Listed(
        f"{listed.where} AND {re.sub(r'[?][0-9]', '?', condition)}",
        (*listed.parameters, *(values[mark] for mark in used)),
        listed.source,
    )


@answers(queries.position_in_lists)
def position(conn: Connection, session_id: str) -> Position | None:
    """Return the position of a session; ``None`` if there is no such session."""
    sql = "SELECT started_at, rowid, COALESCE(message_count, 0) FROM sessions WHERE id = ?"
    found = conn.execute(sql, (session_id,)).fetchone()
    if found is None:
        return None
    started_at, place, messages = found
    return Position(lineage_activity(conn, session_id), started_at, session_id, place, messages)


@answers(queries.listed_session)
def rich_row(conn: Connection, session_id: str) -> Row | None:
    """Return one session as a list shows it, not projected to its tip; or ``None``."""
    rows = _rich_by_id(conn, features_of(conn), [session_id])
    return rows[0] if rows else None


@answers(queries.search_sessions)
def search_sessions(conn: Connection, source: str | None, limit: int, offset: int) -> list[Row]:
    """Return one page of sessions, children included, latest active first."""
    page = by_activity(conn, _of_source(source), limit=limit, offset=offset, through_lineage=False)
    return _by_id(conn, f"SELECT s.*, {_LAST_ACTIVE} AS last_active FROM sessions s", page)


@answers(queries.ids_by_activity)
def ids_by_activity(conn: Connection, source: str | None, limit: int) -> list[str]:
    """Return the ids of sessions, children included, latest active first."""
    return by_activity(conn, _of_source(source), limit=limit, offset=0, through_lineage=False)


def _of_source(source: str | None) -> Listed:
    where, parameters = ("s.source = ?", (source,)) if source else ("1", ())
    return Listed(where, parameters, source or None)


@answers(queries.unlinked_telegram_sessions)
def unlinked_telegram_sessions(conn: Connection, user_id: str, limit: int) -> list[Row]:
    """Return Telegram sessions of a user that no topic holds, latest active first."""
    free = (
        "AND NOT EXISTS (SELECT 1 FROM telegram_dm_topic_bindings b WHERE b.session_id = s.id)"
        if has_topics(conn)
        else ""
    )
    ids = conn.execute(
        f"SELECT s.id FROM sessions s WHERE s.source = 'telegram' AND s.user_id = ? {free}"
        f" ORDER BY {_LAST_ACTIVE} DESC, s.started_at DESC LIMIT ?",
        (user_id, limit),
    ).fetchall()
    return _rich_by_id(conn, features_of(conn), [session_id for (session_id,) in ids])


def no_workspaces() -> Unsupported:
    """Return the error for a list by workspace of a store that does not record them."""
    return Unsupported(
        "the store does not record workspaces (it has no column git_repo_root);"
        " list without --workspace"
    )


def _listed(features: SchemaFeatures, page: Page) -> Listed:
    conditions, parameters = [features.is_archived if page.archived else features.is_listable], []
    if not page.include_children:
        conditions.append(features.is_top_level)
    if page.source:
        conditions.append("s.source = ?")
        parameters.append(page.source)
    if page.exclude_sources:
        conditions.append(f"s.source NOT IN {placeholders(len(page.exclude_sources))}")
        parameters.extend(page.exclude_sources)
    return Listed(" AND ".join(conditions), tuple(parameters), page.source or None)


def _preview(features: SchemaFeatures) -> str:
    return _PREVIEW.format(visible=features.visible)


def _rich_by_id(conn: Connection, features: SchemaFeatures, ids: list[str]) -> list[Row]:
    select = f"SELECT s.*, {_LAST_ACTIVE} AS last_active, {_preview(features)} AS preview"
    rows = _by_id(conn, f"{select} FROM sessions s", ids)
    _finish_previews(rows)
    return rows


def _by_id(conn: Connection, select: str, ids: list[str]) -> list[Row]:
    """Return rows in the order of *ids*."""
    found: dict[Any, Row] = {}
    for part in chunks(ids, 500):
        for row in dicts(conn, f"{select} WHERE s.id IN {placeholders(len(part))}", part):
            found[row["id"]] = row
    return [found[session_id] for session_id in ids if session_id in found]


def _finish_previews(rows: list[Row]) -> None:
    for row in rows:
        # As bytes, because a message of bytes need not be text; one odd row must not cost a list.
        row["preview"] = shortened(row["preview"].decode("utf-8", "replace"))


def shortened(text: str) -> str:
    """Return the preview of a message: its beginning, with an ellipsis if it is longer."""
    text = text.strip()
    return text if len(text) <= _PREVIEW_LENGTH else text[:_PREVIEW_LENGTH] + "..."


def projected(
    root: Row, tip_of: Callable[[str], str | None], shown: Callable[[str], Row | None]
) -> Row:
    """Return a compressed root with the newest facts of its tip, and other rows unchanged.

    ``_lineage_root_id`` is then the id of the root.
    """
    tip_id = tip_of(root["id"]) if root["end_reason"] == "compression" else None
    tip = shown(tip_id) if tip_id and tip_id != root["id"] else None
    if tip is None:
        return root
    return {**root, **{key: tip[key] for key in _PROJECTED}, "_lineage_root_id": root["id"]}
