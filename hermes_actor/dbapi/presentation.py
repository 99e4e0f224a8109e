"""Rows of the actor, given to the native cursor of the caller.

The cursor fetches them from a query on its own read-only connection that touches no table. So it
makes of them what it makes of any row: row and text factories, converters and descriptions are the
real ones.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hermes_actor.sqlite import sqlite3
from hermes_protocol.values import Blob, Value, from_value

if TYPE_CHECKING:
    from hermes_actor.dbapi.parameters import Bound

__all__ = ["Presenter", "ShownRows", "stored"]

_CELL, _IS_RAW = "hermes_actor_cell", "hermes_actor_is_raw"
_MOST_PARAMETERS = 100
"""Columns up to which a single row is bound as parameters; SQLite's own limit is far above."""


class ShownRows:
    """Rows that a cursor has not fetched yet. Lives as long as the cursor keeps it."""

    __slots__ = ("__weakref__", "rows")

    def __init__(self, rows: Sequence[Sequence[Value]]) -> None:
        self.rows = rows


class Presenter:
    """Shows rows on the cursors of one connection."""

    def __init__(self, *, detects_types: bool) -> None:
        """*detects_types*: converters are chosen by the declared types of columns."""
        self._detects_types = detects_types
        self._numbers = itertools.count(1)
        self._shown: weakref.WeakValueDictionary[int, ShownRows] = weakref.WeakValueDictionary()
        self._has_function = False

    def show(
        self,
        cursor: sqlite3.Cursor,
        query: tuple[str, Bound] | None,
        columns: Sequence[str],
        rows: Sequence[Sequence[Value]],
    ) -> ShownRows | None:
        """Make *cursor* return *rows*; the caller keeps what is returned until they are fetched.

        *query*: the statement that they answer, if it reads: declared types come with its text.
        """
        run = sqlite3.Cursor.execute
        names = ['AS "' + name.replace('"', '""') + '"' for name in columns]
        typed = self._typed_head(cursor, query, names) if query and self._detects_types else None
        parameters = stored(query[1]) if query and typed else ()
        most = cursor.connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        if typed is None and len(rows) == 1 and len(names) <= min(most, _MOST_PARAMETERS):
            cells = ["CAST(? AS TEXT)" if _is_raw(value) else "?" for value in rows[0]]
            head = ", ".join(f"{cell} {name}" for cell, name in zip(cells, names, strict=True))
            run(cursor, f"SELECT {head}", [from_value(value) for value in rows[0]])
            return None
        head = typed or f"SELECT {', '.join(f'NULL {name}' for name in names)} WHERE 0"
        if not rows:
            run(cursor, head, parameters)
            return None
        number, shown = next(self._numbers), ShownRows(rows)
        self._shown[number] = shown
        self._create_function(cursor.connection)
        cells = [f"{_CELL}({number}, i, {column})" for column in range(len(columns))]
        if any(_is_raw(value) for row in rows for value in row):
            # A function cannot return text that is not UTF-8, so it returns the bytes.
            cells = [
                f"iif({_IS_RAW}({number}, i, {column}), CAST({cell} AS TEXT), {cell})"
                for column, cell in enumerate(cells)
            ]
        run(
            cursor,
            f"{head} UNION ALL SELECT {', '.join(cells)} FROM (WITH RECURSIVE n(i) AS (SELECT 0"
            f" UNION ALL SELECT i + 1 FROM n WHERE i < {len(rows) - 1}) SELECT i FROM n)",
            parameters,
        )
        return shown

    def _typed_head(
        self, cursor: sqlite3.Cursor, query: tuple[str, Bound], names: list[str]
    ) -> str | None:
        """Return a query of the same columns without rows, if this connection can run it."""
        columns = [f"c{position}" for position in range(len(names))]
        shown = ", ".join(f"{column} {name}" for column, name in zip(columns, names, strict=True))
        sql = (
            f"WITH hermes_actor_query({', '.join(columns)}) AS ({query[0].strip().rstrip(';')}\n)"
            f" SELECT {shown} FROM hermes_actor_query WHERE 0"
        )
        try:
            sqlite3.Cursor.execute(cursor, sql, stored(query[1]))
        except sqlite3.Error:
            return None  # a table of the open transaction, or no query at all
        return sql

    def _create_function(self, connection: sqlite3.Connection) -> None:
        if not self._has_function:
            sqlite3.Connection.create_function(connection, _CELL, 3, self._cell)
            sqlite3.Connection.create_function(connection, _IS_RAW, 3, self._is_raw)
            self._has_function = True

    def _cell(self, number: int, row: int, column: int) -> Any:
        return from_value(self._shown[number].rows[row][column])

    def _is_raw(self, number: int, row: int, column: int) -> bool:
        return _is_raw(self._shown[number].rows[row][column])


def _is_raw(value: Value) -> bool:
    return isinstance(value, Blob) and value.text


def stored(bound: Bound) -> Any:
    """Return parameters in the form that SQLite binds."""
    if isinstance(bound, dict):
        return {name: from_value(value) for name, value in bound.items()}
    return [from_value(value) for value in bound]
