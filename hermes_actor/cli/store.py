"""The store that a command works on: which file it is, and reading it in this process.

Reading starts no actor and creates no file. Only a file of an old version needs its owner first,
which migrates it. Everything here is quick to import, because ``sessions list`` should feel
instant; what can write is in :mod:`hermes_actor.cli.command_store`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, ParamSpec, Protocol, TypeVar

from hermes_actor import limits
from hermes_actor.cli.output.errors import fail
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
from hermes_actor.store.inspection import Identity, create_schema, identify
from hermes_actor.store.queries import Query
from hermes_actor.store.registry import ANSWER
from hermes_protocol.features import PLAIN, SESSIONS

if TYPE_CHECKING:
    from hermes_actor.providers.resolve import StoreSpec

__all__ = [
    "ReadOnlyStore", "ReadableStore", "closing_store", "creatable_paths", "database_file",
    "existing_file", "existing_paths", "fail_no_store", "open_read_only", "paths_for", "server_of",
]  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="ReadableStore")


# --- which file ----------------------------------------------------------------------------------


def database_file(db: Path | None) -> Path:
    """Return *db*, else the file that ``sessiondb.dsn`` names, else ``HERMES_HOME/state.db``.

    Fails for a home whose sessions are on a server: a file beside its settings is at best a copy
    from before the migration.
    """
    if db is not None:
        return db
    chosen = _chosen()
    if chosen is None:
        return default_db_path()
    if chosen.file is None:
        fail(
            f"the sessions of this home are on a server ({chosen.address}), but this command needs"
            f" a file. Name one with --db, or create one with: hermes-actor migrate --to FILE"
        )
    return chosen.file


def server_of(db: Path | None) -> StoreSpec | None:
    """Return the server that has the sessions of this home; ``None`` if they are in a file."""
    chosen = _chosen() if db is None else None
    return chosen if chosen is not None and chosen.file is None else None


def _chosen() -> StoreSpec | None:
    home = default_db_path().parent
    if not (home / "config.yaml").exists():
        return None
    from hermes_actor.providers.resolve import choose_by_settings

    return choose_by_settings(home)


def paths_for(db: Path | None) -> StorePaths:
    """Return the paths of the store that ``--db`` selects, existing or not."""
    return resolve_paths(database_file(db))


def existing_paths(db: Path | None, kind: str = SESSIONS) -> StorePaths:
    """Return the paths of a store that exists; fail if there is none, or if it is another file.

    *kind* is the kind whose operations the command uses; ``plain`` takes any. A damaged file
    passes: the command decides what can be done about it.
    """
    paths = paths_for(db)
    if not _is_file(paths):
        fail_no_store(db, paths)
    if _identify_file(paths, kind).is_empty:
        fail(f"{paths.db} is empty: it contains no store yet")
    return paths


def creatable_paths(db: Path | None, kind: str = SESSIONS, *, adopting: bool = False) -> StorePaths:
    """Return the paths of a store that exists or may be created; *kind*: see
    :func:`existing_paths`. *adopting*: the database of another program may become one.

    The folder of a path given with ``--db`` must exist: a path that was typed may be mistyped,
    while the home of this user is known.
    """
    paths = paths_for(db)
    if _is_file(paths):
        _identify_file(paths, kind, adopting=adopting)
    elif db is not None and not paths.db.parent.is_dir():
        fail(f"cannot create {paths.db}: there is no folder {paths.db.parent}; create it first")
    return paths


def existing_file(paths: StorePaths) -> None:
    """Fail unless *paths* is a file that exists, whatever it contains."""
    if not _is_file(paths):
        _fail_if_removed(paths)
        fail(f"there is no file {paths.db}")


def fail_no_store(db: Path | None, paths: StorePaths) -> NoReturn:
    """Fail, naming what happened to the file, or the setting that led to a missing one."""
    _fail_if_removed(paths)
    if db is not None:
        why = "given with --db"
    else:
        home = os.environ.get("HERMES_HOME", "").strip()
        why = f"HERMES_HOME={home}" if home else "HERMES_HOME is not set"
    fail(f"there is no store at {paths.db} ({why})")


def _fail_if_removed(paths: StorePaths) -> None:
    from hermes_actor.recovery.orphan_wal import (
        removed_store,  # late: most commands find their store
    )

    if (gone := removed_store(paths)) is not None:
        fail(f"{gone.text}; {gone.advice}")


def _is_file(paths: StorePaths) -> bool:
    """Return True if the file exists. Fails for a folder, and for a pipe, which blocks a reader."""
    try:
        mode = paths.db.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        fail(f"{paths.db} is a folder, not a store")
    if not stat.S_ISREG(mode):
        fail(f"{paths.db} is a pipe or a device, not a store")
    return True


def _identify_file(paths: StorePaths, kind: str, *, adopting: bool = False) -> Identity:
    try:
        with contextlib.closing(connect_reader(paths.db)) as conn:
            return _checked(identify(conn), paths, kind, adopting=adopting)
    except sqlite3.Error:
        return Identity()


def _checked(
    identity: Identity, paths: StorePaths, kind: str = SESSIONS, *, adopting: bool = False
) -> Identity:
    # Whatever runs on a plain file runs on any other.
    if kind != PLAIN and identity.kind == PLAIN:
        fail(f"{paths.db} is a plain file: it holds no sessions, which this command needs")
    if identity.missing_table is not None and not adopting:
        fail(
            f"{paths.db} is not a store: it has no table {identity.missing_table} with our columns;"
            " it was not changed"
        )
    return identity


# --- reading it ----------------------------------------------------------------------------------


class ReadableStore(Protocol):
    """A store of any kind, as a command that only reads sees it."""

    @property
    def address(self) -> str:
        """The store for people: a path, or a URL without its password."""

    @property
    def home(self) -> Path:
        """Folder of the settings."""

    @property
    def file(self) -> StorePaths | None:
        """Paths of the file, unless the store is on a server."""

    def query(self, query: Query[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer *query*."""

    def close(self) -> None:
        """End the use of the store."""


