"""Titles on a server: uniqueness, and the numbered titles of a lineage."""

from __future__ import annotations

import string
from typing import Any

from sqlalchemy import Column, Select, bindparam, or_, select, update

from hermes_actor.errors import TitleInUse
from hermes_actor.providers.server.connection import ServerConnection
from hermes_actor.providers.server.registry import answers, applies
from hermes_actor.providers.server.tables import SESSION_COLUMNS, sessions
from hermes_actor.providers.server.values import encode_text
from hermes_actor.store import titles as questions
from hermes_actor.store.rows import Row
from hermes_protocol.operations import SessionTitle

__all__ = ["begins_with", "folded", "next_title"]

_BY_ID = sessions.c.id == bindparam("key")
_BY_TITLE = sessions.c.title == bindparam("title")
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(text: str) -> str:
    """*text* as SQLite's LIKE sees it: the letters A to Z are those of a to z, and no others."""
    return text.translate(_FOLD)


def begins_with(
    conn: ServerConnection, statement: Select[Any], column: Column[Any], beginning: str
) -> list[Row]:
    """Rows of *statement* whose *column* begins with a text, as ``LIKE 'beginning%'`` tells it.

    The server finds candidates by its own idea of letter case; which of them count is told here.
    """
    likes = conn.dialect.like(column, questions.escape_like(encode_text(beginning) or "") + "%")
    wanted = folded(beginning)
    rows = conn.rows(statement.where(likes))
    return [
        row
        for row in rows
        if isinstance(row[column.name], str) and folded(row[column.name]).startswith(wanted)
    ]


@applies(SessionTitle)
def set_title(conn: ServerConnection, op: SessionTitle) -> bool:
    if op.title is not None:
        holder = conn.scalar(
            select(sessions.c.id).where(_BY_TITLE, sessions.c.id != bindparam("key")),
            {"title": op.title, "key": op.id},
        )
        if holder is not None:
            raise TitleInUse(f"Title {op.title!r} is already in use by session {holder}")
    statement = update(sessions).where(_BY_ID).values(title=bindparam("new_title"))
    return conn.execute(statement, {"key": op.id, "new_title": op.title}).rowcount > 0


@answers(questions.title_of)
def title_of(conn: ServerConnection, session_id: str) -> str | None:
    title: str | None = conn.scalar(select(sessions.c.title).where(_BY_ID), {"key": session_id})
    return title


@answers(questions.by_title)
def by_title(conn: ServerConnection, title: str) -> Row | None:
    return conn.first(select(*SESSION_COLUMNS).where(_BY_TITLE), {"title": title})


@answers(questions.resolve_title)
def resolve_title(conn: ServerConnection, title: str) -> str | None:
    """The latest numbered continuation of *title*, else the session that has exactly it."""
    newest_first = select(sessions.c.id, sessions.c.title).order_by(
        sessions.c.started_at.desc(), sessions.c.place
    )
    numbered = begins_with(conn, newest_first, sessions.c.title, f"{title} #")
    if numbered:
        found: str = numbered[0]["id"]
        return found
    exact: str | None = conn.scalar(select(sessions.c.id).where(_BY_TITLE), {"title": title})
    return exact


@answers(questions.next_in_lineage)
def next_title(conn: ServerConnection, base_title: str) -> str:
    """The first free title of the lineage: the base itself, or base and the next number."""
    base = questions.lineage_base(base_title)
    numbered = begins_with(conn, select(sessions.c.title), sessions.c.title, f"{base} #")
    taken = [row["title"] for row in numbered]
    taken += conn.column(select(sessions.c.title).where(or_(_BY_TITLE)), {"title": base})
    return questions.next_number(base, taken)
