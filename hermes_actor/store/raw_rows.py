"""Rows as they are stored, page by page: what a migration asks of a store.

A page is bounded by rows and by bytes, so that a reader holds neither a snapshot nor much memory,
whatever the rows are. Every column of the file format is in a row, in its order.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from functools import cache
from typing import Any, NamedTuple

import msgspec

from hermes_actor.sqlite import Connection, connect_alone
from hermes_actor.store import queries
from hermes_actor.store.registry import answers
from hermes_actor.store.row_transfer import COPIED_TABLES, resume_token_of
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import OWN_SQL, SCHEMA_SQL, TOPICS_SQL
from hermes_actor.store.schema_features import features_of

__all__ = [
    "LOWEST", "PAGE_BYTES", "PAGE_ROWS", "StoreSummary", "StoredRow",
    "bounded", "columns_of", "facts", "indexed_count", "message_page", "session_page",
    "size_of", "table_rows",
]  # fmt: skip

StoredRow = tuple[Any, ...]

LOWEST = -(2**63)
"""Below every id."""
PAGE_ROWS = 1000
PAGE_BYTES = 4 << 20

_encode = msgspec.msgpack.Encoder().encode

_ARCHIVED = "hermes_actor_archived"


class StoreSummary(NamedTuple):
    """Facts about a store that a migration needs before it begins."""

    identity: str
    """Identity of the store, however it is addressed."""
    sessions: int
    messages: int
    newest_id: int | None
    last_id: int
    """The highest message id ever given."""
    bookmark: dict[str, str]
    unknown: tuple[str, ...] = ()
    """Columns of a newer version that hold something, and that no other store has a place for."""


@cache
def columns_of() -> dict[str, tuple[str, ...]]:
    """Return the columns of every table that is copied, in the order of the file format."""
    with closing(connect_alone()) as conn:
        conn.executescript(SCHEMA_SQL + TOPICS_SQL + OWN_SQL)
        return {
            table: tuple(row[1] for row in conn.execute(f"PRAGMA table_info({table})"))
            for table in COPIED_TABLES
        }


@answers(queries.store_summary)
def facts(conn: Connection) -> StoreSummary:
    """Return identity, counts, highest ids and bookmark of the file, all from one snapshot."""
    sessions, messages, newest = conn.execute(
        "SELECT (SELECT COUNT(*) FROM sessions), COUNT(*), MAX(id) FROM messages"
    ).fetchone()
    last = scalar(conn, "SELECT seq FROM sqlite_sequence WHERE name = 'messages'")
    file_id = scalar(conn, "SELECT value FROM hermes_actor_meta WHERE key = 'file_id'")
    return StoreSummary(
        f"file {bytes(file_id).hex()}",
        sessions,
        messages,
        newest,
        max(last or 0, newest or 0),
        resume_token_of(conn),
        tuple(_unknown(conn)),
    )


def _unknown(conn: Connection) -> Iterable[str]:
    for table in ("sessions", "messages"):
        for _, name, _, _, default, _ in conn.execute(f"PRAGMA table_info({table})").fetchall():
            if name in columns_of()[table] or (table, name) == ("sessions", "archived"):
                continue
            # The default is SQL of the table's own definition.
            sql = f'SELECT 1 FROM {table} WHERE "{name}" IS NOT NULL AND "{name}" IS NOT {default}'
            if scalar(conn, f"{sql} LIMIT 1") is not None:
                yield f"{table}.{name}"


@answers(queries.session_page)
def session_page(conn: Connection, after: int) -> list[StoredRow]:
    """Return the next sessions in creation order; the position stands before each row."""
    columns = ", ".join(columns_of()["sessions"])
    rows = conn.execute(
        f"SELECT rowid, {columns} FROM sessions WHERE rowid > ? ORDER BY rowid LIMIT ?",
        (after, PAGE_ROWS),
    )
    with closing(rows):
        return bounded(rows)


@answers(queries.message_page)
def message_page(
    conn: Connection, after: int, through: int, session_id: str | None = None
) -> list[StoredRow]:
    """Return the next messages with ids in (*after*, *through*], of one session or of all."""
    columns = ", ".join(columns_of()["messages"])
    of_session = "" if session_id is None else "AND session_id = ?"
    # The sign keeps SQLite from walking all ids for the few of one session.
    order = "id" if session_id is None else "+id"
    given = (after, through) if session_id is None else (after, through, session_id)
    rows = conn.execute(
        f"SELECT {columns} FROM messages WHERE {order} > ? AND {order} <= ? {of_session}"
        f" ORDER BY {order} LIMIT ?",
        (*given, PAGE_ROWS),
    )
    with closing(rows):
        return bounded(rows)


def bounded(rows: Iterable[StoredRow]) -> list[StoredRow]:
    """Return the first rows, up to the one that exceeds :data:`PAGE_BYTES`."""
    page: list[StoredRow] = []
    size = 0
    for row in rows:
        page.append(row)
        size += size_of(row)
        if size > PAGE_BYTES:
            break
    return page


def size_of(row: StoredRow) -> int:
    """Return the approximate size of a row in bytes: its length in msgpack."""
    return len(_encode(row))  # quicker than a look at every column


@answers(queries.table_rows)
def table_rows(conn: Connection, table: str) -> list[StoredRow] | None:
    """Return all rows of a small table by key; ``None`` if the store has no such table."""
    if table == _ARCHIVED and features_of(conn).archived:
        # A newer file has a column for the mark, and no time of it.
        return conn.execute(
            "SELECT id, COALESCE(ended_at, started_at) FROM sessions"
            " WHERE COALESCE(archived, 0) != 0 ORDER BY id"
        ).fetchall()
    if not scalar(conn, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)):
        return None
    columns = columns_of()[table]
    return conn.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2").fetchall()


@answers(queries.indexed_count)
def indexed_count(conn: Connection) -> int | None:
    """Return the number of messages in the index of words; ``None`` without that index."""
    if not features_of(conn).words:
        return None
    # What is left of deleted messages does not count.
    sql = "SELECT COUNT(*) FROM messages_fts_docsize d JOIN messages m ON m.id = d.id"
    count: int = scalar(conn, sql)
    return count
