"""Which file a command works on: the one that is named, else the one of the home."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import NoReturn

from hermes_actor.cli.errors import fail
from hermes_actor.paths import StorePaths, default_db_path, resolve_paths
from hermes_actor.sqlite import Connection, connect_reader, sqlite3

__all__ = [
    "check_content",
    "check_file",
    "file_for",
    "new_store_for",
    "no_store",
    "place_for",
    "store_for",
]

_EVERY_VERSION = {
    "sessions": frozenset({"id", "source", "model_config", "started_at", "ended_at", "end_reason"}),
    "messages": frozenset({"id", "session_id", "role", "content", "tool_calls", "timestamp"}),
}
"""By these columns a store of any version is told from the database of another program."""


def file_for(db: Path | None) -> Path:
    """*db*, else the file that ``sessiondb.dsn`` names, else ``HERMES_HOME/state.db``.

    Refuses for a home whose sessions are on a server: the file beside its settings is at best what
    they were before they moved.
    """
    if db is not None:
        return db
    file = default_db_path()
    if not (file.parent / "config.yaml").exists():
        return file
    from hermes_actor.providers.resolve import choose_by_settings

    chosen = choose_by_settings(file.parent)
    if chosen is None:
        return file
    if chosen.file is None:
        fail(
            f"the sessions of this home are on a server ({chosen.address}), and this command works"
            f" on a file. Name one with --db, or make one with: hermes-actor migrate --to FILE"
        )
    return chosen.file


def place_for(db: Path | None) -> StorePaths:
    """The place that an option ``--db`` means."""
    return resolve_paths(file_for(db))


def store_for(db: Path | None) -> StorePaths:
    """The place of a store that exists; refuses if there is none, or if the file is another thing.

    A damaged file passes: what can be done about it is up to the command.
    """
    paths = place_for(db)
    if not check_file(paths):
        no_store(db, paths)
    if not _has_content(paths):
        fail(f"{paths.db} is empty: there is no store in it yet")
    return paths


def new_store_for(db: Path | None) -> StorePaths:
    """The place of a store that exists or may be made, but no folder for ``--db``.

    A path that was typed may be mistyped; the home of this user is known.
    """
    paths = place_for(db)
    if check_file(paths):
        _has_content(paths)
    elif db is not None and not paths.db.parent.is_dir():
        fail(f"there is no folder {paths.db.parent} for the store {paths.db.name}; make it first")
    return paths


def no_store(db: Path | None, paths: StorePaths) -> NoReturn:
    """Refuse, and say what became of the file, or which setting led to one that is not there."""
    from hermes_actor.recovery.orphan_wal import removed  # late: most commands find their store

    if (gone := removed(paths)) is not None:
        fail(f"{gone.text}; {gone.advice}")
    if db is not None:
        why = "named by --db"
    else:
        home = os.environ.get("HERMES_HOME", "").strip()
        why = f"HERMES_HOME={home}" if home else "HERMES_HOME is not set"
    fail(f"there is no store at {paths.db} ({why})")


def check_file(paths: StorePaths) -> bool:
    """Whether there is a file. Refuses a folder, and a pipe or device, which no reader survives."""
    try:
        mode = paths.db.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        fail(f"{paths.db} is a folder, not a store")
    if not stat.S_ISREG(mode):
        fail(f"{paths.db} is a pipe or a device, not a store")
    return True


def _has_content(paths: StorePaths) -> bool:
    try:
        with contextlib.closing(connect_reader(paths.db)) as conn:
            return check_content(conn, paths)
    except sqlite3.Error:
        return True


def check_content(conn: Connection, paths: StorePaths) -> bool:
    """Whether there is a store in the file: not in an empty one. Refuses that of other programs."""
    tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    if not tables or "hermes_actor_meta" in tables:
        return bool(tables)
    for table, known in _EVERY_VERSION.items():
        if not known <= {row[1].lower() for row in conn.execute(f"PRAGMA table_info({table})")}:
            fail(f"{paths.db} is not a store: it has no table {table} of ours; it was not changed")
    return True
