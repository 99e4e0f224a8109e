"""The cursor: a native one, whose statements may run in the actor."""

from __future__ import annotations

import itertools
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from hermes_actor.sqlite import sqlite3

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hermes_actor.dbapi.held_statements import Held
    from hermes_actor.dbapi.presentation import ShownRows
    from hermes_actor.dbapi.routed_connection import RoutedConnection

__all__ = ["Cursor", "buffer", "cursor_class"]

_native_rowcount: Any = vars(sqlite3.Cursor)["rowcount"]


class Cursor(sqlite3.Cursor):
    """A ``sqlite3.Cursor`` of a :class:`~hermes_actor.dbapi.Connection`."""

    # Counters of a statement that ran in the actor; ``None``: the native ones hold.
    _rowcount: int | None = None
    _lastrowid: int | None = None
    _shown: ShownRows | None = None
    _held: Held | None = None
    """Its statement, while that waits for the next request."""

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Run one statement, here or in the actor."""
        connection = self._owner()
        if connection is None:
            super().execute(sql, parameters)
        else:
            connection._execute(self, sql, parameters)
        return self

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Self:
        """Run one statement for each of *rows*."""
        connection = self._owner()
        if connection is None:
            super().executemany(sql, rows)
        else:
            connection._executemany(self, sql, rows)
        return self

    def executescript(self, script: str, /) -> Self:
        """Run all statements of *script*."""
        connection = self._owner()
        if connection is None:
            super().executescript(script)
        else:
            connection._executescript(self, script)
        return self

    @property
    def rowcount(self) -> int:
        """Rows that the last statement has changed; -1 for other statements."""
        self._send_held()
        if self._rowcount is not None:
            return self._rowcount
        count: int = _native_rowcount.__get__(self)
        return count

    @property
    def lastrowid(self) -> int | None:
        """The row id that the connection has inserted last, as of the last :meth:`execute`."""
        self._send_held()
        return self._lastrowid

    def _send_held(self) -> None:
        """Have the statement run now, if it waits: its result is asked for."""
        if self._held is not None and (connection := self._owner()) is not None:
            connection._send_held()

    def _owner(self) -> RoutedConnection | None:
        """Return the connection if writes of it may go to an actor."""
        try:
            connection: Any = self.connection
        except AttributeError:
            return None  # never initialised: the native method says so
        return connection if getattr(connection, "_target", None) is not None else None


class _Buffered(Cursor):
    """Adds to a class of cursors: the rows that are left have been taken from SQLite already, so
    that the cursor keeps no snapshot."""

    _rows: deque[Any]
    _error: Exception | None
    """Raised by the query behind the rows."""
    _class: type[Cursor]

    def fetchone(self) -> Any:
        """Return the next row, or ``None``."""
        return next(self, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return the next *size* rows, or as many as are left."""
        return list(itertools.islice(self, self.arraysize if size is None else size))

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        return list(self)

    def __next__(self) -> Any:
        if self._rows:
            return self._rows.popleft()
        error, self._error = self._error, None
        raise error or StopIteration

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        """Forget the rows, and run a statement."""
        return self._unbuffered().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Self:
        """Forget the rows, and run a statement for each of *rows*."""
        return self._unbuffered().executemany(sql, rows)

    def executescript(self, script: str, /) -> Self:
        """Forget the rows, and run a script."""
        return self._unbuffered().executescript(script)

    def close(self) -> None:
        """Forget the rows, and close."""
        self._unbuffered().close()

    def _unbuffered(self) -> Self:
        self._rows.clear()
        self._error = None
        self.__class__ = self._class  # type: ignore[assignment]
        return self


def buffer(cursor: Cursor) -> bool:
    """Take the rows that *cursor* has not returned yet. Returns False if there were none.

    A cursor steps ahead: it holds a snapshot exactly as long as it has a row to return. An error of
    the query is raised where the caller would have met it.
    """
    rows, error = deque[Any](), None
    try:
        while (row := sqlite3.Cursor.fetchone(cursor)) is not None:
            rows.append(row)
    except Exception as raised:  # of a function or factory of the program, too
        error = raised
    if not rows and error is None:
        return False
    kind = type(cursor)
    cursor.__class__ = _buffered_class(kind)
    assert isinstance(cursor, _Buffered)
    cursor._rows, cursor._error, cursor._class = rows, error, kind
    return True


@cache
def _buffered_class(kind: type[Cursor]) -> type[Cursor]:
    return type(kind.__name__, (_Buffered, kind), {"__module__": kind.__module__})


def cursor_class(factory: Any) -> Any:
    """Return what makes the cursors that *factory* makes, with the methods of :class:`Cursor`."""
    if isinstance(factory, type) and issubclass(factory, sqlite3.Cursor):
        return _cursor_class(factory)
    return factory


@cache
def _cursor_class(kind: type[sqlite3.Cursor]) -> type[Cursor]:
    if issubclass(kind, Cursor):
        return kind
    if kind is sqlite3.Cursor:
        return Cursor
    return type(kind.__name__, (kind, Cursor), {"__module__": kind.__module__})
