"""The databases of a home that are attached: those that its programs keep, not their copies."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hermes_actor.attach.boot import is_store
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import StorePaths, resolve_paths
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.store.inspection import recorded_format

__all__ = ["databases_of", "has_own_tables"]

_HEADER = b"SQLite format 3\0"


def databases_of(home: Path) -> list[StorePaths]:
    """Return the databases of *home* and its profiles that exist, by their paths.

    Links are not followed: another home may be behind one.
    """
    found = []
    for folder, subfolders, files in os.walk(home):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(files):
            path = Path(folder, name)
            if is_store(path, [str(home)]) and _is_database(path):
                found.append(resolve_paths(path))
    return found


def _is_database(path: Path) -> bool:
    """Return True for a regular file that begins as a database does."""
    # Only its header is read, and not by a process that has locks on the file.
    try:
        if not path.is_file():  # a pipe would block
            return False
        with path.open("rb") as file:
            return file.read(len(_HEADER)) == _HEADER
    except OSError:
        return False


def has_own_tables(paths: StorePaths) -> bool:
    """Return True if an owner has added its tables to the file."""
    try:
        with contextlib.closing(connect_reader(paths.db)) as conn:
            return recorded_format(conn) > 0
    except (sqlite3.Error, HermesActorError):
        return False
