"""Lists of sessions, with preview and last activity.

Pages are cut before anything is computed for their rows, so a list costs what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.activity import Listed, by_activity
from hermes_actor.store.lineage import activity_of, compression_tip
from hermes_actor.store.registry import answers
from hermes_actor.store.rows import Row, chunks, dicts, placeholders
from hermes_actor.store.schema_features import SchemaFeatures, features_of
from hermes_actor.store.telegram_topics import has_topics

__all__ = [
    "PREVIEW_CUT", "Page", "list_rich", "projected", "rich_row", "search_sessions", "shortened",
    "unlinked_telegram_sessions",
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


class Page(NamedTuple):
    """Selection and page of a list of sessions."""

    source: str | None
    exclude_sources: Sequence[str] | None
    limit: int
    offset: int
    include_children: bool


@answers(queries.list_sessions)
def list_sessions(
    conn: Connection, page: Page, project_tips: bool, order_by_last_active: bool
) -> list[Row]:
    """Return one page of sessions, of every workspace: see :func:`list_rich`."""
    return list_rich(conn, page, project_tips, order_by_last_active)


def list_rich(
    conn: Connection,
    page: Page,
    project_tips: bool,
    order_by_last_active: bool,
    workspace: str | None = None,
) -> list[Row]:
    """Return one page of listed sessions with preview and activity.

    Top-level ones, unless the page includes children; newest or latest active first. *workspace*:
    only sessions whose repository or working directory contains it, ignoring case. With
    *project_tips* a compressed root shows the newest facts of its tip.
    """
    features = features_of(conn)
    listed = _listed(features, page.source, page.exclude_sources, page.include_children)
    if workspace is not None:
        listed = Listed(
            f"{listed.where} AND {_WORKSPACE}", (*listed.parameters, workspace), listed.source
        )
    if order_by_last_active:
        ids = by_activity(conn, listed, limit=page.limit, offset=page.offset, through_lineage=True)
        rows = _rich_by_id(conn, features, ids)
    else:
        rows = dicts(
            conn,
            f"""
            SELECT s.*, {_LAST_ACTIVE} AS last_active, {_preview(features)} AS preview
            FROM (SELECT s.rowid AS place, s.id FROM sessions s WHERE {listed.where}
                  ORDER BY s.started_at DESC, s.rowid LIMIT ? OFFSET ?) page
            JOIN sessions s ON s.rowid = page.place
            ORDER BY s.started_at DESC, s.rowid
            """,
            (*listed.parameters, page.limit, page.offset),
        )
        _finish_previews(rows)
    if project_tips and not page.include_children:
        tip_of, shown = partial(compression_tip, conn), partial(rich_row, conn)
        rows = [projected(row, tip_of, shown) for row in rows]
    return rows


@answers(queries.listed_session)
def rich_row(conn: Connection, session_id: str) -> Row | None:
    """Return one session as a list shows it, not projected to its tip; or ``None``."""
    rows = _rich_by_id(conn, features_of(conn), [session_id])
    return rows[0] if rows else None


@answers(queries.search_sessions)
def search_sessions(conn: Connection, source: str | None, limit: int, offset: int) -> list[Row]:
    """Return one page of sessions, children included, latest active first."""
    where, parameters = ("s.source = ?", (source,)) if source else ("1", ())
    page = by_activity(
        conn, Listed(where, parameters, source or None), limit=limit, offset=offset,
        through_lineage=False,
    )  # fmt: skip
    return _by_id(conn, f"SELECT s.*, {_LAST_ACTIVE} AS last_active FROM sessions s", page)


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


def _listed(
    features: SchemaFeatures,
    source: str | None,
    exclude: Sequence[str] | None,
    include_children: bool,
) -> Listed:
    conditions, parameters = [features.is_listable], []
    if not include_children:
        conditions.append(features.is_top_level)
    if source:
        conditions.append("s.source = ?")
        parameters.append(source)
    if exclude:
        conditions.append(f"s.source NOT IN {placeholders(len(exclude))}")
        parameters.extend(exclude)
    return Listed(" AND ".join(conditions), tuple(parameters), source or None)


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
