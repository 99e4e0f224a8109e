"""``SessionDB._conn``: has the interface of a connection, and never is the write connection.

A SELECT runs on a reader; a statement that writes is one transaction of the writer; ``commit()``
is harmless, as it is on any autocommit connection. Inside ``_execute_write`` the same class
works on a lease, where all statements share one transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Self

from hermes_actor.errors import NotAllowed, ReadOnly
from hermes_actor.sqlite import split_script, sqlite3
from hermes_actor.store.guest_sql import first_word
from hermes_protocol.operations import SqlResult, SqlStatement
from hermes_protocol.values import from_value, to_value

__all__ = ["ConnectionShim", "CursorShim", "NamedRow", "statement"]

Parameters = Sequence[Any] | Mapping[str, Any]


class NamedRow(tuple[Any, ...]):  # noqa: SLOT001 - a tuple with slots cannot carry names
    """A row of the writer: by position, by name, and as a mapping, like ``sqlite3.Row``."""

    _names: tuple[str, ...]

    def __new__(cls, names: Sequence[str], values: Iterable[Any]) -> Self:
        row = super().__new__(cls, values)
        row._names = tuple(names)
        return row

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            for position, name in enumerate(self._names):
                if name.lower() == key.lower():
                    return super().__getitem__(position)
            raise IndexError(f"no column named {key!r}")
        return super().__getitem__(key)

    def keys(self) -> list[str]:
        """Return the names of the columns, like ``sqlite3.Row.keys``."""
        return list(self._names)


def statement(sql: str, parameters: Parameters = ()) -> SqlStatement:
    """Convert a statement of a caller, with its parameters, to its wire form."""
    if isinstance(parameters, Mapping):
        named = {key: to_value(value) for key, value in parameters.items()}
        return SqlStatement(sql=sql, named=named)
    return SqlStatement(sql=sql, parameters=[to_value(value) for value in parameters])


class CursorShim:
    """The finished result of one statement."""

    arraysize = 1

    def __init__(self, connection: ConnectionShim) -> None:
        self.connection = connection
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self._rows: Iterator[Any] = iter(())

    def execute(self, sql: str, parameters: Parameters = ()) -> CursorShim:
        """Run one statement, committed on return outside of a lease; return this cursor.

        Raises :class:`NotAllowed` for a PRAGMA that is not open to callers, and the errors of the
        writer or reader.
        """
        self.connection._run(self, sql, parameters)
        return self

    def executemany(self, sql: str, rows: Iterable[Parameters]) -> CursorShim:
        """Run a statement once per row, all in one transaction; ``rowcount`` is the sum."""
        total = 0

        def every_row(face: ConnectionShim) -> None:
            nonlocal total
            for row in rows:
                total += max(face.execute(sql, row).rowcount, 0)

        self.connection._atomically(every_row)
        self.rowcount = total
        return self

    def executescript(self, script: str) -> CursorShim:
        """Run all statements of a script in one transaction."""

        def every_statement(face: ConnectionShim) -> None:
            for part in split_script(script):
                face.execute(part)

        self.connection._atomically(every_statement)
        return self

    def fetchone(self) -> Any:
        """Return the next row; ``None`` if there is none left."""
        return next(self._rows, None)

    def fetchmany(self, size: int = 1) -> list[Any]:
        """Return the next *size* rows, or as many as are left."""
        return list(islice(self._rows, size))

    def fetchall(self) -> list[Any]:
        """Return all rows that are left."""
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def close(self) -> None:
        """Drop the rows that are left. The cursor can be used again."""
        self._rows = iter(())

    def _take(self, description: Any, rows: Sequence[Any], rowcount: int = -1) -> None:
        self.description = description
        self.rowcount = rowcount
        self._rows = iter(rows)

    def _take_result(self, result: SqlResult) -> None:
        names = result.columns
        description = tuple((name, *[None] * 6) for name in names) or None
        rows = [NamedRow(names, map(from_value, row)) for row in result.rows]
        self._take(description, rows, result.rowcount)
        self.lastrowid = result.lastrowid


class ConnectionShim:
    """A connection interface over two functions: one that reads, one that writes.

    *read* is ``None`` inside a lease: there every statement goes to the transaction.
    """

    row_factory = sqlite3.Row
    isolation_level = None
    in_transaction = False

    def __init__(
        self,
        read: Callable[[str, Parameters], tuple[Any, list[Any]]] | None,
        write: Callable[[SqlStatement], SqlResult],
        atomically: Callable[[Callable[[ConnectionShim], None]], None] | None,
    ) -> None:
        self._read = read
        self._write = write
        self._atomic = atomically

    def cursor(self) -> CursorShim:
        """Return a new cursor of this connection."""
        return CursorShim(self)

    def execute(self, sql: str, parameters: Parameters = ()) -> CursorShim:
        """Run one statement on a new cursor: see :meth:`CursorShim.execute`."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Parameters]) -> CursorShim:
        """Run a statement once per row, all in one transaction, on a new cursor."""
        return self.cursor().executemany(sql, rows)

    def executescript(self, script: str) -> CursorShim:
        """Run all statements of a script in one transaction, on a new cursor."""
        return self.cursor().executescript(script)

    def commit(self) -> None:
        """Do nothing: a statement is committed when it returns, or with its lease."""

    def rollback(self) -> None:
        """Do nothing: nothing is pending, and an exception undoes a lease."""

    def close(self) -> None:
        """Raise :class:`NotAllowed`: the SessionDB owns what is behind it."""
        raise NotAllowed("close the SessionDB instead")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def _run(self, cursor: CursorShim, sql: str, parameters: Parameters) -> None:
        word = first_word(sql)
        if self._read is not None and word in _READS:
            if word == "PRAGMA":
                _check_pragma(sql)
            try:
                cursor._take(*self._read(sql, parameters))
                return
            except ReadOnly:
                # WITH can begin either kind; a read-only connection knows which one it was.
                pass
        cursor._take_result(self._write(statement(sql, parameters)))

    def _atomically(self, work: Callable[[ConnectionShim], None]) -> None:
        if self._atomic is None:
            work(self)
        else:
            self._atomic(work)


_READS = frozenset({"SELECT", "WITH", "VALUES", "EXPLAIN", "PRAGMA"})

_PRAGMAS = frozenset({
    "application_id", "busy_timeout", "cache_size", "collation_list", "compile_options",
    "data_version", "database_list", "encoding", "foreign_key_check", "foreign_key_list",
    "foreign_keys", "freelist_count", "function_list", "index_info", "index_list", "index_xinfo",
    "integrity_check", "journal_mode", "journal_size_limit", "module_list", "page_count",
    "page_size", "pragma_list", "quick_check", "recursive_triggers", "schema_version",
    "synchronous", "table_info", "table_list", "table_xinfo", "user_version", "wal_autocheckpoint",
})  # fmt: skip

_WITH_ARGUMENT = frozenset({
    "foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo",
    "integrity_check", "quick_check", "table_info", "table_list", "table_xinfo",
})  # fmt: skip

_PRAGMA = re.compile(r"PRAGMA\s+(?:\w+\s*\.\s*)?(\w+)\s*(=|\()?", re.IGNORECASE)


def _check_pragma(sql: str) -> None:
    """Let reading pragmas through. A setting would stick to one pooled reader, or be lost."""
    match = _PRAGMA.search(sql)
    name, argument = (match.group(1).lower(), match.group(2)) if match else ("", None)
    if name not in _PRAGMAS or (argument and not (argument == "(" and name in _WITH_ARGUMENT)):
        raise NotAllowed(f"PRAGMA {name} is not open to callers of _conn")
