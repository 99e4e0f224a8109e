"""Filling a store on PostgreSQL quickly: COPY, and search indexes afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from hermes_actor.providers.server.connection import ServerConnection
from hermes_actor.providers.server.values import StoredText, encode_text

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

    from hermes_actor.providers.server.dialect import ServerDialect
    from hermes_actor.providers.server.postgres import PostgresDialect

__all__ = ["build_search", "drop_search", "identity", "insert", "keep_last_id", "last_id"]

_CHUNK_CHARACTERS = 1 << 18
"""Text that is given to the driver at once."""

_IDENTITY = text(
    "SELECT (SELECT system_identifier FROM pg_control_system()) || ' ' || current_database()"
    " || ' ' || current_schema()"
)
_MORE_MEMORY = text(
    "SELECT set_config('maintenance_work_mem', '256MB', true)"
    " WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < pg_size_bytes('256MB')"
)
_SEQUENCE = "pg_get_serial_sequence('messages', 'id')"


def identity(conn: ServerConnection) -> str:
    return f"postgresql {conn.scalar(_IDENTITY)}"


def insert(
    conn: ServerConnection, table: Table, columns: Sequence[str], rows: list[list[Any]]
) -> None:
    """Rows by COPY, in the transaction of *conn*."""
    converters = [_converter(table, name, conn) for name in columns]
    names = ", ".join(f'"{name}"' for name in columns)
    driver = cast("psycopg.Connection[Any]", conn.plain.connection.driver_connection)
    try:
        command = f"COPY {table.name} ({names}) FROM STDIN"
        with driver.cursor() as cursor, cursor.copy(command) as to:
            lines: list[str] = []
            size = 0
            for row in rows:
                line = "\t".join([f(v) for f, v in zip(converters, row, strict=True)]) + "\n"
                lines.append(line)
                size += len(line)
                if size > _CHUNK_CHARACTERS:
                    to.write("".join(lines))
                    lines, size = [], 0
            to.write("".join(lines))
        if "place" in columns:
            conn.scalar(text(_keep_sequence("sessions", "place")))
    except psycopg.Error as error:
        # As SQLAlchemy says it, so that it is judged like the error of any other statement.
        raise DBAPIError.instance(
            f"COPY {table.name}", None, error, psycopg.Error, hide_parameters=True
        ) from error


def _converter(table: Table, name: str, conn: ServerConnection) -> Any:
    """What makes a value a field of a line of COPY."""
    kind: Any = table.c[name].type
    bind = getattr(kind, "process_bind_param", None)
    dialect = conn.plain.dialect

    def number(value: Any) -> str:
        kept = value if bind is None else bind(value, dialect)
        return "\\N" if kept is None else repr(kept)

    def words(value: Any) -> str:
        if value is None:
            return "\\N"
        return _escaped(encode_text(value) or "")

    return words if isinstance(kind, StoredText) else number


_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def _escaped(value: str) -> str:
    # The backslash first: the others bring new ones.
    for character, written in _ESCAPES.items():
        if character in value:
            value = value.replace(character, written)
    return value


def last_id(conn: ServerConnection) -> int:
    found = conn.scalar(text(f"SELECT pg_sequence_last_value({_SEQUENCE}::regclass)"))
    return found or 0


def keep_last_id(conn: ServerConnection, last: int) -> None:
    conn.scalar(
        text(f"SELECT setval({_SEQUENCE}, greatest({_SEQUENCE_VALUE}, CAST(:last AS bigint)))"),
        {"last": last},
    )


_SEQUENCE_VALUE = f"COALESCE(pg_sequence_last_value({_SEQUENCE}::regclass), 1)"


def _keep_sequence(table: str, column: str) -> str:
    """The next number is above all that are there."""
    return (
        f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'),"
        f" (SELECT greatest(max({column}), 1) FROM {table}))"
    )


def drop_search(conn: Connection) -> None:
    """Without the generated column and the two indexes a row costs a fraction."""
    conn.execute(text("ALTER TABLE messages DROP COLUMN IF EXISTS words"))
    conn.execute(text("DROP INDEX IF EXISTS hermes_actor_messages_parts"))


def build_search(conn: Connection, dialect: ServerDialect) -> None:
    conn.execute(text("SELECT set_config('statement_timeout', '0', true)"))
    # An index of trigrams is built several times as fast when its entries fit.
    conn.execute(_MORE_MEMORY)
    cast("PostgresDialect", dialect).make_search(conn)
    conn.execute(text("ANALYZE messages, sessions"))
