"""PostgreSQL, from version 14 on, through psycopg 3."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, cast

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Table,
    func,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError

from hermes_actor.api.provider import Capabilities
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.dialect import ServerDialect, Settings
from hermes_actor.providers.sql.postgresql import cjk_index
from hermes_actor.providers.sql.postgresql import notify as following
from hermes_actor.providers.sql.postgresql import search as searching
from hermes_actor.providers.sql.postgresql.bulk import make_index
from hermes_actor.providers.sql.postgresql.connection import engine_of_url
from hermes_actor.providers.sql.postgresql.errors import classify
from hermes_actor.providers.sql.postgresql.one_statement import OneStatement, one_statement
from hermes_actor.providers.sql.query_tree import Node
from hermes_actor.providers.sql.receipts import Ticket
from hermes_actor.providers.sql.tables import COMMON, metadata
from hermes_actor.providers.sql.types import KEPT_NUL

__all__ = ["PostgreSQLDialect"]

_log = logging.getLogger("hermes_actor.providers")

_WORDS_COLUMN = "ALTER TABLE messages ADD COLUMN words tsvector"
_WORDS_INDEX = (
    "CREATE INDEX IF NOT EXISTS hermes_actor_messages_words ON messages USING gin (words)"
)
_WORDLESS_INDEX = (
    "CREATE INDEX IF NOT EXISTS hermes_actor_messages_wordless ON messages (id) WHERE words IS NULL"
)
_CHANGES_COLUMN = (
    "ALTER TABLE hermes_actor_changes ADD COLUMN IF NOT EXISTS xid bigint NOT NULL"
    " DEFAULT (pg_current_xact_id()::text::bigint)"
)
_CHANGES_INDEX = (
    "CREATE INDEX IF NOT EXISTS hermes_actor_changes_order ON hermes_actor_changes (xid, commit_no)"
)
_TRIGRAM_INDEX = (
    "CREATE INDEX IF NOT EXISTS hermes_actor_messages_parts"
    f" ON messages USING gin (({searching.PARTS}) {{schema}}.gin_trgm_ops)"
)
_KEY_OF_LOCK = "hashtext('hermes-actor ' || current_schema())"
_LOCK = text(f"SELECT pg_advisory_xact_lock({_KEY_OF_LOCK})")
_TRY_LOCK = text(f"SELECT pg_try_advisory_xact_lock({_KEY_OF_LOCK})")
_EXTENSION_SCHEMA = text(
    "SELECT quote_ident(nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    " WHERE extname = 'pg_trgm'"
)


class PostgreSQLDialect(ServerDialect):
    """One transaction per change, READ COMMITTED; order and uniqueness come from row locks."""

    name: ClassVar[str] = "postgresql"
    messages: ClassVar[Table] = searching.messages_with_words
    trigrams = True
    """True if the server has ``pg_trgm``; without it searches are right, but read every row."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._stems = searching.Stems()

    # --- connecting --------------------------------------------------------------------------

    def engine(self, url: str) -> Engine:
        return engine_of_url(url, self.settings)

    classify = staticmethod(classify)

    def capabilities(self) -> Capabilities:
        kinds = {"words", "phrases", "prefixes", "stems", "cjk", "substrings"}
        if self.settings.similarity and self.trigrams:
            kinds.add("similarity")
        relaxed = self.settings.synchronous_commit == "off"
        return Capabilities(
            "relaxed" if relaxed else "synced",
            "pushed",
            frozenset(kinds),
            many_hosts=True,
            private_sql=False,
        )

    def durability_settings(self) -> dict[str, str]:
        return {"synchronous_commit": self.settings.synchronous_commit}

    # --- schema ------------------------------------------------------------------------------

    @contextmanager
    def schema_lock(self, engine: Engine) -> Iterator[Connection]:
        # One transaction: a process that dies in the middle leaves nothing behind, not even the
        # lock. The name of the schema is part of the key, as one database may hold many stores.
        with engine.begin() as conn:
            conn.execute(_LOCK)
            yield conn

    def has_table(self, conn: Connection, name: str) -> bool:
        # Only in the schema in which it would be made, and from the catalogue itself: to_regclass
        # may answer from what this connection knew before it waited for the lock.
        found = text(
            "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = :t"
        )
        return conn.execute(found, {"t": name}).scalar() is not None

    def create(self, conn: Connection) -> None:
        self.create_common(conn)
        # All or nothing, so nothing else is there; what SQLAlchemy would look for may be visible
        # in another schema.
        others = [table for table in metadata.sorted_tables if table not in COMMON]
        metadata.create_all(conn, tables=others, checkfirst=False)
        for statement in (_WORDS_COLUMN, _WORDLESS_INDEX):
            conn.execute(text(statement))
        for index in self.search_indexes(conn):
            conn.execute(index)

    def create_common(self, conn: Connection) -> None:
        missing = [table for table in COMMON if not self.has_table(conn, table.name)]
        metadata.create_all(conn, tables=missing, checkfirst=False)
        for statement in (_CHANGES_COLUMN, _CHANGES_INDEX):
            conn.execute(text(statement))

    def renew_words(self, conn: Connection) -> None:
        # The column was one that the server made from the text, with an analysis of its own.
        conn.execute(text("ALTER TABLE messages DROP COLUMN words"))
        for statement in (_WORDS_COLUMN, _WORDLESS_INDEX, _WORDS_INDEX):
            conn.execute(text(statement))

    def lacks_words(self, conn: Connection) -> bool:
        return bool(
            conn.execute(text("SELECT EXISTS (SELECT FROM messages WHERE words IS NULL)")).scalar()
        )

    def search_indexes(self, conn: Connection) -> list[Executable]:
        """Return the statements that build missing search indexes, the slowest first."""
        schema = self._extension(conn)
        trigrams = [] if schema is None else [text(_TRIGRAM_INDEX.format(schema=schema))]
        pairs = cjk_index.STATEMENTS if cjk_index.can_be_made(conn) else ()
        return [*trigrams, text(_WORDS_INDEX), *map(text, pairs)]

    def _extension(self, conn: Connection) -> str | None:
        """Return the schema of ``pg_trgm``, which is created if allowed; ``None`` without it."""
        try:
            with conn.begin_nested():
                conn.execute(text("CREATE EXTENSION IF NOT EXISTS pg_trgm"))
        except Exception as error:
            _log.warning("pg_trgm cannot be made: %s", self._first_line(error))
        return cast("str | None", conn.execute(_EXTENSION_SCHEMA).scalar())

    def prepare(self, conn: Connection) -> None:
        self.trigrams = bool(
            conn.execute(text("SELECT to_regclass('hermes_actor_messages_parts')")).scalar()
        )
        if not self.trigrams:
            _log.warning(
                "the server has no pg_trgm index for this store: searches for CJK text look at"
                " every message. An administrator can run CREATE EXTENSION pg_trgm and %s",
                _TRIGRAM_INDEX.format(schema="public"),
            )
        elif not self._cuts_cjk(conn):
            _log.warning(
                "in the locale of this database (LC_CTYPE %s) pg_trgm does not see CJK text:"
                " searches for it look at every message. Use a database that was made with"
                " LC_CTYPE 'C.UTF-8', or that of a language, and TEMPLATE template0",
                conn.execute(text("SELECT current_setting('lc_ctype')")).scalar(),
            )

    def complete(self, engine: Engine) -> None:
        try:
            with engine.begin() as conn:
                if cjk_index.is_wanted(conn) and conn.execute(_TRY_LOCK).scalar():
                    for statement in cjk_index.STATEMENTS:
                        make_index(conn, text(statement))
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            _log.warning(
                "the index for short CJK terms cannot be made, and searches for them look at every"
                " message: %s",
                self._first_line(error),
            )

    @staticmethod
    def _cuts_cjk(conn: Connection) -> bool:
        """Return True if ``pg_trgm`` takes CJK characters for letters, which the locale decides."""
        schema = conn.execute(_EXTENSION_SCHEMA).scalar()
        found = conn.execute(text(f"SELECT cardinality({schema}.show_trgm('漢字'))")).scalar()
        return bool(found)

    @staticmethod
    def _first_line(error: BaseException) -> str:
        return str(getattr(error, "orig", error)).splitlines()[0]

    # --- statements --------------------------------------------------------------------------

    def insert_if_absent(
        self, conn: ServerConnection, table: Table, values: Mapping[str, Any]
    ) -> bool:
        return conn.execute(_insert_unless_there(table), values).first() is not None

    def upsert_statement(self, table: Table, changed: list[str]) -> Executable:
        row, key = insert(table), list(table.primary_key.columns)
        new = {name: row.excluded[name] for name in changed}
        return row.on_conflict_do_update(index_elements=key, set_=new)

    def one_statement(self, ticket: Ticket) -> OneStatement | None:
        return one_statement(self, ticket)

    def limit_statements(self, conn: Connection, seconds: float | None) -> None:
        if seconds is not None:  # else the connection has the limit already
            conn.execute(
                text("SELECT set_config('statement_timeout', :ms, true)"),
                {"ms": str(max(1, round(seconds * 1000)))},
            )

    # --- search ------------------------------------------------------------------------------

    def like(self, column: ColumnElement[Any] | Column[Any], pattern: str) -> ColumnElement[bool]:
        return searching.plain(column).ilike(pattern, escape="\\")

    def before_nul(self, column: Column[Any]) -> ColumnElement[Any]:
        return func.split_part(column, searching.mark(KEPT_NUL), 1)

    def contains_words(
        self, conn: ServerConnection, tree: Node
    ) -> tuple[ColumnElement[bool], ColumnElement[Any]]:
        query = searching.words_query(tree, self._stems.of(conn, tree))
        return searching.words_match(query), searching.words_rank(query)

    def may_contain(self, conn: ServerConnection, terms: Sequence[str]) -> ColumnElement[bool]:
        found = cjk_index.candidates(terms)
        # Asked each time: without the index the function would be called for every message.
        return true() if found is None or not cjk_index.is_there(conn) else found

    words_column = staticmethod(searching.words_column)
    contains_part = staticmethod(searching.part_match)
    headlines = staticmethod(searching.headlines)
    similar = staticmethod(searching.similar)

    # --- changes -----------------------------------------------------------------------------

    def notify_subscribers(self, conn: ServerConnection) -> None:
        conn.execute(following.TELL)

    def one_hour_ago(self) -> ColumnElement[Any]:
        return func.now() - text("interval '1 hour'")

    place_after = staticmethod(following.place_after)
    newest_change = staticmethod(following.newest_change)
    changes_after = staticmethod(following.changes_after)
    listen = staticmethod(following.listen)


@cache
def _insert_unless_there(table: Table) -> Any:
    return insert(table).on_conflict_do_nothing().returning(*table.primary_key.columns)
