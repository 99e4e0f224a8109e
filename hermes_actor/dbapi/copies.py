"""Copies of a database into a file that has an actor, which replaces its content."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor.dbapi.errors import as_sqlite3
from hermes_actor.sqlite import sqlite3
from hermes_actor.system.fork import inside

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["in_use", "replace_content"]


def in_use() -> sqlite3.OperationalError:
    """Return the error of a target that is inside a transaction, in SQLite's words."""
    error = sqlite3.OperationalError("destination database is in use")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_ERROR, "SQLITE_ERROR"
    return error


def replace_content(paths: StorePaths, copy: Callable[[sqlite3.Connection], object]) -> None:
    """Have the actor of *paths* replace the content of its file by what *copy* writes.

    *copy* gets a connection to an empty file in the side folder. The replacement is one
    transaction: whatever is raised before it, by *copy* too, has changed nothing.
    """
    # Few programs copy into a file; the others need not load what it takes.
    from hermes_actor.recovery.restore import kind_to_restore, prepared_copy
    from hermes_actor.recovery.scratch import scratch
    from hermes_actor.recovery.store_owner import run_maintenance

    with as_sqlite3(), scratch(paths) as file:
        with contextlib.closing(inside(sqlite3.connect, file, isolation_level=None)) as made:
            copy(made)
            if not made.execute("PRAGMA page_count").fetchone()[0]:
                made.execute("PRAGMA user_version = 0")  # nothing at all is no database
        kind = kind_to_restore(paths, file)
        with prepared_copy(paths, file, kind=kind) as ready:
            run_maintenance(paths, "restore", ready)
