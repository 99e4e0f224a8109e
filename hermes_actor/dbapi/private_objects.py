"""Objects that only the connection of the caller has: temporary tables, attached files, functions.

The actor does not know them. A statement that uses nothing else runs here, in a write transaction
too; one that mixes them with a write to the file is refused, because the actor would take another
object of the same name, or none.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hermes_actor.dbapi.errors import not_supported
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import primary_code, read_only_uri, sqlite3

__all__ = ["PrivateObjects", "ask", "explain"]

_Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]

_MISSING = re.compile(r"(?:no such|unknown) (table|function|collation sequence|database):? (\S+)")
_TEMPORARY_NAMES = "SELECT name FROM sqlite_temp_master"

_TEMPORARY_SCHEMA = frozenset({"sqlite_temp_master", "sqlite_temp_schema"})


class PrivateObjects:
    """Knows what a connection has of its own, and the callbacks that the program has set."""

    def __init__(self) -> None:
        self.authorizer: _Authorizer | None = None
        self.trace: Callable[[str], object] | None = None
        self.functions: set[str] = set()
        self.has_tables = False
        """Temporary objects, or attached databases."""

    @property
    def exist(self) -> bool:
        """True if statements have to be looked at."""
        return self.has_tables or bool(self.functions)

    def authorize(self, connection: sqlite3.Connection, sql: str, parameters: Any) -> None:
        """Ask the authorizer of the program about a statement that runs in the actor.

        Raises ``DatabaseError`` if it denies it. Something that the open transaction has made is
        not known here, so it is not asked about.
        """
        if self.authorizer is None:
            return
        try:
            explain(connection, sql, parameters)
        except sqlite3.Error as error:
            if primary_code(error) == sqlite3.SQLITE_AUTH:
                raise

    def confine_attached(self, connection: sqlite3.Connection) -> None:
        """Attach files that have an actor again, for reading only: their actors alone write."""
        with self.quiet(connection):
            files = {name: file for _, name, file in ask(connection, "PRAGMA database_list")}
            main = files.pop("main", "")
            files.pop("temp", None)
            for name, file in files.items():
                if file and (file == main or resolve_paths(Path(file)).folder.is_dir()):
                    ask(connection, "DETACH ?", (name,))
                    ask(connection, "ATTACH ? AS ?", (read_only_uri(file), name))

    def look_for_tables(self, connection: sqlite3.Connection) -> None:
        """Note whether there are temporary objects or attached databases."""
        with self.quiet(connection):
            self.has_tables = bool(
                ask(
                    connection,
                    "SELECT 1 FROM sqlite_temp_master UNION ALL SELECT 1 FROM"
                    " pragma_database_list WHERE name NOT IN ('main', 'temp') LIMIT 1",
                )
            )

    @contextlib.contextmanager
    def quiet(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Run statements of our own in the block, which callbacks of the program do not see."""
        native = sqlite3.Connection
        if self.authorizer is not None:
            native.set_authorizer(connection, None)
        if self.trace is not None:
            native.set_trace_callback(connection, None)
        try:
            yield
        finally:
            if self.authorizer is not None:
                native.set_authorizer(connection, self.authorizer)
            if self.trace is not None:
                native.set_trace_callback(connection, self.trace)

    def run_without_file(self, cursor: sqlite3.Cursor, sql: str, parameters: Any) -> bool:
        """Run a statement here if it uses nothing of the file. Returns False if it does."""
        connection = cursor.connection
        own = self._names(connection) | _TEMPORARY_SCHEMA

        def deny_file(
            action: int, first: str | None, second: str | None, db: str | None, inner: str | None
        ) -> int:
            # The temporary schema has no database name while it is looked up, and neither has a
            # table of which no column is read, as for count(*).
            unnamed = (
                action == sqlite3.SQLITE_READ and db is None and (first or "").lower() not in own
            )
            if action == sqlite3.SQLITE_PRAGMA and db is None:
                # One about a name is about an object of that name, any other about the file.
                unnamed = (second or "").lower() not in own
            if db == "main" or unnamed:
                return sqlite3.SQLITE_DENY
            if self.authorizer is None:
                return sqlite3.SQLITE_OK
            return self.authorizer(action, first, second, db, inner)

        sqlite3.Connection.set_authorizer(connection, deny_file)
        try:
            sqlite3.Cursor.execute(cursor, sql, parameters)
        except sqlite3.Error:
            return False  # the actor says what is wrong with it, if anything is
        finally:
            sqlite3.Connection.set_authorizer(connection, self.authorizer)
        return True

    def _names(self, connection: sqlite3.Connection) -> set[str]:
        """Return the names of temporary objects, and of those of attached databases."""
        with self.quiet(connection):
            schemas = [name for _, name, _ in ask(connection, "PRAGMA database_list")]
            names = ask(connection, _TEMPORARY_NAMES)
            for schema in set(schemas) - {"main", "temp"}:
                quoted = schema.replace('"', '""')
                names += ask(connection, f'SELECT name FROM "{quoted}".sqlite_master')
        return {name.lower() for (name,) in names}

    def refuse_mixture(self, connection: sqlite3.Connection, sql: str, parameters: Any) -> None:
        """Raise ``NotSupportedError`` if *sql*, which writes to the file, uses private objects."""
        databases: set[str] = set()
        functions: set[str] = set()

        def note(
            action: int, _first: str | None, second: str | None, db: str | None, _inner: str | None
        ) -> int:
            if action == sqlite3.SQLITE_FUNCTION:
                functions.add((second or "").lower())
            elif db is not None:
                databases.add(db.lower())
            return sqlite3.SQLITE_OK

        with self.quiet(connection):
            sqlite3.Connection.set_authorizer(connection, note)
            try:
                explain(connection, sql, parameters)
            except sqlite3.Error:
                # Something of the open transaction, which only the actor knows. The text says what
                # else it may use; a table of the file may have the same name.
                mentioned = {word.lower() for word in re.findall(r"\w+", sql)}
                functions, databases = mentioned, mentioned & self._names(connection)
            finally:
                sqlite3.Connection.set_authorizer(connection, None)
        used = functions & self.functions
        if used:
            raise _function_in_write(min(used))
        if databases - {"main"}:
            raise _tables_in_write()

    def explained(self, error: Exception) -> Exception:
        """Return *error* of the actor, or the reason if it misses an object of this connection."""
        if str(error) == "not authorized to use function: total_changes":
            return not_supported(
                "total_changes() in a statement that writes, or in a trigger, would count the"
                " changes of all programs: read it first, or use Connection.total_changes"
            )
        missing = _MISSING.match(str(error))  # the words of SQLite, which has one code for all
        if missing is None:
            return error
        if missing[1] in ("table", "database") and self.has_tables:
            return _tables_in_write()
        if missing[1] not in ("table", "database") and missing[2].lower() in self.functions:
            return _function_in_write(missing[2])
        return error


def _function_in_write(name: str) -> sqlite3.NotSupportedError:
    return not_supported(
        f"the function or collation {name} of this connection cannot run inside a write"
        " transaction: the actor of the file makes the change, in another process; compute the"
        " value first"
    )


def _tables_in_write() -> sqlite3.NotSupportedError:
    return not_supported(
        "a write to the file cannot use temporary objects or attached databases: the actor of the"
        " file makes the change and does not have them; read the rows first"
    )


def ask(connection: sqlite3.Connection, sql: str, parameters: Any = ()) -> list[Any]:
    """Return the rows of a query of our own, as tuples, whatever the factories of *connection*."""
    cursor = sqlite3.Cursor(connection)
    cursor.row_factory = None
    return cursor.execute(sql, parameters).fetchall()


_times = itertools.count()


def explain(connection: sqlite3.Connection, sql: str, parameters: Any) -> list[Any]:
    """Return SQLite's program for *sql*, as rows. It is compiled now, under another text each time.

    SQLite lists a program without a look at the schema, and one that was compiled under an earlier
    schema from memory that it has released: the process may end. The connection keeps compiled
    statements by their text.
    """
    return ask(connection, f"EXPLAIN /* {next(_times)} */ {sql}", parameters)
