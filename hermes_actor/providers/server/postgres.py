"""PostgreSQL, from version 14 on, through psycopg 3."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from typing import Any, ClassVar, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Table,
    create_engine,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert

from hermes_actor.errors import BadConfig
from hermes_actor.providers.base import Capabilities
from hermes_actor.providers.server import postgres_search as searching
from hermes_actor.providers.server.connection import ServerConnection
from hermes_actor.providers.server.dialect import Judgement, Place, ServerDialect, Step
from hermes_actor.providers.server.postgres_errors import judge
from hermes_actor.providers.server.tables import changes, followers, messages, metadata
from hermes_actor.providers.server.text_search import Node
from hermes_actor.providers.server.values import KEPT_NUL

__all__ = ["CHANNEL", "PostgresDialect"]

CHANNEL = "hermes_actor_changes"
_FOLLOW_SECONDS = 10
"""How often a follower says that it is there; told of changes is who has said so lately."""
_NOTICE_SECONDS = 1.0
"""How soon the listening thread of a closed subscription ends."""

_log = logging.getLogger("hermes_actor.providers")

_WORDS_COLUMN = (
    "ALTER TABLE messages ADD COLUMN IF NOT EXISTS words tsvector"
    f" GENERATED ALWAYS AS ({searching.WORDS}) STORED"
)
_WORDS_INDEX = (
    "CREATE INDEX IF NOT EXISTS hermes_actor_messages_words ON messages USING gin (words)"
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
_EXTENSION_SCHEMA = text(
    "SELECT quote_ident(nspname) FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
    " WHERE extname = 'pg_trgm'"
)


class PostgresDialect(ServerDialect):
    """One transaction per change, READ COMMITTED; order and uniqueness come from row locks."""

    name: ClassVar[str] = "postgresql"
    messages: ClassVar[Table] = messages
    trigrams = True
    """Whether the server has ``pg_trgm``; searches are right without it, but look at every row."""

    # --- connecting --------------------------------------------------------------------------

    def engine(self, url: str) -> Engine:
        parameters = _parameters(url)
        return self._engine(lambda: self._connect(parameters), pool_size=self.settings.pool_size)

    def engine_of_pool(self, pool: Any) -> Engine:
        """An engine on a ready pool: one of SQLAlchemy, or one with ``getconn`` and ``putconn``."""
        if not hasattr(pool, "getconn"):
            return create_engine("postgresql+psycopg://", pool=pool, hide_parameters=True)
        from sqlalchemy import NullPool

        engine = create_engine(
            "postgresql+psycopg://",
            creator=pool.getconn,
            poolclass=NullPool,
            hide_parameters=True,
        )
        # To close a connection is to give it back.
        engine.dialect.do_close = engine.dialect.do_terminate = pool.putconn  # type: ignore[method-assign]
        return engine

    def _engine(self, creator: Any, **options: Any) -> Engine:
        return create_engine(
            "postgresql+psycopg://",
            creator=creator,
            max_overflow=0,
            pool_timeout=self.settings.connect_timeout_seconds,
            pool_use_lifo=True,
            # Parameters are what people said to their agents: never in an error or a log.
            hide_parameters=True,
            **options,
        )

    def _connect(self, parameters: Mapping[str, Any]) -> psycopg.Connection[Any]:
        conn = psycopg.connect(
            **{
                "connect_timeout": max(2, round(self.settings.connect_timeout_seconds)),
                "application_name": "hermes-actor",
                "tcp_user_timeout": round(self.settings.statement_timeout_seconds * 1000),
                **parameters,
            },
            autocommit=True,
        )
        try:
            conn.execute(
                "SELECT set_config('statement_timeout', %s, false),"
                " set_config('synchronous_commit', %s, false),"
                " set_config('default_transaction_isolation', 'read committed', false),"
                " set_config('client_encoding', 'UTF8', false)",
                (
                    str(round(self.settings.statement_timeout_seconds * 1000)),
                    self.settings.synchronous_commit,
                ),
            )
            conn.autocommit = False
        except BaseException:
            conn.close()
            raise
        return conn

    def judge(self, error: BaseException) -> Judgement:
        return judge(error)

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
            conn.execute(
                text("SELECT pg_advisory_xact_lock(hashtext('hermes-actor ' || current_schema()))")
            )
            yield conn

    def has_table(self, conn: Connection, name: str) -> bool:
        # Only in the schema in which it would be made, and from the catalogue itself: to_regclass
        # may answer from what this connection knew before it waited for the lock.
        found = text(
            "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = :t"
        )
        return conn.execute(found, {"t": name}).scalar() is not None

    def create(self, conn: Connection) -> None:
        # All or nothing, so nothing is there; what SQLAlchemy would look for may be visible in
        # another schema.
        metadata.create_all(conn, checkfirst=False)
        for statement in (_CHANGES_COLUMN, _CHANGES_INDEX):
            conn.execute(text(statement))
        self.make_words(conn)
        for index in self.search_indexes(conn):
            conn.execute(index)

    def make_words(self, conn: Connection) -> None:
        """Make the column of words, unless it is there; every row is written anew for it."""
        conn.execute(text(_WORDS_COLUMN))

    def search_indexes(self, conn: Connection) -> list[Executable]:
        """What makes missing indexes for searches; the one that takes longest comes first."""
        schema = self._extension(conn)
        trigrams = [] if schema is None else [text(_TRIGRAM_INDEX.format(schema=schema))]
        return [*trigrams, text(_WORDS_INDEX)]

    def _extension(self, conn: Connection) -> str | None:
        """The schema of ``pg_trgm``, which is made if it may be; ``None`` without it."""
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

    @staticmethod
    def _first_line(error: BaseException) -> str:
        return str(getattr(error, "orig", error)).splitlines()[0]

    # --- statements --------------------------------------------------------------------------

    def insert_unless_there(
        self, conn: ServerConnection, table: Table, values: Mapping[str, Any]
    ) -> bool:
        return conn.execute(_insert_unless_there(table), values).first() is not None

    def upsert(
        self,
        conn: ServerConnection,
        table: Table,
        values: Mapping[str, Any],
        changed: Sequence[str],
    ) -> None:
        statement = insert(table)
        conn.execute(
            statement.on_conflict_do_update(
                index_elements=list(table.primary_key.columns),
                set_={name: statement.excluded[name] for name in changed},
            ),
            values,
        )

    def limit_statements(self, conn: Connection, seconds: float | None) -> None:
        if seconds is not None:  # else the connection has the limit already
            conn.execute(
                text("SELECT set_config('statement_timeout', :ms, true)"),
                {"ms": str(max(1, round(seconds * 1000)))},
            )

    def begin_snapshot(self, conn: Connection) -> None:
        conn.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))

    # --- search ------------------------------------------------------------------------------

    def like(self, column: ColumnElement[Any] | Column[Any], pattern: str) -> ColumnElement[bool]:
        return searching.plain(column).ilike(pattern, escape="\\")

    def before_nul(self, column: Column[Any]) -> ColumnElement[Any]:
        return func.split_part(column, searching.mark(KEPT_NUL), 1)

    def contains_words(self, tree: Node) -> tuple[ColumnElement[bool], ColumnElement[Any]]:
        query = searching.words_query(tree)
        return searching.words_match(query), searching.words_rank(query)

    def contains_parts(self, tree: Node) -> ColumnElement[bool]:
        return searching.parts_match(tree)

    def headlines(self, conn: ServerConnection, tree: Node, ids: list[int]) -> dict[int, str]:
        return searching.headlines(conn, tree, ids)

    def similar(self, wanted: str) -> tuple[ColumnElement[bool], ColumnElement[Any]]:
        return searching.similar(self.text(wanted))

    # --- changes -----------------------------------------------------------------------------

    def tell_followers(self, conn: ServerConnection) -> None:
        # NOTIFY makes commits wait for each other, so it is left out when nobody listens.
        conn.execute(_TELL)

    def an_hour_ago(self) -> ColumnElement[Any]:
        return func.now() - text("interval '1 hour'")

    def place_after(self, conn: ServerConnection, after: int | None) -> Place:
        if after is None:
            return (conn.scalar(_FINISHED), 2**62)  # after all changes of that transaction
        rows = conn.tuples(_PLACE, {"after": after})
        return rows[0] if rows else (0, 0)

    def changes_after(self, conn: ServerConnection, place: Place, limit: int) -> list[Step]:
        bound = {"xid": place[0], "after": place[1], "some": limit}
        return [
            Step((xid, number), number, op, session_id)
            for xid, number, op, session_id in conn.tuples(_NEXT, bound)
        ]

    def listen(self, engine: Engine, heard: threading.Event, stop: threading.Event) -> None:
        # A connection of its own: it is held for as long as somebody follows.
        with closing(_raw(engine)) as conn:
            conn.autocommit = True
            conn.execute(f"LISTEN {CHANNEL}")
            me = {"client": os.urandom(16).hex(), "seconds": 3 * _FOLLOW_SECONDS}
            while not stop.is_set():
                conn.execute(_FOLLOW, me)
                heard.set()
                renew = time.monotonic() + _FOLLOW_SECONDS
                while time.monotonic() < renew and not stop.is_set():
                    for _ in conn.notifies(timeout=_NOTICE_SECONDS, stop_after=1):
                        heard.set()
            conn.execute("DELETE FROM hermes_actor_followers WHERE client = %(client)s", me)


@cache
def _insert_unless_there(table: Table) -> Any:
    return insert(table).on_conflict_do_nothing().returning(*table.primary_key.columns)


def _raw(engine: Engine) -> psycopg.Connection[Any]:
    fairy = engine.raw_connection()
    conn = cast("psycopg.Connection[Any]", fairy.driver_connection)
    fairy.detach()
    return conn


def _parameters(url: str) -> dict[str, Any]:
    """The parameters of libpq in a URL, or in a connection string of ``key=value`` words."""
    for scheme in ("postgresql+psycopg://", "postgres+psycopg://"):
        if url.startswith(scheme):
            url = "postgresql://" + url[len(scheme) :]
    try:
        parameters: dict[str, Any] = conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        # What libpq says may repeat a part of the text, and a password can be in any part.
        raise BadConfig("the address of the PostgreSQL server cannot be understood") from (
            None if url else error
        )
    if "," in str(parameters.get("host", "")):
        # Of several servers only the one that takes changes will do.
        parameters.setdefault("target_session_attrs", "read-write")
    return parameters


_TELL = select(func.pg_notify(CHANNEL, func.current_schema())).where(
    select(followers.c.client).where(followers.c.until > func.now()).exists()
)

_FINISHED = text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1")
_PLACE = text("SELECT xid, commit_no FROM hermes_actor_changes WHERE commit_no = :after")
_xid: ColumnElement[Any] = literal_column("xid")
_NEXT = text(
    "SELECT xid, commit_no, op, session_id FROM hermes_actor_changes"
    " WHERE (xid, commit_no) > (:xid, :after)"
    " AND xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
    " ORDER BY xid, commit_no LIMIT :some"
).columns(_xid, changes.c.commit_no, changes.c.op, changes.c.session_id)
_FOLLOW = (
    "INSERT INTO hermes_actor_followers (client, until)"
    " VALUES (%(client)s, now() + make_interval(secs => %(seconds)s))"
    " ON CONFLICT (client) DO UPDATE SET until = excluded.until"
)
