"""SessionDB: sessions and messages of an agent in an SQLite file.

Reads run in the calling process, on read-only connections. Every change becomes one operation
and goes to the one writer of the file. The methods stand, by subject, in ``hermes_actor/api``;
here are opening, closing, and the internals that other programs use.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from hermes_actor.api.provider import Capabilities, SessionDBProvider
from hermes_actor.compat.init_errors import record_init_error
from hermes_actor.errors import BadConfig, HermesActorError
from hermes_actor.paths import (
    StorePaths,
    check_not_hijacked,
    default_db_path,
    prepared_folder,
    resolve_paths,
)
from hermes_actor.sqlite import Connection, sqlite3

if TYPE_CHECKING:
    from hermes_actor.client.file_queries import FileQueries
    from hermes_actor.client.interfaces import WriterPort
    from hermes_actor.compat.connection import ConnectionShim, Parameters
    from hermes_actor.providers.resolve import StoreSpec

__all__ = ["DEFAULT_DB_PATH", "SessionDB"]

R = TypeVar("R")

DEFAULT_DB_PATH = default_db_path()
"""Computed once, at import: a later change of ``HERMES_HOME`` does not move the store."""


class SessionDB(SessionDBProvider):
    """The session store of one agent.

    Called with the URL of a store, or without anything in a home whose ``config.yaml`` names a
    provider, it returns the store of that provider, which has the same methods.

    Guarantees, with the numbers that the documentation uses:

    * A method that changes something returns after the change is committed and synced to disk (G1).
    * A change is made exactly once, however often connections break, and whether the actor is
      killed, drained or replaced meanwhile (G2). An error says in ``executed`` whether its change
      was made: ``no``, ``yes`` or ``unknown``.
    * Changes of one process are made in the order in which it sent them (G3).
    * After a change has returned, every new read in every process sees it, searches included (G4).

    Reads run in the calling process on read-only connections and do not wait for the writer.

    One object may be used from any number of threads, and objects of one process on one file share
    their connection to the actor. After ``fork`` the child may go on using the object: it gets
    connections of its own with its first call. In ``mode="embedded"`` the child can only read,
    because the writer is a thread of the parent.

    Example::

        with SessionDB("state.db") as db:
            db.create_session("s1", source="cli", model="m")
            db.append_message("s1", "user", "Where do walruses live?")
            print([hit["snippet"] for hit in db.search_messages("walrus*")])

    Args:
        db_path: The path of the database file, or the URL of a store, which has ``://`` in it;
            default: what ``sessiondb`` in ``config.yaml`` says, else ``HERMES_HOME/state.db``.
            Missing folders of a ``Path`` and of the default are created; that of a text must exist.
        mode: ``"actor"`` sends changes to the actor of the file, which is started if there is
            none; ``"embedded"`` runs the writer as a thread of this process.
        timeout: Seconds that a call waits, for an actor to start and for its turn, before it raises
            :class:`OpenError` or :class:`DeadlineExceeded`.

    Raises:
        StorageError: the file cannot be used; the class says why, and the file is untouched.
        OpenError: no actor or server can be reached or started; or, embedded, another process
            owns it.
        BadConfig: ``config.yaml`` cannot be understood.
    """

    provider: ClassVar[str] = "sqlite"
    _is_file: ClassVar[bool] = False
    """True in a class that neither a URL nor the settings can make another store."""

    # The write path that these described is gone; the names are part of the contract.
    _WRITE_MAX_RETRIES = 15
    _WRITE_RETRY_MIN_S = 0.020
    _WRITE_RETRY_MAX_S = 0.150
    _CHECKPOINT_EVERY_N_WRITES = 50

    def __new__(  # noqa: PYI034 - it may be another provider
        cls, db_path: Path | str | None = None, *, mode: str = "actor", timeout: float = 30.0
    ) -> SessionDB:
        if not cls._is_file:
            chosen = _provider_for(db_path)
            if chosen is not None and cls is SessionDB:
                return _open_by_provider(chosen, mode, timeout)
            if chosen is not None:
                raise BadConfig(
                    f"{cls.__name__} is a subclass for files, but the store is one of {chosen.name}"
                )
        return super().__new__(cls)

    def __init__(
        self,
        db_path: Path | str | None = None,
        *,
        mode: str = "actor",
        timeout: float = 30.0,
    ) -> None:
        if hasattr(self, "_reader"):
            return  # the URL of a file: it is open already
        if db_path == "":
            # Mostly a variable that is not set: it must not lead to the store of the home.
            raise ValueError("an empty text names no store; None is the store of HERMES_HOME")
        # Late: what reads a file is of no use to a program that opens none.
        from hermes_actor.client.file_queries import FileQueries
        from hermes_actor.client.reader import Reader
        from hermes_actor.compat.connection import ConnectionShim

        self.db_path = prepared_folder(_default_path() if db_path is None else db_path)
        self._timeout = timeout
        self._lock = threading.RLock()
        self._port: WriterPort | None = None
        try:
            paths = resolve_paths(self.db_path)
            check_not_hijacked(paths)
            self._port = _open_port(mode, paths, timeout)
            self._reader = Reader(paths, timeout)
            # A file that cannot be read here is better found out now than by the first query.
            self._reader.query(lambda _conn: None)
            self._queries: FileQueries = FileQueries(self._reader, self._port, timeout)
        except BaseException as error:
            if self._port is not None:
                self._port.release()
            if isinstance(error, Exception):
                record_init_error(error)
            raise
        self._conn: ConnectionShim | None = ConnectionShim(
            self._read_sql, self._submit, self._execute_write
        )

    @classmethod
    def from_url(
        cls, url: str, *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> Self:
        """Open the store at *url* with the provider that its scheme names.

        The settings of the home are not read.

        Args:
            url: Such as ``sqlite:////path/to/state.db`` or ``postgresql://user@host/database``.
            settings: Accepted for all providers; a file has none.
            timeout: As for :class:`SessionDB`.

        Raises:
            UnknownProvider: no provider has the scheme.
            MissingDriver: the driver of the provider is not installed.
            OpenError: the store cannot be reached or opened. No message repeats a password.
        """
        from hermes_actor.providers.resolve import choose_by_url

        return choose_by_url(url).open(timeout)  # type: ignore[return-value]

    @property
    def capabilities(self) -> Capabilities:
        """The promises of a file: synced changes that are pushed to followers, on one host."""
        kinds = frozenset({"words", "phrases", "prefixes", "cjk", "substrings"})
        return Capabilities("synced", "pushed", kinds, many_hosts=False, private_sql=True)

    def close(self) -> None:
        """Stop using the store. Calling it again is harmless; other objects are not disturbed.

        The last object of a process on a file closes the connection to the actor or, embedded, the
        file. Later calls raise :class:`Closed`. A program that ends without it loses nothing.
        """
        with self._lock:
            port, self._port, self._conn = self._port, None, None
        if port is not None:
            self._queries.close()
            port.release()

    # --- internals that other programs use ---------------------------------------------------

    def _execute_write(self, fn: Callable[[Any], R]) -> R:
        """Run ``fn(conn)`` inside one transaction of the writer; what it raises undoes it."""
        from hermes_actor.compat.connection import ConnectionShim

        lease = self._opened_port().lease(self._timeout)
        try:
            result = fn(ConnectionShim(None, lease.execute, None))
        except BaseException:
            with contextlib.suppress(HermesActorError):
                lease.rollback()
            raise
        try:
            lease.commit()
        except HermesActorError:
            raise
        except BaseException:
            # Interrupted before or after it was sent: what was committed stays.
            with contextlib.suppress(HermesActorError):
                lease.rollback()
            raise
        return result

    def _read_sql(self, sql: str, parameters: Parameters) -> tuple[Any, list[Any]]:
        from hermes_actor.store.guest_sql import names_index

        def run(conn: Connection) -> tuple[Any, list[Any]]:
            cursor = conn.cursor()
            cursor.row_factory = sqlite3.Row
            cursor.execute(sql, parameters)
            return cursor.description, cursor.fetchall()

        if names_index(sql):
            return self._queries.with_complete_index(run, exact=True)
        return self._reader.query(run)

    @staticmethod
    def _parse_schema_columns(schema_sql: str) -> dict[str, dict[str, str]]:
        from hermes_actor.engine.startup.schema_columns import parse_schema_columns

        return parse_schema_columns(schema_sql)


def _default_path() -> Path:
    """Return the default path of the drop-in module if it is loaded: its users set it there."""
    drop_in = sys.modules.get("hermes_actor.hermes_state")
    return getattr(drop_in, "DEFAULT_DB_PATH", DEFAULT_DB_PATH)


def _provider_for(target: Path | str | None) -> StoreSpec | None:
    """Return the store that *target* or, without one, the settings of the home name, if any."""
    if not isinstance(target, str | None):
        return None
    # Most programs never leave the file: without a URL and without settings nothing is imported.
    if target is None and not (_default_path().parent / "config.yaml").exists():
        return None
    if target is not None and "://" not in target:
        return None
    from hermes_actor.providers.resolve import choose_by_settings, choose_by_url

    if target is None:
        return choose_by_settings(_default_path().parent)
    return choose_by_url(target)


def _open_by_provider(chosen: StoreSpec, mode: str, timeout: float) -> SessionDB:
    if mode != "actor" and chosen.name != "sqlite":
        raise BadConfig(f"mode={mode!r} is for files; the provider is {chosen.name}")
    try:
        return chosen.open(timeout)  # type: ignore[return-value]
    except Exception as error:
        record_init_error(error)
        raise


def _open_port(mode: str, paths: StorePaths, timeout: float) -> WriterPort:
    if mode == "actor":
        from hermes_actor.client.actor_client import acquire

        return acquire(paths, timeout)
    if mode == "embedded":
        from hermes_actor.embedded import share as share_writer

        return share_writer(paths)
    raise ValueError(f"unknown mode {mode!r}; use 'actor' or 'embedded'")
