"""The store of a command that only looks: the file, read in this process.

Nothing is started and nothing is created for it. Only a file of an old version needs its owner
first, who brings it up to date. Everything here is quick to import: `sessions list` should be there
before you have finished reading its name.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from hermes_actor.cli.errors import fail
from hermes_actor.client.reader import Reader
from hermes_actor.errors import (
    CannotOpen,
    CannotRead,
    HermesActorError,
    NotADatabase,
    OpenError,
    StorageError,
)
from hermes_actor.paths import StorePaths, check_not_hijacked, default_db_path, resolve_paths
from hermes_actor.sqlite import Connection, connect_alone, connect_reader, sqlite3
from hermes_actor.store.schema import FTS_SQL, FTS_TRIGRAM_SQL, OWN_SQL, SCHEMA_SQL
from hermes_protocol.operations import MessageRow, SessionRow

__all__ = [
    "DEFAULT_TIMEOUT_SECONDS",
    "ReadOnlyStore",
    "check_content",
    "check_file",
    "closing_store",
    "creatable_paths",
    "database_file",
    "existing_paths",
    "fail_no_store",
    "open_read_only",
    "paths_for",
]

R = TypeVar("R")
S = TypeVar("S", bound="ReadOnlyStore")

DEFAULT_TIMEOUT_SECONDS = 30.0
"""How long a command waits for the actor."""

_NEEDED = {
    "sessions": frozenset(SessionRow.__struct_fields__),
    "messages": frozenset(MessageRow.__struct_fields__) - {"calls"},
}
"""Columns that every file has once its owner has opened it."""


class ReadOnlyStore:
    """A store that is only read."""

    _reader: Reader

    def __init__(
        self,
        db: Path | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        *,
        may_be_new: bool = False,
    ) -> None:
        self.path = database_file(db)
        self.paths = resolve_paths(self.path)
        check_not_hijacked(self.paths)
        if check_file(self.paths):
            self._reader = Reader(self.paths)
            if not self._reader.query(check_content, self.paths):
                self._reader.close()
                self._reader = _Empty(self.paths)
            elif self._reader.query(_is_old):
                self._bring_up_to_date(timeout)
        elif may_be_new:
            creatable_paths(db)
            self._reader = _Empty(self.paths)
        else:
            fail_no_store(db, self.paths)

    def _bring_up_to_date(self, timeout: float) -> None:
        from hermes_actor.client.actor_client import acquire

        acquire(self.paths, timeout).release()

    def read(self, function: Callable[..., R], *arguments: Any) -> R:
        """``function(connection, *arguments)`` in one state of the file."""
        return self._reader.snapshot(function, *arguments)

    def close(self) -> None:
        self._reader.close()


def open_read_only(db: Path | None) -> contextlib.AbstractContextManager[ReadOnlyStore]:
    """The store for the time of one command; one line if it cannot be opened."""
    return closing_store(lambda: ReadOnlyStore(db))


@contextlib.contextmanager
def closing_store(open_: Callable[[], S]) -> Iterator[S]:
    """What *open_* gives, closed at the end; refuses what cannot be opened or read."""
    try:
        store = open_()
    except (OpenError, StorageError, OSError) as error:
        fail(f"Could not open session database: {error}")
    with contextlib.closing(store):
        try:
            yield store
        except (OpenError, CannotOpen, CannotRead, NotADatabase) as error:
            fail(f"Could not open session database: {error}")
        except HermesActorError as error:
            fail(str(error))


def _is_old(conn: Connection) -> bool:
    return any(
        not needed <= {row[1] for row in conn.execute(f"PRAGMA table_info({table})")}
        for table, needed in _NEEDED.items()
    )


class _Empty(Reader):
    """Reads of a file that is empty, or not there yet: reading changes nothing."""

    def _look(self) -> None:
        pass

    def _connect(self) -> Connection:
        conn = connect_alone()
        # With its indexes, which are complete: a search does not ask for an actor either.
        for script in (SCHEMA_SQL, FTS_SQL, FTS_TRIGRAM_SQL, OWN_SQL):
            conn.executescript(script)
        return conn


_EVERY_VERSION = {
    "sessions": frozenset({"id", "source", "model_config", "started_at", "ended_at", "end_reason"}),
    "messages": frozenset({"id", "session_id", "role", "content", "tool_calls", "timestamp"}),
}
"""By these columns a store of any version is told from the database of another program."""


def database_file(db: Path | None) -> Path:
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


def paths_for(db: Path | None) -> StorePaths:
    """The place that an option ``--db`` means."""
    return resolve_paths(database_file(db))


def existing_paths(db: Path | None) -> StorePaths:
    """The place of a store that exists; refuses if there is none, or if the file is another thing.

    A damaged file passes: what can be done about it is up to the command.
    """
    paths = paths_for(db)
    if not check_file(paths):
        fail_no_store(db, paths)
    if not _has_content(paths):
        fail(f"{paths.db} is empty: there is no store in it yet")
    return paths


def creatable_paths(db: Path | None) -> StorePaths:
    """The place of a store that exists or may be made, but no folder for ``--db``.

    A path that was typed may be mistyped; the home of this user is known.
    """
    paths = paths_for(db)
    if check_file(paths):
        _has_content(paths)
    elif db is not None and not paths.db.parent.is_dir():
        fail(f"there is no folder {paths.db.parent} for the store {paths.db.name}; make it first")
    return paths


def fail_no_store(db: Path | None, paths: StorePaths) -> NoReturn:
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
