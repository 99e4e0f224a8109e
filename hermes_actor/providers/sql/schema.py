"""The schema of a store on a server: created and migrated on demand, by one process at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    bindparam,
    insert,
    literal_column,
    select,
    update,
)

from hermes_actor.errors import IncompatibleFormat
from hermes_actor.providers.sql.tables import (
    FORMAT,
    chats,
    messages,
    own_meta,
    routes,
    seen,
    transcripts,
    turn_waiters,
    turns,
)

if TYPE_CHECKING:
    from hermes_actor.providers.sql.dialect import ServerDialect

__all__ = ["IS_WORDLESS", "MIGRATIONS", "ensure_schema", "fill_words"]

MIGRATIONS: dict[int, Callable[[Connection, ServerDialect], None]] = {
    1: lambda conn, dialect: dialect.renew_words(conn),
    2: lambda conn, dialect: _create_missing(
        conn, dialect, routes, chats, seen, transcripts, turns
    ),
    3: lambda conn, dialect: _create_missing(conn, dialect, turn_waiters),
}
"""Migrations of a store from format *n* to format *n* + 1."""

IS_WORDLESS: ColumnElement[bool] = literal_column("messages.words").is_(None)

_FILLED_AT_ONCE = 500

_FORMAT_OF = select(own_meta.c.value).where(own_meta.c.key == "format")


def ensure_schema(engine: Engine, dialect: ServerDialect) -> None:
    """Create the tables that are missing, or bring them up to date.

    A store that is up to date costs one query. Otherwise one process at a time does the work; the
    others wait and find it done. Messages without words get them: those of a store of an older
    format, and those of a client of an older version that still writes to it.
    """
    if _format_now(engine, dialect) != FORMAT:
        with dialect.schema_lock(engine) as conn:
            _bring_up_to_date(conn, dialect)
    with engine.connect() as conn:
        dialect.prepare(conn)
        lacks_words = dialect.lacks_words(conn)
    if lacks_words:
        fill_words(engine, dialect, IS_WORDLESS)
    dialect.complete(engine)


def _format_now(engine: Engine, dialect: ServerDialect) -> int | None:
    with engine.connect() as conn:
        return _stored_format(conn, dialect)


def _stored_format(conn: Connection, dialect: ServerDialect) -> int | None:
    if not dialect.has_table(conn, own_meta.name):
        return None
    value = conn.execute(_FORMAT_OF).scalar()
    return None if value is None else int(value)


def _bring_up_to_date(conn: Connection, dialect: ServerDialect) -> None:
    stored = _stored_format(conn, dialect)
    if stored is None:
        dialect.create(conn)
        conn.execute(insert(own_meta).values(key="format", value=str(FORMAT)))
        return
    if stored > FORMAT:
        raise IncompatibleFormat(
            f"the store has format {stored}, and this program knows up to {FORMAT};"
            " update hermes-actor"
        )
    for number in range(stored, FORMAT):
        MIGRATIONS[number](conn, dialect)
        conn.execute(
            update(own_meta).where(own_meta.c.key == "format").values(value=str(number + 1))
        )


def _create_missing(conn: Connection, dialect: ServerDialect, *tables: Table) -> None:
    for table in tables:
        # MySQL commits each of them by itself, so a process that died here may have made some.
        if not dialect.has_table(conn, table.name):
            table.create(conn, checkfirst=False)


def fill_words(engine: Engine, dialect: ServerDialect, which: ColumnElement[bool]) -> None:
    """Write the words of the messages *which*, oldest first.

    In short transactions: writers go on meanwhile, and a process that dies is followed by one that
    goes on where it was, or writes the same once more.
    """
    columns = (messages.c.id, messages.c.content, messages.c.tool_name, messages.c.tool_calls)
    some = (
        select(*columns)
        .where(which, messages.c.id > bindparam("last"))
        .order_by(messages.c.id)
        .limit(_FILLED_AT_ONCE)
    )
    table = dialect.messages
    change = update(table).where(table.c.id == bindparam("row")).values(words=bindparam("text"))
    last = -(2**63)
    while True:
        with engine.begin() as conn:
            rows = conn.execute(some, {"last": last}).mappings().all()
            if not rows:
                return
            last = rows[-1]["id"]
            values = [dialect.message_values(dict(row)) for row in rows]
            conn.execute(change, [{"row": one["id"], "text": one["words"]} for one in values])
