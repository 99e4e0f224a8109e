"""Titles: cleaning, uniqueness, and the numbered titles of a lineage."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from hermes_actor.errors import TitleInUse
from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.registry import answers, applies
from hermes_actor.store.rows import Row, first, is_there, scalar
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.sessions.lineage import compression_lineage
from hermes_actor.store.sessions.title_text import escape_like
from hermes_protocol.operations import SessionTitle, SessionTitleDefault, TitleQueue

__all__ = [
    "by_title", "check_may_move", "claim_title", "free_title",
    "in_use", "lineage_base", "next_in_lineage", "next_number", "queued_title", "resolve_title",
    "title_of",
]  # fmt: skip


@cache
def _numbered() -> re.Pattern[str]:
    return re.compile(r" #(\d+)$")


@applies(SessionTitle)
def set_title(conn: Connection, op: SessionTitle) -> bool:
    """Set or clear a title; return True if the session exists.

    Raises :class:`TitleInUse` if another session holds it; with ``move`` a compression ancestor
    gives it up instead.
    """
    if op.title is not None:
        holder = scalar(
            conn, "SELECT id FROM sessions WHERE title = ? AND id != ?", (op.title, op.id)
        )
        if holder is not None:
            chain = compression_lineage(conn, op.id) if op.move else []  # type: ignore[arg-type]
            check_may_move(op, holder, chain)
            conn.execute("UPDATE sessions SET title = NULL WHERE id = ?", (holder,))
    done = conn.execute("UPDATE sessions SET title = ? WHERE id = ?", (op.title, op.id))
    return done.rowcount > 0


def check_may_move(op: SessionTitle, holder: str, lineage: list[str]) -> None:
    """Raise :class:`TitleInUse` unless *holder* stands above the session in its *lineage*."""
    if op.id not in lineage or holder not in lineage[: lineage.index(op.id)]:
        raise in_use(op.title, holder)


def in_use(title: object, holder: object) -> TitleInUse:
    """Return the error for a title that *holder* has."""
    return TitleInUse(f"Title {title!r} is already in use by session {holder}")


@applies(SessionTitleDefault)
def set_default_title(conn: Connection, op: SessionTitleDefault) -> str:
    """Give an untitled session a title, or the next one of its lineage if that is taken.

    Returns the title it got; empty if it has one already or does not exist.
    """
    row = first(conn, "SELECT title FROM sessions WHERE id = ?", (op.id,))
    if row is None or row["title"] is not None:
        return ""
    title = free_title(conn, op.title)
    conn.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, op.id))
    return title


def free_title(conn: Connection, title: str) -> str:
    """Return *title*, or the next one of its lineage if it is taken."""
    taken = scalar(conn, "SELECT 1 FROM sessions WHERE title = ?", (title,))
    return title if taken is None else next_in_lineage(conn, title)


@applies(TitleQueue)
def queue_title(conn: Connection, op: TitleQueue) -> bool:
    """Keep a title for a session that does not exist yet; ``None`` forgets it.

    Returns False, and keeps nothing, if the session exists. Raises :class:`TitleInUse` if a session
    or another queued title has it.
    """
    if is_there(conn, op.id):
        return False
    conn.execute("DELETE FROM hermes_actor_titles WHERE session_id = ?", (op.id,))
    if op.title is not None:
        holder = scalar(conn, "SELECT id FROM sessions WHERE title = ?", (op.title,))
        holder = holder or scalar(
            conn, "SELECT session_id FROM hermes_actor_titles WHERE title = ?", (op.title,)
        )
        if holder is not None:
            raise in_use(op.title, holder)
        conn.execute("INSERT INTO hermes_actor_titles VALUES (?, ?)", (op.id, op.title))
    return True


def claim_title(conn: Connection, session_id: Any) -> None:
    """Give a new session the title that was queued for it, or the next one if that is taken."""
    kept = queued_title(conn, session_id)
    if kept is not None:
        # Another session may have taken it meanwhile; this one must be created all the same.
        title = free_title(conn, kept)
        conn.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session_id))
        conn.execute("DELETE FROM hermes_actor_titles WHERE session_id = ?", (session_id,))


@answers(queries.queued_title)
def queued_title(conn: Connection, session_id: Any) -> str | None:
    """Return the title that is kept for a session that does not exist yet, or ``None``."""
    if not features_of(conn).own_marks:
        return None
    sql = "SELECT title FROM hermes_actor_titles WHERE session_id = ?"
    title: str | None = scalar(conn, sql, (session_id,))
    return title


@answers(queries.session_title)
def title_of(conn: Connection, session_id: str) -> str | None:
    """Return the title of a session; ``None`` if it has none or does not exist."""
    title: str | None = scalar(conn, "SELECT title FROM sessions WHERE id = ?", (session_id,))
    return title


@answers(queries.session_by_title)
def by_title(conn: Connection, title: str) -> Row | None:
    """Return the session that has exactly this title; ``None`` if there is none."""
    return first(conn, "SELECT * FROM sessions WHERE title = ?", (title,))


@answers(queries.resolve_title)
def resolve_title(conn: Connection, title: str) -> str | None:
    """Return the id of the latest numbered continuation of *title*, else of *title* itself."""
    numbered: str | None = scalar(
        conn,
        "SELECT id FROM sessions WHERE title LIKE ? ESCAPE '\\' ORDER BY started_at DESC LIMIT 1",
        (escape_like(title) + " #%",),
    )
    if numbered is not None:
        return numbered
    exact: str | None = scalar(conn, "SELECT id FROM sessions WHERE title = ?", (title,))
    return exact


@answers(queries.next_title_in_lineage)
def next_in_lineage(conn: Connection, base_title: str) -> str:
    """Return the first free title of a lineage: the base itself, or base and the next number."""
    base = lineage_base(base_title)
    titles = conn.execute(
        "SELECT title FROM sessions WHERE title = ? OR title LIKE ? ESCAPE '\\'",
        (base, escape_like(base) + " #%"),
    ).fetchall()
    return next_number(base, [title for (title,) in titles])


def lineage_base(title: str) -> str:
    """Return *title* without its number."""
    numbered = _numbered()
    return numbered.sub("", title)


def next_number(base: str, taken: list[str]) -> str:
    """Return the title after those of a lineage that are *taken*."""
    if not taken:
        return base
    numbered = _numbered()
    numbers = (numbered.search(title) for title in taken)
    return f"{base} #{max([1, *(int(n.group(1)) for n in numbers if n)]) + 1}"
