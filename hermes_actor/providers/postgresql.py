"""Sessions on a PostgreSQL server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hermes_actor.errors import Unsupported
from hermes_actor.providers.sql.dialect import ServerDialect
from hermes_actor.providers.sql.postgresql.connection import engine_of_pool
from hermes_actor.providers.sql.postgresql.dialect import PostgreSQLDialect
from hermes_actor.providers.sql.search import search_similar
from hermes_actor.providers.sql.session_db import ServerSessionDB
from hermes_actor.store.rows import Row

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["PostgreSQLSessionDBProvider"]


class PostgreSQLSessionDBProvider(ServerSessionDB):
    """The provider ``postgresql``: ``postgresql://user@host/database``, several hosts allowed."""

    provider: ClassVar[str] = "postgresql"
    _dialect: type[ServerDialect] = PostgreSQLDialect

    def initialize(
        self, url: str | None = None, *, engine: Engine | None = None, pool: Any = None
    ) -> None:
        """Open the store at *url*, or behind a ready engine or pool, which stays the caller's.

        Args:
            pool: A pool of SQLAlchemy, or one with ``getconn`` and ``putconn`` like psycopg's.
        """
        if pool is not None:
            engine = engine_of_pool(pool)
        super().initialize(url, engine=engine)

    def search_similar(self, text: str, limit: int = 20) -> list[Row]:
        """Return messages that hold something like *text*, misspelt too, nearest first.

        Only this provider has it, and only with ``sessiondb.similarity``: it looks at every
        message. Rows are those of :meth:`search_messages`, with ``similarity`` from 0 to 1.
        """
        database = self._opened().database
        if "similarity" not in database.dialect.capabilities().search:
            raise Unsupported("set sessiondb.similarity to true, and see that pg_trgm is there")
        return database.read(search_similar, (text, limit), self._timeout, False)
