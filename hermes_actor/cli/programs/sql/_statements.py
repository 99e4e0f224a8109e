"""One statement: run, its rows printed, and explained if it fails."""

from __future__ import annotations

import contextlib

from hermes_actor.cli.programs.sql._rows import print_rows
from hermes_actor.paths import StorePaths
from hermes_actor.sqlite import primary_code, sqlite3

__all__ = ["explain", "run_statement"]

_LOOK_INSTRUCTIONS = 100_000
"""Some milliseconds between two looks for Ctrl-C."""


def run_statement(
    conn: sqlite3.Connection, statement: str, parameters: tuple[str, ...], form: str
) -> int:
    """Run one statement and print its rows. Returns the number of rows, or of changed ones.

    Raises the error of SQLite. Ctrl-C interrupts a statement that takes long.
    """
    # A signal is only seen between two instructions of Python: without this, Ctrl-C would wait for
    # the end of the statement.
    conn.set_progress_handler(lambda: 0, _LOOK_INSTRUCTIONS)
    try:
        with contextlib.closing(conn.execute(statement, parameters)) as cursor:
            if cursor.description is None:
                return cursor.rowcount
            return print_rows([column[0] for column in cursor.description], cursor, form)
    except sqlite3.OperationalError as error:
        # SQLite has taken the KeyboardInterrupt of the handler for its own.
        if primary_code(error) == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from None
        raise
    finally:
        conn.set_progress_handler(None, 0)


def explain(error: sqlite3.Error, paths: StorePaths, *, write: bool) -> str:
    """Return an error of a statement with what to do about it."""
    if primary_code(error) == sqlite3.SQLITE_READONLY and not write:
        return f"{paths.db} was opened read-only; to change it, add --write"
    return str(error)
