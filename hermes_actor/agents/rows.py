"""Rows: the few things that changes and questions ask of a connection, of any provider.

SQL is written once: ``@name`` is a table of the registry, ``"name"`` a column, ``:name`` a value.
What dialects spell differently has a method here.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar

from hermes_actor.agents.schema import SQLITE, Dialect
from hermes_actor.sqlite import Connection

__all__ = ["LARGEST_NUMBER", "SMALLEST_NUMBER", "FileRows", "Row", "Rows"]

Row = dict[str, Any]

LARGEST_NUMBER, SMALLEST_NUMBER = "1e15", "1e-15"
"""Numbers of documents that are added up are between these, in either direction."""

_TABLE = re.compile(r"@(\w+)")


@cache
def spelled(sql: str, prefix: str, quote: str) -> str:
    """Return *sql* with the names of tables and the quotation marks of a provider."""
    return _TABLE.sub(lambda found: prefix + found[1], sql).replace('"', quote)


class Rows(ABC):
    """A connection inside a transaction."""

    lock: ClassVar[str] = " FOR UPDATE"
    """The end of a select that keeps its rows from changing until the transaction ends."""
    skip_locked: ClassVar[str] = " FOR UPDATE SKIP LOCKED"
    quote: ClassVar[str] = '"'
    dialect: Dialect

    def spelled(self, sql: str) -> str:
        """Return *sql* as this provider takes it."""
        return spelled(sql, self.dialect.prefix, self.quote)

    @abstractmethod
    def all(self, sql: str, values: Row | None = None) -> list[Row]:
        """Return every row of a query; JSON as text."""

    @abstractmethod
    def run(self, sql: str, values: Row | None = None) -> int:
        """Run a statement and return how many rows it has met."""

    @abstractmethod
    def insert_numbered(self, sql: str, serial: str, values: Row) -> int:
        """Run an insert and return the number that the store gave to the column *serial*."""

    @abstractmethod
    def raise_serial(self, table: str, serial: str) -> None:
        """Continue the numbers of *table* after the highest that is there."""

    @abstractmethod
    def keep_from_growing(self, table: str) -> None:
        """Let no other transaction insert into *table* before this one ends, where that can be."""

    @abstractmethod
    def position(self, text: str, part: str) -> str:
        """Return the SQL of the place of *part* in *text*; 0 if it is not there."""

    @abstractmethod
    def size(self, column: str) -> str:
        """Return the SQL of the bytes that the text or document in *column* has."""

    @abstractmethod
    def list_has(self, column: str, value: str) -> str:
        """Return the SQL of: the JSON list in *column* holds the text :*value*, given as JSON."""

    @abstractmethod
    def texts(self, values: str) -> str:
        """Return the SQL of a table ``wanted`` of one column ``value``: the JSON list :*values*."""

    @abstractmethod
    def number_in(self, column: str, *path: str) -> str:
        """Return the SQL of the number at *path* in the JSON of *column*.

        It is 0 if there is none, and for one above ``LARGEST_NUMBER`` or too small to count: what
        one agent writes must not end a sum over all of them.
        """

    @abstractmethod
    def text_in(self, column: str, *path: str) -> str:
        """Return the SQL of the text at *path* in the JSON of *column*."""

    def one(self, sql: str, values: Row | None = None) -> Row | None:
        """Return the first row of a query, or ``None``."""
        found = self.all(sql, values)
        return found[0] if found else None

    def value(self, sql: str, values: Row | None = None) -> Any:
        """Return the first value of the first row, or ``None``."""
        found = self.one(sql, values)
        return next(iter(found.values())) if found else None


class FileRows(Rows):
    """A connection to a file: one writer, so nothing has to be locked."""

    lock = skip_locked = ""
    dialect = SQLITE

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def all(self, sql: str, values: Row | None = None) -> list[Row]:
        cursor = self._conn.execute(self.spelled(sql), values or {})
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def run(self, sql: str, values: Row | None = None) -> int:
        return self._conn.execute(self.spelled(sql), values or {}).rowcount

    def insert_numbered(self, sql: str, serial: str, values: Row) -> int:
        number = self._conn.execute(self.spelled(sql), values).lastrowid
        assert number is not None
        return number

    def raise_serial(self, table: str, serial: str) -> None:
        """Do nothing: a number that is inserted moves the sequence of AUTOINCREMENT."""

    def keep_from_growing(self, table: str) -> None:
        """Do nothing: there is one writer."""

    def position(self, text: str, part: str) -> str:
        return f"instr({text}, {part})"

    def size(self, column: str) -> str:
        return f"LENGTH(CAST({column} AS BLOB))"

    def list_has(self, column: str, value: str) -> str:
        return (
            f"EXISTS (SELECT 1 FROM json_each({column}) AS each"
            f" WHERE each.value = json_extract(:{value}, '$'))"
        )

    def texts(self, values: str) -> str:
        return f"json_each(:{values}) AS wanted"

    def number_in(self, column: str, *path: str) -> str:
        place = f"{column}, '$.{'.'.join(path)}'"
        return (
            f"CASE WHEN json_type({place}) IN ('integer', 'real')"
            f" AND ABS(CAST(json_extract({place}) AS REAL))"
            f" BETWEEN {SMALLEST_NUMBER} AND {LARGEST_NUMBER}"
            f" THEN CAST(json_extract({place}) AS REAL) ELSE 0 END"
        )

    def text_in(self, column: str, *path: str) -> str:
        return f"json_extract({column}, '$.{'.'.join(path)}')"
