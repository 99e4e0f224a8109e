"""``Connection`` and ``connect()``: the face of ``sqlite3``."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from functools import cache, partial
from typing import Any, Literal

from hermes_actor.dbapi import actor_port
from hermes_actor.dbapi.copies import in_use, replace_content
from hermes_actor.dbapi.cursor import Cursor, cursor_class
from hermes_actor.dbapi.errors import not_supported
from hermes_actor.dbapi.keywords import deprecates_keywords
from hermes_actor.dbapi.routed_connection import RoutedConnection
from hermes_actor.dbapi.target import owned_target
from hermes_actor.sqlite import sqlite3
from hermes_actor.system.fork import inside

__all__ = ["Connection", "connect"]

_Native = sqlite3.Connection
_ENABLE_TRIGGER = getattr(sqlite3, "SQLITE_DBCONFIG_ENABLE_TRIGGER", None)
_SWITCHES = {
    getattr(sqlite3, f"SQLITE_DBCONFIG_{switch}", None): pragma
    for switch, pragma in (
        ("ENABLE_FKEY", "foreign_keys"),
        ("TRUSTED_SCHEMA", "trusted_schema"),
        ("LEGACY_ALTER_TABLE", "legacy_alter_table"),
    )
}
"""Pragmas of the same effect as a switch of ``setconfig()``."""
_native_isolation_level: Any = vars(_Native)["isolation_level"]
_native_total_changes: Any = vars(_Native)["total_changes"]


def connect(
    database: Any,
    timeout: float = 5.0,
    detect_types: int = 0,
    isolation_level: str | None = "",
    check_same_thread: bool = True,
    factory: Any = None,
    cached_statements: int = 128,
    uri: bool = False,
    **more: Any,
) -> sqlite3.Connection:
    """Open *database* like ``sqlite3.connect``, with its parameters; writes go to an actor.

    The connection of a file is a :class:`Connection`. A database in memory, a temporary one, and a
    URI that asks for reading only are opened by the standard module. A file that does not exist is
    created, and a file without WAL is given one, by its actor, which is started for that; reading
    an existing WAL file starts none.

    Raises ``sqlite3.OperationalError`` if the file cannot be opened.
    """
    given = {
        "timeout": timeout,
        "detect_types": detect_types,
        "isolation_level": isolation_level,
        "check_same_thread": check_same_thread,
        "cached_statements": cached_statements,
        "uri": uri,
        **more,
    }
    is_class = isinstance(factory, type) and issubclass(factory, _Native)
    if owned_target(database, uri) is None or (factory is not None and not is_class):
        native: Callable[..., sqlite3.Connection] = sqlite3.connect
        return inside(native, database, **given, factory=factory or _Native)
    return _connection_class(factory or Connection)(database, **given)


@cache
def _connection_class(kind: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
    """Return *kind* with the methods of :class:`Connection`."""
    if issubclass(kind, Connection):
        return kind
    if kind is _Native:
        return Connection
    return type(kind.__name__, (kind, Connection), {"__module__": kind.__module__})


class Connection(RoutedConnection):
    """A ``sqlite3.Connection`` to a file that has an actor.

    Belongs to the process that has opened it: in a forked child every use raises
    ``ProgrammingError``, and closing it does nothing. Without ``close`` nothing is lost but the
    open transaction, which ends with the object.
    """

    def cursor(self, factory: Any = Cursor) -> Any:
        """Return a new cursor; a class of cursors gets the methods of :class:`Cursor`."""
        return super().cursor(cursor_class(factory))

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run one statement on a new cursor."""
        cursor: sqlite3.Cursor = self.cursor().execute(sql, parameters)
        return cursor

    def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        """Run one statement for each of *rows*, on a new cursor."""
        cursor: sqlite3.Cursor = self.cursor().executemany(sql, rows)
        return cursor

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        """Run all statements of *script*, on a new cursor."""
        cursor: sqlite3.Cursor = self.cursor().executescript(script)
        return cursor

    def commit(self) -> None:
        """End the transaction: return when its changes are committed and synced (G1)."""
        self._check_process()
        if self._target is None:
            super().commit()
            return
        with self._lock:
            if self._transaction is not None:
                self._check_usable()
                if self._ends_by_method():
                    self._end_writing(commit=True)
            inside(super().commit)
            self._note_end()

    def rollback(self) -> None:
        """Undo the transaction."""
        self._check_process()
        if self._target is None:
            super().rollback()
            return
        with self._lock:
            if self._transaction is not None:
                self._check_usable()
                if self._ends_by_method():
                    self._end_writing(commit=False)
            inside(super().rollback)
            self._note_end()

    def __exit__(self, kind: object, value: object, trace: object, /) -> Literal[False]:
        if kind is None:
            try:
                self.commit()
            except BaseException:
                self.rollback()
                raise
        else:
            self.rollback()
        return False

    def close(self) -> None:
        """Close; an open transaction is rolled back. In a forked child it does nothing."""
        if self._target is None:
            _Native.close(self)
            return
        if self._pid != os.getpid():
            if not self._pid:
                _Native.close(self)  # says that it was never initialised
            return
        with self._lock:
            super().close()
            transaction, self._transaction = self._transaction, None
            client, self._client = self._client, None
            if transaction is not None:
                transaction.rollback()
            if client is not None:
                client.release()

    def __del__(self) -> None:
        if self._client is not None and self._pid == os.getpid():
            actor_port.abandon(self._client)
            self._client = None
        super().__del__()

    @property
    def total_changes(self) -> int:
        """Rows that statements of this connection have changed, here and in the actor."""
        if self._target is not None:
            self._send_held()
        here: int = _native_total_changes.__get__(self)
        return here + self._remote_changes

    @property
    def isolation_level(self) -> Any:
        """As in ``sqlite3``: setting ``None`` commits."""
        return _native_isolation_level.__get__(self)

    @isolation_level.setter
    def isolation_level(self, level: Any) -> None:
        if level is None and self._transaction is not None:
            with self._lock:
                self._check_usable()
                self._end_writing(commit=True)
        _native_isolation_level.__set__(self, level)
        self._note_end()

    @isolation_level.deleter
    def isolation_level(self) -> None:
        _native_isolation_level.__delete__(self)

    def interrupt(self) -> None:
        """End the statement that runs, here or in the actor; call it in another thread.

        The statement raises ``OperationalError``: interrupted. In the actor only one of some
        length is asked: it may also come to its end.
        """
        self._check_process()
        super().interrupt()
        client, writing = self._client, None if self._writing is None else self._writing()
        if writing is not None:
            writing.interrupt()
        if client is not None:
            client.interrupt(self._under_way)

    @deprecates_keywords("name", "narg", "func")
    def create_function(self, name: str, narg: int, func: Any, **more: Any) -> None:
        """Add a function for statements that run here: reads outside of a write transaction."""
        super().create_function(name, narg, func, **more)
        self._note_function(name, func)

    @deprecates_keywords("name", "n_arg", "aggregate_class")
    def create_aggregate(self, name: str, n_arg: int, aggregate_class: Any) -> None:
        """Add an aggregate for statements that run here."""
        super().create_aggregate(name, n_arg, aggregate_class)
        self._note_function(name, aggregate_class)

    def create_window_function(self, name: str, num_params: int, aggregate_class: Any, /) -> None:
        """Add a window function for statements that run here."""
        super().create_window_function(name, num_params, aggregate_class)
        self._note_function(name, aggregate_class)

    def create_collation(self, name: str, callback: Any, /) -> None:
        """Add a collation for statements that run here."""
        super().create_collation(name, callback)
        self._note_function(name, callback)

    if hasattr(_Native, "setconfig"):  # Python 3.12

        def setconfig(self, op: int, enable: bool = True, /) -> None:
            """Set a switch of the connection; those for foreign keys, trusted schemas and the old
            ALTER TABLE hold for its writes, too. Triggers cannot be switched off."""
            if self._target is not None and op == _ENABLE_TRIGGER and not enable:
                self._check_usable()
                raise not_supported(
                    "triggers of a file with an actor cannot be switched off: the actor runs them"
                )
            native: Any = super()
            native.setconfig(op, enable)
            if (name := _SWITCHES.get(op)) is not None:
                self._settings = {**self._settings, name: int(enable)}

    @deprecates_keywords("authorizer_callback")
    def set_authorizer(self, authorizer_callback: Any) -> None:
        """Set the callback that allows or denies what statements do."""
        super().set_authorizer(authorizer_callback)
        self._private.authorizer = authorizer_callback

    @deprecates_keywords("trace_callback")
    def set_trace_callback(self, trace_callback: Any) -> None:
        """Set the callback that gets every statement that runs, here or in the actor."""
        super().set_trace_callback(trace_callback)
        self._private.trace = trace_callback

    def iterdump(self, *arguments: Any, **more: Any) -> Generator[str, None, None]:
        """Yield the SQL that makes a copy of the file, without the tables of its actor."""
        dump = super().iterdump(*arguments, **more)  # at once: an error is raised by the call
        own = ('INSERT INTO "hermes_actor_', "CREATE TABLE hermes_actor_")
        return (sql for sql in dump if not sql.startswith(own))

    def backup(self, target: sqlite3.Connection, **more: Any) -> None:
        """Copy the file into *target*; of a file with an actor, that replaces the content."""
        self._check_process()
        self._refuse_in_transaction("a backup")
        with self._lock:
            self._refresh()
            self._note_snapshot()
            if isinstance(target, Connection) and target is not self:
                self._check_usable()
                target._become_copy(partial(super().backup, **more))
            else:
                inside(super().backup, target, **more)

    def _become_copy(self, copy: Callable[[sqlite3.Connection], object]) -> None:
        """Have *copy* write the content of this database."""
        if self._target is None:
            inside(copy, self)
            return
        self._check_process()
        with self._lock:
            if self.in_transaction:  # raises if it is closed; any thread may copy into it
                raise in_use()
            self._port()  # the file has an owner, and if it is new, a kind
            replace_content(self._target.paths, lambda made: inside(copy, made))
            self._is_stale = self._is_schema_stale = True

    def blobopen(self, table: str, column: str, row: int, /, **more: Any) -> Any:
        """Open a blob for reading; ``readonly=True`` is required."""
        self._check_process()
        if self._target is not None and not more.get("readonly"):
            self._check_usable()
            raise not_supported(
                "blobs of a file with an actor cannot be opened for writing; pass readonly=True,"
                " and write the whole value with UPDATE"
            )
        self._refuse_in_transaction("a blob that is read in parts")
        with self._lock:
            self._refresh()
            self._note_snapshot()
            return super().blobopen(table, column, row, **more)

    def serialize(self, **more: Any) -> bytes:
        """Return the bytes of the database."""
        self._refuse_in_transaction("serialize()")
        with self._lock:
            self._refresh()
            self._note_snapshot()
            return inside(super().serialize, **more)

    def deserialize(self, data: Any, /, **more: Any) -> None:
        """Raise ``NotSupportedError``: it would exchange the file for memory."""
        if self._target is not None:
            self._check_usable()
            raise not_supported("deserialize() would replace a file that has an actor by memory")
        super().deserialize(data, **more)

    def _refuse_in_transaction(self, what: str) -> None:
        if self._transaction is not None:
            self._check_usable()
            raise not_supported(f"{what} inside a write transaction: the actor holds its changes")

    def _note_function(self, name: str, func: Any) -> None:
        if func is None:
            self._private.functions.discard(name.lower())
        else:
            self._private.functions.add(name.lower())
