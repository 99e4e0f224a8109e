"""A SessionDB whose sessions are on a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Self, TypeVar

from sqlalchemy import Engine

from hermes_actor.api.provider import Capabilities, SessionDBProvider
from hermes_actor.config import Config
from hermes_actor.errors import Closed
from hermes_actor.paths import default_home
from hermes_actor.providers.resolve import masked

# Imported for their registrations.
from hermes_actor.providers.sql import gateway, messages, meta, search, transfer
from hermes_actor.providers.sql.database import Database, share
from hermes_actor.providers.sql.dialect import ServerDialect, Settings
from hermes_actor.providers.sql.port import ServerPort, no_private_sql
from hermes_actor.providers.sql.registry import ANSWER
from hermes_actor.providers.sql.sessions import (
    archive,
    counts,
    deletion,
    filters,
    insights,
    lineage,
    listing,
    sessions,
    telegram_topics,
    titles,
)
from hermes_actor.session_db import SessionDB
from hermes_actor.settings import (
    STORE_CONNECT_TIMEOUT,
    STORE_POOL_SIZE,
    STORE_SIMILARITY,
    STORE_STATEMENT_TIMEOUT,
    STORE_SYNCHRONOUS_COMMIT,
)
from hermes_actor.store.queries import Query
from hermes_actor.write_settings import read_rules

if TYPE_CHECKING:
    from hermes_actor.store.raw_rows import StoreSummary

__all__ = ["ServerSessionDB"]

_SUBJECTS = (
    archive, counts, deletion, filters, gateway, insights, lineage, listing, messages, meta,
    search, sessions, telegram_topics, titles, transfer,
)  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")

_SUMMARY_SECONDS = 5.0


class ServerQueries:
    """Reader of a store on a server."""

    def __init__(self, database: Database, timeout: float) -> None:
        self._database = database
        self._timeout = timeout
        self._closed = False

    def query(self, query: Query[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer *query* within the timeout; the indexes of a server are never behind.

        Raises :class:`Closed` after :meth:`close`.
        """
        if self._closed:
            raise Closed("this SessionDB is closed")
        answer: Callable[..., R] = ANSWER[query]
        return self._database.read(answer, args, self._timeout, query.view == "statement")

    def close(self) -> None:
        """Refuse further queries. The database belongs to the port."""
        self._closed = True


class ServerSessionDB(SessionDBProvider):
    """Base of the providers for servers. Safe to use from any thread.

    Args:
        url: The store. Without it, :meth:`initialize` has to be called before anything else.
        settings: The other keys of ``sessiondb`` in ``config.yaml``.
        timeout: Seconds that a call waits for the server before it gives up.
    """

    _dialect: type[ServerDialect]

    def __init__(
        self,
        url: str | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._timeout = timeout
        self._settings = _settings(settings or {})
        self._lock = threading.RLock()
        self._port: ServerPort | None = None
        self._url = masked(url or "")
        if url is not None:
            self.initialize(url)

    @classmethod
    def from_url(
        cls, url: str, *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> Self:
        """Open the store at *url*, and create its tables if there are none.

        Raises:
            OpenError: the server cannot be reached, or refuses the login.
            BadConfig: a setting has a value that it cannot have.
        """
        return cls(url, settings=settings, timeout=timeout)

    @classmethod
    def summary(cls, url: str, *, settings: Mapping[str, Any] | None = None) -> StoreSummary | None:
        """Return a summary of the store without creating it; ``None`` if there is none yet."""
        dialect = cls._dialect(_settings(settings or {}))
        database = Database(dialect, dialect.engine(url))
        with closing(database):
            return transfer.summary(database, _SUMMARY_SECONDS)

    @classmethod
    def status(cls, url: str, *, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the state and promises of the store at *url* without creating anything.

        Raises:
            OpenError: the server cannot be reached, or refuses the login.
        """
        facts = cls.summary(url, settings=settings)
        dialect = cls._dialect(_settings(settings or {}))
        declared = dialect.capabilities()
        return {
            "phase": "serving" if facts else "no store yet",
            "sessions": facts.sessions if facts else 0,
            "messages": facts.messages if facts else 0,
            "durability": declared.durability,
            **dialect.durability_settings(),
            "changes": declared.changes,
            "search": sorted(declared.search),
        }

    def initialize(self, url: str | None = None, *, engine: Engine | None = None) -> None:
        """Open the store at *url*, or the one that *engine*, which stays the caller's, leads to.

        Raises:
            OpenError: the server cannot be reached, or refuses the login.
        """
        if self._port is not None:
            raise RuntimeError("the store is open already")
        dialect = self._dialect(self._settings)
        if engine is not None:
            database = Database(dialect, engine, owned=False)
            database.open(self._timeout)
        elif url is not None:
            self._url = masked(url)
            database = share(url, dialect, self._timeout)
        else:
            raise TypeError("a store needs a URL, or a ready engine or pool")
        self._queries = ServerQueries(database, self._timeout)
        self._port = ServerPort(database)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url}>"

    @property
    def capabilities(self) -> Capabilities:
        """The promises of this server with these settings.

        Raises:
            Closed: the store was closed, or not opened yet.
        """
        return self._opened().database.dialect.capabilities()

    def close(self) -> None:
        """Stop using the store. Calling it again is harmless; other objects are not disturbed.

        Waits until the changes of pipelines are written. Later calls raise :class:`Closed`.
        """
        with self._lock:
            port, self._port = self._port, None
        if port is not None:
            self._queries.close()
            port.release()

    @property
    def _conn(self) -> NoReturn:
        no_private_sql()

    def _execute_write(self, fn: Callable[[Any], Any]) -> NoReturn:
        no_private_sql()

    def _opened(self) -> ServerPort:
        if self._port is None:
            raise Closed("this SessionDB is closed")
        return self._port


# A program that asks whether it has a SessionDB means these too.
SessionDB.register(ServerSessionDB)


def _settings(given: Mapping[str, Any]) -> Settings:
    config = Config(Path("config.yaml"), {"sessiondb": given})
    return Settings(
        config.read(STORE_POOL_SIZE),
        config.read(STORE_STATEMENT_TIMEOUT),
        config.read(STORE_CONNECT_TIMEOUT),
        config.read(STORE_SYNCHRONOUS_COMMIT),
        config.read(STORE_SIMILARITY),
        # Whichever way the store was named: no process of the home is to write beside a turn.
        read_rules(default_home()),
    )
