"""A store on a server as one side of a migration: stored rows, read and written unchanged.

Differences between servers are in ``postgresql.bulk`` and ``mysql.bulk``: the fastest way in, the
identity of the store, and search indexes that are taken away before a copy and built after it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from sqlalchemy import Connection, Select, Table, bindparam, delete, func, select, update

from hermes_actor.errors import BadValue
from hermes_actor.providers.sql import tables
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers, applies
from hermes_actor.providers.sql.sessions.deletion import remove
from hermes_actor.providers.sql.sessions.session_row import OF_SESSION
from hermes_actor.store import queries
from hermes_actor.store import raw_rows as file_raw_rows
from hermes_actor.store.raw_rows import StoredRow, StoreSummary
from hermes_actor.store.row_transfer import BOOKMARK, COPIED_TABLES, check_resume_token
from hermes_protocol.operations import RowsCopy
from hermes_protocol.values import Blob, from_value

if TYPE_CHECKING:
    from hermes_actor.providers.sql.database import Database
    from hermes_actor.providers.sql.dialect import ServerDialect

__all__ = ["build_search", "drop_search", "summary"]

_STREAMED_ROWS = 50
"""Rows that the driver holds at a time: each may have megabytes."""


class Bulk(Protocol):
    """Interface of a module for one kind of server."""

    def identity(self, conn: ServerConnection) -> str:
        """Return a text that names the store, the same whatever address led to it."""
        ...

    def insert(
        self, conn: ServerConnection, table: Table, columns: Sequence[str], rows: list[list[Any]]
    ) -> None:
        """Insert rows as they are, by the fastest way in. May change the lists of *rows*."""
        ...

    def last_id(self, conn: ServerConnection) -> int:
        """Return the highest message id ever assigned, as far as the server knows it."""
        ...

    def keep_last_id(self, conn: ServerConnection, last_id: int) -> None:
        """Have later messages get ids above *last_id*, in the transaction of *conn*."""
        ...

    def drop_search(self, conn: Connection) -> None:
        """Drop the search indexes of an empty store; the caller holds the schema lock."""
        ...

    def build_search(self, database: Database) -> None:
        """Build everything that searches need, without a time limit."""
        ...


def _bulk(dialect: ServerDialect) -> Bulk:
    module = f"hermes_actor.providers.sql.{dialect.name}.bulk"
    return cast("Bulk", importlib.import_module(module))


def _table(name: str) -> Table:
    if name not in COPIED_TABLES:
        raise BadValue(f"no table named {name!r} is ever copied")
    return tables.metadata.tables[name]


# --- reading ---------------------------------------------------------------------------------


@answers(queries.store_summary)
def facts(conn: ServerConnection) -> StoreSummary:
    """Return identity, counts, highest ids and bookmark of the store, all from one snapshot."""
    count, newest = conn.tuples(
        select(func.count(tables.messages.c.id), func.max(tables.messages.c.id))
    )[0]
    bulk = _bulk(conn.dialect)
    return StoreSummary(
        bulk.identity(conn),
        conn.scalar(select(func.count()).select_from(tables.sessions)),
        count,
        newest,
        max(bulk.last_id(conn), newest or 0),
        _bookmark(conn),
    )


def _bookmark(conn: ServerConnection) -> dict[str, str]:
    kept = select(tables.own_meta).where(tables.own_meta.c.key.like(f"{BOOKMARK}%"))
    return {key.removeprefix(BOOKMARK): value for key, value in conn.tuples(kept)}


@answers(queries.session_page)
def session_page(conn: ServerConnection, after: int) -> list[StoredRow]:
    """Return the next sessions in creation order; the position stands before each row."""
    place = tables.sessions.c.place
    wanted = select(place, *tables.SESSION_COLUMNS).where(place > after).order_by(place)
    return _bounded(conn, wanted)


@answers(queries.message_page)
def message_page(
    conn: ServerConnection, after: int, through: int, session_id: str | None = None
) -> list[StoredRow]:
    """Return the next messages with ids in (*after*, *through*], of one session or of all."""
    key = tables.messages.c.id
    wanted = select(*tables.MESSAGE_COLUMNS).where(key > after, key <= through).order_by(key)
    if session_id is not None:
        wanted = wanted.where(tables.messages.c.session_id == session_id)
    return _bounded(conn, wanted)


def _bounded(conn: ServerConnection, statement: Select[Any]) -> list[StoredRow]:
    with conn.stream(statement.limit(file_raw_rows.PAGE_ROWS), _STREAMED_ROWS) as rows:
        return file_raw_rows.bounded(tuple(row) for row in rows)


@answers(queries.table_rows)
def table_rows(conn: ServerConnection, table: str) -> list[StoredRow] | None:
    """Return all rows of a copied table by key. Raises :class:`BadValue` for any other table."""
    found = _table(table)
    return conn.tuples(select(found).order_by(*found.primary_key.columns))


@answers(queries.indexed_count)
def indexed_count(_conn: ServerConnection) -> None:
    """Return ``None``: an index of a server has no entries to count."""


# --- writing ---------------------------------------------------------------------------------


@applies(RowsCopy)
def copy_rows(conn: ServerConnection, op: RowsCopy) -> int:
    """Write one part of a migration with its bookmark; return the number of rows.

    Raises :class:`BadValue` for a table or column that is not copied, and :class:`ConstraintFailed`
    if the part does not follow the one before it.
    """
    table = _table(op.table)
    if op.expect:
        check_resume_token(op, _bookmark(conn))
    _make_room(conn, table, op)
    # A file knows the place of a session by this name.
    columns = ["place" if name == "rowid" else name for name in op.columns]
    unknown = [name for name in columns if name not in table.c]
    if unknown:
        raise BadValue(f"{op.table} has no column {unknown[0]!r}")
    # New lists, which may be changed; Blobs are rare, and this is done for every row.
    rows = [[*map(from_value, row)] if Blob in map(type, row) else [*row] for row in op.rows]
    bulk = _bulk(conn.dialect)
    if op.update and rows:
        key, *others = columns
        statement = update(table).where(table.c[key] == bindparam("of_key"))
        statement = statement.values({name: bindparam(f"new_{name}") for name in others})
        names = ["of_key", *(f"new_{name}" for name in others)]
        conn.execute(statement, [dict(zip(names, row, strict=True)) for row in rows])
    elif rows:
        bulk.insert(conn, table, columns, rows)
    if op.last_id:
        bulk.keep_last_id(conn, op.last_id)
    for name, value in op.bookmark.items():
        conn.dialect.upsert(conn, tables.own_meta, {"key": BOOKMARK + name, "value": value})
    return len(rows)


def _make_room(conn: ServerConnection, table: Table, op: RowsCopy) -> None:
    if op.clear:
        conn.execute(delete(table))
    for session_id in op.remove:
        if table is tables.sessions:
            remove(conn, session_id)
        else:
            conn.execute(delete(tables.messages).where(OF_SESSION), {"session": session_id})


# --- the store as a whole --------------------------------------------------------------------


def drop_search(database: Database) -> None:
    """Drop the search indexes of an empty store before it is filled; holds the schema lock."""
    with database.dialect.schema_lock(database.engine) as conn:
        _bulk(database.dialect).drop_search(conn)


def build_search(database: Database) -> None:
    """Build everything that searches need, however long it takes."""
    _bulk(database.dialect).build_search(database)


def summary(database: Database, timeout: float) -> StoreSummary | None:
    """Return a summary of the store without creating it; ``None`` if there is none yet."""

    def ask(conn: ServerConnection) -> StoreSummary | None:
        missing = not conn.dialect.has_table(conn.plain, tables.own_meta.name)
        return None if missing else facts(conn)

    return database.read(ask, (), timeout, False)
