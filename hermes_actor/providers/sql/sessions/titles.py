"""Titles on a server: uniqueness, and the numbered titles of a lineage."""

from __future__ import annotations

import string
from typing import Any

from sqlalchemy import Column, Select, bindparam, delete, insert, select

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers, applies
from hermes_actor.providers.sql.sessions.lineage import compression_lineage
from hermes_actor.providers.sql.sessions.session_row import BY_ID, is_there, set_columns
from hermes_actor.providers.sql.tables import SESSION_COLUMNS, queued_titles, sessions
from hermes_actor.providers.sql.types import like_literal
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions import titles as file_titles
from hermes_protocol.operations import SessionTitle, SessionTitleDefault, TitleQueue

__all__ = ["begins_with", "claim_title", "folded", "free_title", "next_title"]

_BY_TITLE = sessions.c.title == bindparam("title")
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(text: str) -> str:
    """Return *text* as SQLite's LIKE compares it: only A to Z lose their case."""
    return text.translate(_FOLD)


def begins_with(
    conn: ServerConnection, statement: Select[Any], column: Column[Any], beginning: str
) -> list[Row]:
    """Return rows of *statement* whose *column* begins with a text, as ``LIKE 'beginning%'`` does.

    The server finds candidates by its own rules of letter case; this function decides.
    """
    likes = conn.dialect.like(column, like_literal(beginning) + "%")
    wanted = folded(beginning)
    rows = conn.rows(statement.where(likes))
    return [
        row
        for row in rows
        if isinstance(row[column.name], str) and folded(row[column.name]).startswith(wanted)
    ]


@applies(SessionTitle)
def set_title(conn: ServerConnection, op: SessionTitle) -> bool:
    """Set or clear a title; return True if the session exists.

    Raises :class:`TitleInUse` if another session holds it; with ``move`` a compression ancestor
    gives it up instead.
    """
    if op.title is not None:
        holder = conn.scalar(
            select(sessions.c.id).where(_BY_TITLE, sessions.c.id != bindparam("key")),
            {"title": op.title, "key": op.id},
        )
        if holder is not None:
            chain = compression_lineage(conn, op.id) if op.move else []  # type: ignore[arg-type]
            file_titles.check_may_move(op, holder, chain)
            set_columns(conn, holder, title=None)
    return set_columns(conn, op.id, title=op.title)


def free_title(conn: ServerConnection, title: str) -> str:
    """Return *title*, or the next one of its lineage if it is taken."""
    taken = conn.scalar(select(sessions.c.id).where(_BY_TITLE), {"title": title})
    return title if taken is None else next_title(conn, title)


@applies(SessionTitleDefault)
def set_default_title(conn: ServerConnection, op: SessionTitleDefault) -> str:
    """Give an untitled session a title, or the next one of its lineage if that is taken.

    Returns the title it got; empty if it has one already or does not exist.
    """
    row = conn.first(select(sessions.c.title).where(BY_ID).with_for_update(), {"key": op.id})
    if row is None or row["title"] is not None:
        return ""
    title = free_title(conn, op.title)
    set_columns(conn, op.id, title=title)
    return title


_KEPT_FOR = queued_titles.c.session_id == bindparam("key")


@applies(TitleQueue)
def queue_title(conn: ServerConnection, op: TitleQueue) -> bool:
    """Keep a title for a session that does not exist yet; ``None`` forgets it.

    Returns False, and keeps nothing, if the session exists. Raises :class:`TitleInUse` if a session
    or another queued title has it.
    """
    if is_there(conn, op.id):
        return False
    conn.execute(delete(queued_titles).where(_KEPT_FOR), {"key": op.id})
    if op.title is not None:
        kept = queued_titles.c.title == bindparam("title")
        for statement in (
            select(sessions.c.id).where(_BY_TITLE),
            select(queued_titles.c.session_id).where(kept),
        ):
            holder = conn.scalar(statement, {"title": op.title})
            if holder is not None:
                raise file_titles.in_use(op.title, holder)
        conn.execute(insert(queued_titles), {"session_id": op.id, "title": op.title})
    return True


def claim_title(conn: ServerConnection, session_id: Any) -> None:
    """Give a new session the title that was queued for it, or the next one if that is taken."""
    kept = queued_title(conn, session_id)
    if kept is not None:
        # Another session may have taken it meanwhile; this one must be created all the same.
        set_columns(conn, session_id, title=free_title(conn, kept))
        conn.execute(delete(queued_titles).where(_KEPT_FOR), {"key": session_id})


@answers(queries.queued_title)
def queued_title(conn: ServerConnection, session_id: Any) -> str | None:
    """Return the title that is kept for a session that does not exist yet, or ``None``."""
    kept = select(queued_titles.c.title).where(_KEPT_FOR)
    title: str | None = conn.scalar(kept, {"key": session_id})
    return title


@answers(queries.session_title)
def title_of(conn: ServerConnection, session_id: str) -> str | None:
    """Return the title of a session; ``None`` if it has none or does not exist."""
    title: str | None = conn.scalar(select(sessions.c.title).where(BY_ID), {"key": session_id})
    return title


@answers(queries.session_by_title)
def by_title(conn: ServerConnection, title: str) -> Row | None:
    """Return the session that has exactly this title; ``None`` if there is none."""
    return conn.first(select(*SESSION_COLUMNS).where(_BY_TITLE), {"title": title})


@answers(queries.resolve_title)
def resolve_title(conn: ServerConnection, title: str) -> str | None:
    """Return the id of the latest numbered continuation of *title*, else of *title* itself."""
    newest_first = select(sessions.c.id, sessions.c.title).order_by(
        sessions.c.started_at.desc(), sessions.c.place
    )
    numbered = begins_with(conn, newest_first, sessions.c.title, f"{title} #")
    if numbered:
        found: str = numbered[0]["id"]
        return found
    exact: str | None = conn.scalar(select(sessions.c.id).where(_BY_TITLE), {"title": title})
    return exact


@answers(queries.next_title_in_lineage)
def next_title(conn: ServerConnection, base_title: str) -> str:
    """Return the first free title of a lineage: the base itself, or base and the next number."""
    base = file_titles.lineage_base(base_title)
    numbered = begins_with(conn, select(sessions.c.title), sessions.c.title, f"{base} #")
    taken = [row["title"] for row in numbered]
    taken += conn.column(select(sessions.c.title).where(_BY_TITLE), {"title": base})
    return file_titles.next_number(base, taken)
