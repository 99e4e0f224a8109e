"""Bulk copy into a store on PostgreSQL: COPY, and search indexes afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import psycopg
from sqlalchemy import Connection, Engine, Executable, Table, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from hermes_actor.errors import BadValue
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.postgresql import cjk_index
from hermes_actor.providers.sql.schema import IS_WORDLESS, fill_words
from hermes_actor.providers.sql.types import (
    StoredInteger,
    StoredReal,
    StoredText,
    encode_text,
)

if TYPE_CHECKING:
    from hermes_actor.providers.sql.database import Database
    from hermes_actor.providers.sql.postgresql.dialect import PostgreSQLDialect

__all__ = [
    "build_search", "drop_search", "identity", "insert", "keep_last_id", "last_id", "make_index",
]  # fmt: skip

_IDENTITY = text(
    "SELECT (SELECT system_identifier FROM pg_control_system()) || ' ' || current_database()"
    " || ' ' || current_schema()"
)
_MORE_MEMORY = text(
    "SELECT set_config('maintenance_work_mem', '256MB', true)"
    " WHERE pg_size_bytes(current_setting('maintenance_work_mem')) < pg_size_bytes('256MB')"
)
_NO_LIMIT = text("SELECT set_config('statement_timeout', '0', true)")
_SEQUENCE = "pg_get_serial_sequence('messages', 'id')"


def identity(conn: ServerConnection) -> str:
    """Return system identifier, database and schema: one text per store, whatever its address."""
    return f"postgresql {conn.scalar(_IDENTITY)}"


def insert(
    conn: ServerConnection, table: Table, columns: Sequence[str], rows: list[list[Any]]
) -> None:
    """Insert rows by COPY, in the transaction of *conn*; *rows* are converted in place.

    Binary, so nothing has to be escaped and parsed. Raises :class:`BadValue` for a value that
    PostgreSQL cannot keep.
    """
    kinds = [table.c[name].type for name in columns]
    places = [place for place, kind in enumerate(kinds) if isinstance(kind, StoredText)]
    numbers = _number_columns(kinds)
    names = ", ".join(f'"{name}"' for name in columns)
    dialect = conn.plain.dialect
    driver = cast("psycopg.Connection[Any]", conn.plain.connection.driver_connection)
    try:
        command = f"COPY {table.name} ({names}) FROM STDIN (FORMAT BINARY)"
        with driver.cursor() as cursor, cursor.copy(command) as to:
            to.set_types([_type_name(kind) for kind in kinds])
            for row in rows:
                for place in places:
                    if row[place] is not None:
                        row[place] = encode_text(row[place])
                for place, bind in numbers:
                    row[place] = bind(row[place], dialect)
                to.write_row(row)
        if "place" in columns:
            conn.scalar(text(_keep_sequence("sessions", "place")))
    except (OverflowError, UnicodeEncodeError) as error:
        raise BadValue(
            f"a row of {table.name} has a value that PostgreSQL cannot keep: {error}"
        ) from error
    except psycopg.Error as error:
        # As SQLAlchemy says it, so that it is judged like the error of any other statement.
        raise DBAPIError.instance(
            f"COPY {table.name}", None, error, psycopg.Error, hide_parameters=True
        ) from error


def _type_name(kind: Any) -> str:
    """Return PostgreSQL's name of a column's type; the binary format does not convert."""
    if isinstance(kind, StoredText):
        return "text"
    return "float8" if isinstance(kind, StoredReal) else "int8"


def _number_columns(kinds: list[Any]) -> list[tuple[int, Any]]:
    """Return the columns that convert values as those of SQLite do, each with its conversion."""
    return [
        (place, kind.process_bind_param)
        for place, kind in enumerate(kinds)
        if isinstance(kind, StoredInteger | StoredReal)
    ]


def last_id(conn: ServerConnection) -> int:
    """Return the last value of the sequence of message ids; 0 if it was never used."""
    found = conn.scalar(text(f"SELECT pg_sequence_last_value({_SEQUENCE}::regclass)"))
    return found or 0


def keep_last_id(conn: ServerConnection, last: int) -> None:
    """Have later messages get ids above *last*; the sequence is never set back."""
    conn.scalar(
        text(f"SELECT setval({_SEQUENCE}, greatest({_SEQUENCE_VALUE}, CAST(:last AS bigint)))"),
        {"last": last},
    )


_SEQUENCE_VALUE = f"COALESCE(pg_sequence_last_value({_SEQUENCE}::regclass), 1)"


def _keep_sequence(table: str, column: str) -> str:
    """Return the statement that sets a sequence to the highest value of its column."""
    return (
        f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'),"
        f" (SELECT greatest(max({column}), 1) FROM {table}))"
    )


def drop_search(conn: Connection) -> None:
    """Drop the search indexes: inserting a row then costs a fraction."""
    for index in ("hermes_actor_messages_words", "hermes_actor_messages_parts", cjk_index.INDEX):
        conn.execute(text(f"DROP INDEX IF EXISTS {index}"))


def build_search(database: Database) -> None:
    """Fill in the words of copied rows, then build the indexes, side by side if possible."""
    dialect, engine = cast("PostgreSQLDialect", database.dialect), database.engine
    fill_words(engine, dialect, IS_WORDLESS)
    with ThreadPoolExecutor(1) as beside:
        with dialect.schema_lock(engine) as conn:
            longest, *others = dialect.search_indexes(conn)
            made = beside.submit(_make_indexes, engine, others)
            make_index(conn, longest)
        # Committed before we wait: the other may queue behind a session that waits for our lock.
        try:
            made.result()
        except (PoolTimeout, OperationalError):  # there is no second connection
            _make_indexes(engine, others)
    with engine.begin() as conn:
        conn.execute(_NO_LIMIT)
        conn.execute(text("ANALYZE messages, sessions"))


def _make_indexes(engine: Engine, indexes: list[Executable]) -> None:
    with engine.begin() as conn:
        for index in indexes:
            make_index(conn, index)


def make_index(conn: Connection, index: Executable) -> None:
    """Execute a statement that builds an index, however long it takes."""
    conn.execute(_NO_LIMIT)
    # One of trigrams is built several times as fast when its entries fit.
    conn.execute(_MORE_MEMORY)
    conn.execute(index)
