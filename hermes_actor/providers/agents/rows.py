"""Rows of a server."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.engine import CursorResult

from hermes_actor.agents.rows import LARGEST_NUMBER, SMALLEST_NUMBER, Row, Rows
from hermes_actor.agents.schema import Dialect, mysql, postgresql
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.types import mysql_collation

__all__ = ["MySQLRows", "PostgreSQLRows", "rows_of"]


@cache
def _statement(sql: str) -> TextClause:
    return text(sql)


def _stored(value: Any) -> Any:
    """Return a value as a file has it: PostgreSQL gives JSON decoded."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value


class _ServerRows(Rows):
    def __init__(self, conn: ServerConnection, dialect: Dialect) -> None:
        self._conn, self.dialect = conn, dialect

    def _execute(self, sql: str, values: Row | None) -> CursorResult[Any]:
        return self._conn.execute(_statement(self.spelled(sql)), values or {})

    def all(self, sql: str, values: Row | None = None) -> list[Row]:
        found = self._execute(sql, values).mappings()
        return [{name: _stored(value) for name, value in row.items()} for row in found]

    def run(self, sql: str, values: Row | None = None) -> int:
        return self._execute(sql, values).rowcount


class PostgreSQLRows(_ServerRows):
    """Rows of PostgreSQL."""

    def keep_from_growing(self, table: str) -> None:
        self._execute(f"LOCK TABLE @{table} IN SHARE ROW EXCLUSIVE MODE", None)

    def insert_numbered(self, sql: str, serial: str, values: Row) -> int:
        return int(self._execute(f'{sql} RETURNING "{serial}"', values).scalar_one())

    def raise_serial(self, table: str, serial: str) -> None:
        name = self.dialect.prefix + table
        self._conn.execute(
            _statement(
                f"SELECT setval(pg_get_serial_sequence('{name}', '{serial}'),"
                f" (SELECT MAX({serial}) FROM {name}))"
            )
        )

    def position(self, text: str, part: str) -> str:
        return f"strpos({text}, {part})"

    def size(self, column: str) -> str:
        return f"OCTET_LENGTH(CAST({column} AS text))"

    def list_has(self, column: str, value: str) -> str:
        return f"{column} @> CAST(:{value} AS jsonb)"

    def texts(self, values: str) -> str:
        return f"jsonb_array_elements_text(CAST(:{values} AS jsonb)) AS wanted(value)"

    def number_in(self, column: str, *path: str) -> str:
        text = self.text_in(column, *path)
        return (
            f"CASE WHEN jsonb_typeof({column} #> '{{{','.join(path)}}}') = 'number' THEN"
            f" CASE WHEN ABS(CAST({text} AS numeric))"
            f" BETWEEN {SMALLEST_NUMBER} AND {LARGEST_NUMBER}"
            f" THEN CAST({text} AS double precision) ELSE 0 END ELSE 0 END"
        )

    def text_in(self, column: str, *path: str) -> str:
        return f"({column} #>> '{{{','.join(path)}}}')"


class MySQLRows(_ServerRows):
    """Rows of MariaDB and MySQL."""

    quote = "`"

    def insert_numbered(self, sql: str, serial: str, values: Row) -> int:
        return int(self._execute(sql, values).lastrowid)

    def raise_serial(self, table: str, serial: str) -> None:
        """Do nothing: a number that is inserted moves AUTO_INCREMENT."""

    def keep_from_growing(self, table: str) -> None:
        """Do nothing: a lock of a table would commit what was done before it."""

    def position(self, text: str, part: str) -> str:
        return f"INSTR({text}, {part})"

    def size(self, column: str) -> str:
        return f"OCTET_LENGTH({column})"

    def list_has(self, column: str, value: str) -> str:
        return f"JSON_CONTAINS({column}, :{value})"

    def texts(self, values: str) -> str:
        # With the collation of the columns it is compared with, or no index of theirs is used.
        kind = self.dialect.key.format(191)
        return f"JSON_TABLE(:{values}, '$[*]' COLUMNS (value {kind} PATH '$')) AS wanted"

    def number_in(self, column: str, *path: str) -> str:
        value = f"JSON_EXTRACT({column}, '$.{'.'.join(path)}')"
        number = f"CAST(JSON_UNQUOTE({value}) AS DOUBLE)"
        kinds = "'INTEGER', 'UNSIGNED INTEGER', 'DOUBLE', 'DECIMAL'"
        return (
            f"CASE WHEN JSON_TYPE({value}) IN ({kinds})"
            f" AND ABS({number}) BETWEEN {SMALLEST_NUMBER} AND {LARGEST_NUMBER}"
            f" THEN {number} ELSE 0 END"
        )

    def text_in(self, column: str, *path: str) -> str:
        return f"JSON_UNQUOTE(JSON_EXTRACT({column}, '$.{'.'.join(path)}'))"


def rows_of(conn: ServerConnection) -> Rows:
    """Return the rows of a connection, of its server's kind."""
    if conn.dialect.name == "postgresql":
        return PostgreSQLRows(conn, postgresql())
    return MySQLRows(conn, mysql(mysql_collation(conn.plain.dialect)))
