"""The schema of a store on a server: created and migrated on demand, by one process at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, insert, select, update

from hermes_actor.errors import IncompatibleFormat
from hermes_actor.providers.sql.tables import FORMAT, own_meta
from hermes_actor.providers.sql.word_column import IS_WORDLESS, fill_words

if TYPE_CHECKING:
    from hermes_actor.providers.sql.dialect import ServerDialect

__all__ = ["MIGRATIONS", "ensure_schema"]

MIGRATIONS: dict[int, Callable[[Connection, ServerDialect], None]] = {
    1: lambda conn, dialect: dialect.renew_words(conn),
}
"""Migrations of a store from format *n* to format *n* + 1."""

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
