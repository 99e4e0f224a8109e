"""apsw with the interface of ``sqlite3.Connection`` that the engine uses, errors included.

Only a virtual file system of apsw sees every write and every sync of SQLite, and the engine speaks
the standard module. Never used in a process that opens the same file with the standard module: two
copies of SQLite in one process lose each other's locks.
"""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any, NoReturn

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from hermes_actor.store.schema_features import SchemaFeatures

__all__ = ["ApswConnection", "ApswCursor"]

_OPERATIONAL = frozenset({
    apsw.SQLITE_ERROR, apsw.SQLITE_PERM, apsw.SQLITE_ABORT, apsw.SQLITE_BUSY, apsw.SQLITE_LOCKED,
    apsw.SQLITE_READONLY, apsw.SQLITE_INTERRUPT, apsw.SQLITE_IOERR, apsw.SQLITE_FULL,
    apsw.SQLITE_CANTOPEN, apsw.SQLITE_PROTOCOL, apsw.SQLITE_SCHEMA,
})  # fmt: skip

_CLASSES: dict[int, type[sqlite3.Error]] = {
    **dict.fromkeys(_OPERATIONAL, sqlite3.OperationalError),
    apsw.SQLITE_CONSTRAINT: sqlite3.IntegrityError,
    apsw.SQLITE_MISMATCH: sqlite3.IntegrityError,
    apsw.SQLITE_TOOBIG: sqlite3.DataError,
    apsw.SQLITE_MISUSE: sqlite3.InterfaceError,
    apsw.SQLITE_RANGE: sqlite3.InterfaceError,
}

_CHANGES = ("INSERT", "UPDATE", "DELETE", "REPLACE")


def _raise(error: apsw.Error) -> NoReturn:
    """The error that the standard module would have raised."""
    code = getattr(error, "extendedresult", 0) or getattr(error, "result", 0) or apsw.SQLITE_ERROR
    code &= 0xFFFF
    if code & 0xFF == apsw.SQLITE_NOMEM:
        raise MemoryError from error
    told = _CLASSES.get(code & 0xFF, sqlite3.DatabaseError)(str(error))
    told.sqlite_errorcode = code
    names = apsw.mapping_extended_result_codes if code > 0xFF else apsw.mapping_result_codes
    told.sqlite_errorname = str(names.get(code, "SQLITE_ERROR"))
    raise told from error


class ApswCursor:
    """A statement that has run to its end."""

    def __init__(self, connection: ApswConnection) -> None:
        self._connection = connection
        self._rows: Iterator[tuple[Any, ...]] = iter(())
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None

    def execute(self, sql: str, parameters: Any = ()) -> ApswCursor:
        base = self._connection.base
        cursor = base.cursor()

        def before(statement: apsw.Cursor, _sql: str, _bindings: Any) -> bool:
            self.description = tuple((c[0], *[None] * 6) for c in statement.get_description())
            return True

        cursor.exec_trace = before
        try:
            self._rows = iter(cursor.execute(sql, parameters).fetchall())
        except apsw.Error as error:
            _raise(error)
        finally:
            cursor.close(True)
        if sql.lstrip()[:8].upper().startswith(_CHANGES):
            self.rowcount = base.changes()
            self.lastrowid = base.last_insert_rowid()
        return self

    def executemany(self, sql: str, rows: Iterable[Any]) -> ApswCursor:
        count = 0
        for row in rows:
            count += self.execute(sql, row).rowcount
        self.rowcount = count
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows


class ApswConnection:
    """What :class:`hermes_actor.sqlite.Connection` is to the engine."""

    layout: SchemaFeatures | None = None
    layout_cookie: int = -1
    layout_checked: bool = False
    identity: tuple[int, ...] | None = None
    isolation_level: str | None = None
    text_factory: object = str
    """Of the standard module; here texts are texts."""

    def __init__(
        self, path: Path, vfs: str, *, read_only: bool = False, with_wal: bool = True
    ) -> None:
        """Without *with_wal* the file system is one on which WAL does not work."""
        self._with_wal = with_wal
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
        try:
            self.base = apsw.Connection(str(path), flags=flags, vfs=vfs, statementcachesize=256)
        except apsw.Error as error:
            _raise(error)

    def cursor(self) -> ApswCursor:
        return ApswCursor(self)

    def execute(self, sql: str, parameters: Any = ()) -> ApswCursor:
        if not self._with_wal and sql == "PRAGMA journal_mode=WAL":
            raise sqlite3.OperationalError("locking protocol")
        return ApswCursor(self).execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any]) -> ApswCursor:
        return ApswCursor(self).executemany(sql, rows)

    @property
    def in_transaction(self) -> bool:
        return self.base.in_transaction

    @property
    def total_changes(self) -> int:
        return self.base.total_changes()

    def create_function(self, name: str, narg: int, func: Callable[..., Any]) -> None:
        self.base.create_scalar_function(name, func, narg)

    def set_authorizer(self, authorizer: Callable[..., int] | None) -> None:
        self.base.authorizer = authorizer

    def set_progress_handler(self, handler: Callable[[], int] | None, steps: int) -> None:
        self.base.set_progress_handler(
            None if handler is None else lambda: bool(handler()), max(steps, 1)
        )

    def setlimit(self, category: int, limit: int) -> int:
        return self.base.limit(category, limit)

    def close(self) -> None:
        # What goes wrong while a file is closed is reported by apsw alone.
        with contextlib.suppress(apsw.Error):
            self.base.close()