class ReadOnlyStore:
    """A file that is only read."""

    _reader: Reader

    def __init__(
        self,
        db: Path | None = None,
        timeout: float = limits.DEFAULT_TIMEOUT_SECONDS,
        *,
        may_be_new: bool = False,
    ) -> None:
        path = database_file(db)
        self.address, self.home, self.paths = str(path), path.parent, resolve_paths(path)
        check_not_hijacked(self.paths)
        if _is_file(self.paths):
            self._reader = Reader(self.paths)
            identity = _checked(self._reader.query(identify), self.paths)
            if identity.is_empty:
                self._reader.close()
                self._reader = _EmptyReader(self.paths)
            elif identity.is_outdated:
                self._migrate(timeout)
        elif may_be_new:
            creatable_paths(db)
            self._reader = _EmptyReader(self.paths)
        else:
            fail_no_store(db, self.paths)

    def _migrate(self, timeout: float) -> None:
        from hermes_actor.client.actor_client import acquire

        # The actor migrates the file before it welcomes a client.
        acquire(self.paths, timeout).release()

    @property
    def file(self) -> StorePaths:
        """Paths of the file."""
        return self.paths

    def query(self, query: Query[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer *query* in one snapshot. The command imports the module with the answer."""
        answer: Callable[..., R] = ANSWER[query]
        return self._reader.snapshot(answer, *args)

    def close(self) -> None:
        """Close the connections of the reader."""
        self._reader.close()


def open_read_only(db: Path | None) -> contextlib.AbstractContextManager[ReadableStore]:
    """Open the store for one command; fail with one line if it cannot be opened."""
    server = server_of(db)
    if server is None:
        return closing_store(lambda: ReadOnlyStore(db))
    from hermes_actor.cli.command_store import ServerStore

    return closing_store(lambda: ServerStore(server))


@contextlib.contextmanager
def closing_store(open_: Callable[[], S]) -> Iterator[S]:
    """Open a store with *open_* and close it after the block; fail if it cannot be read."""
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


class _EmptyReader(Reader):
    """Reader of a file that is empty or does not exist: it reads a new store in memory."""

    def _look(self) -> None:
        pass

    def _connect(self) -> Connection:
        conn = connect_alone()
        # With complete indexes, so that a search does not ask for an actor either.
        create_schema(conn)
        return conn
