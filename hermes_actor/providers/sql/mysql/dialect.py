"""MariaDB, from version 10.6 on, and MySQL, from version 8 on, through PyMySQL."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import pymysql
from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Integer,
    Table,
    Text,
    create_engine,
    event,
    func,
    insert,
    make_url,
    or_,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError
from sqlalchemy.pool import PoolResetState
from sqlalchemy.sql.expression import cast as sql_cast

from hermes_actor.api.provider import Capabilities
from hermes_actor.errors import BadConfig, Busy
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.dialect import COMMITTED, Cursor, ServerDialect, Step
from hermes_actor.providers.sql.mysql import search as searching
from hermes_actor.providers.sql.mysql.errors import (
    DUPLICATE_KEY,
    NOT_WAITED_FOR,
    classify,
    number_of,
)
from hermes_actor.providers.sql.query_tree import Node
from hermes_actor.providers.sql.receipts import Ticket
from hermes_actor.providers.sql.schema import fill_words
from hermes_actor.providers.sql.tables import COMMON, changes, messages, metadata
from hermes_actor.providers.sql.types import KEPT_NUL
from hermes_actor.write_rules import NO_RULES
from hermes_protocol.operations import MessageAppend

__all__ = ["MySQLDialect"]

_LOCK_SECONDS = 60
_POLL_SECONDS = 0.2
_GAP_SECONDS = 1
"""Longest time until a number that is missing between two changes turns up."""

_PARAMETERS = {
    *inspect.signature(pymysql.connections.Connection).parameters,
    # These SQLAlchemy puts together for the driver.
    *("ssl_capath", "ssl_cipher", "ssl_check_hostname"),
}


class MySQLDialect(ServerDialect):
    """One transaction per change, READ COMMITTED; order and uniqueness come from row locks."""

    name: ClassVar[str] = "mysql"
    messages: ClassVar[Table] = searching.messages_with_words

    # --- connecting --------------------------------------------------------------------------

    def engine(self, url: str) -> Engine:
        limit = max(1, round(self.settings.statement_timeout_seconds))
        engine = create_engine(
            _with_driver(url),
            **self.settings.engine_options(),
            pool_reset_on_return=None,
            isolation_level="READ COMMITTED",
            connect_args={
                "charset": "utf8mb4",
                "connect_timeout": max(1, round(self.settings.connect_timeout_seconds)),
                # The driver cannot tell a slow statement from a dead server; it waits longer.
                "read_timeout": limit + 5,
                "write_timeout": limit + 5,
                # Strict: a value that does not fit is refused and not cut.
                "init_command": "SET SESSION sql_mode = 'STRICT_TRANS_TABLES,"
                "NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO',"
                f" innodb_lock_wait_timeout = {limit}",
            },
        )
        event.listen(engine, "reset", _reset)
        return engine

    classify = staticmethod(classify)

    def capabilities(self) -> Capabilities:
        kinds = frozenset({"words", "phrases", "prefixes", "cjk", "substrings"})
        return Capabilities("synced", "polled", kinds, many_hosts=True, private_sql=False)

    # --- schema ------------------------------------------------------------------------------

    @contextmanager
    def schema_lock(self, engine: Engine) -> Iterator[Connection]:
        # A lock of the session: every statement that changes a schema commits by itself here.
        with engine.connect() as conn:
            lock = text("SELECT GET_LOCK(CONCAT('hermes-actor ', DATABASE()), :seconds)")
            if not conn.execute(lock, {"seconds": _LOCK_SECONDS}).scalar():
                raise Busy("another process has been making the tables for a minute")
            try:
                yield conn
                conn.commit()
            finally:
                conn.execute(text("SELECT RELEASE_LOCK(CONCAT('hermes-actor ', DATABASE()))"))

    def has_table(self, conn: Connection, name: str) -> bool:
        found = text(
            "SELECT 1 FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_name = :name"
        )
        return conn.execute(found, {"name": name}).scalar() is not None

    def create(self, conn: Connection) -> None:
        # Every one by itself, and only if it is missing: a process that died here is followed by
        # one that goes on.
        metadata.create_all(conn, checkfirst=True)
        conn.execute(text("ALTER TABLE sessions MODIFY place BIGINT NOT NULL AUTO_INCREMENT"))
        if not searching.has_words(conn):
            conn.execute(text(searching.ADD_WORDS))

    def create_common(self, conn: Connection) -> None:
        metadata.create_all(conn, tables=COMMON, checkfirst=True)

    def renew_words(self, conn: Connection) -> None:
        # Only text that is not ASCII was cut in another way.
        searched = (messages.c.content, messages.c.tool_name, messages.c.tool_calls)
        fill_words(
            conn.engine,
            self,
            or_(*(func.length(column) != func.char_length(column) for column in searched)),
        )

    def prepare(self, conn: Connection) -> None:
        """Do nothing: no optional feature has to be detected."""

    def complete(self, engine: Engine) -> None:
        """Do nothing: every version has made the same indexes."""

    # --- statements --------------------------------------------------------------------------

    def insert_if_absent(
        self, conn: ServerConnection, table: Table, values: Mapping[str, Any]
    ) -> bool:
        # Not INSERT IGNORE, which ignores foreign keys too. A refused row undoes only itself.
        try:
            conn.execute(insert(table), values)
        except IntegrityError as error:
            if number_of(error) != DUPLICATE_KEY:
                raise
            return False
        return True

    def upsert_statement(self, table: Table, changed: list[str]) -> Executable:
        row = mysql.insert(table)
        return row.on_duplicate_key_update({name: row.inserted[name] for name in changed})

    def limit_statements(self, conn: Connection, seconds: float | None) -> None:
        # What a change waits for is locks, and whole seconds are all that there is. The setting
        # stays with the connection, so it is put back by the next who does not need it.
        wanted = self.settings.statement_timeout_seconds if seconds is None else seconds
        if seconds is not None or "limited" in conn.info:
            limit = max(1, round(wanted))
            conn.execute(text(f"SET SESSION innodb_lock_wait_timeout = {limit}"))
            conn.info["limited"] = True
        if seconds is None:
            conn.info.pop("limited", None)

    @contextmanager
    def limited_reads(self, conn: Connection, seconds: float) -> Iterator[None]:
        # The two servers have one setting each. It stays with the connection, so it is put back.
        name, limit = ("max_statement_time", f"{seconds:.3f}")
        if not conn.dialect.is_mariadb:  # type: ignore[attr-defined]
            name, limit = "max_execution_time", str(max(1, round(seconds * 1000)))
        conn.execute(text(f"SET SESSION {name} = {limit}"))
        try:
            yield
        finally:
            if not conn.invalidated:
                conn.execute(text(f"SET SESSION {name} = DEFAULT"))

    def notes_last(self, ticket: Ticket) -> bool:
        # Only of this change is the result known after a statement of its own. What is looked at
        # first, such as a turn, is read in the general way, under the lock of the receipt.
        operation = ticket.operation
        return (
            type(operation) is MessageAppend
            and not operation.turn
            and self.settings.rules == NO_RULES
        )

    def for_one_read(self, conn: Connection) -> Connection:
        # Into autocommit and back would be four statements more. The transaction that the
        # statement opens is READ COMMITTED, and ends when the connection returns to the pool.
        return conn

    words_column = staticmethod(searching.words_column)

    # --- search ------------------------------------------------------------------------------

    def like(self, column: ColumnElement[Any] | Column[Any], pattern: str) -> ColumnElement[bool]:
        # MySQL knows no folding of A to Z alone: é is É here. Both sides by the server, which has
        # other rules than Python for letters such as İ and ς.
        return func.lower(column, type_=Text()).like(func.lower(pattern), escape="\\")

    def before_nul(self, column: Column[Any]) -> ColumnElement[Any]:
        return func.substring_index(column, KEPT_NUL, 1, type_=Text())

    def contains_words(
        self, conn: ServerConnection, tree: Node
    ) -> tuple[ColumnElement[bool], ColumnElement[Any]]:
        return searching.words_match(tree), searching.words_rank(tree)

    contains_part = staticmethod(searching.part_match)

    # --- changes -----------------------------------------------------------------------------

    def notify_subscribers(self, conn: ServerConnection) -> None:
        """Do nothing: subscribers poll."""

    def one_hour_ago(self) -> ColumnElement[Any]:
        return func.now() - text("INTERVAL 1 HOUR")

    def place_after(self, conn: ServerConnection, after: int | None) -> Cursor:
        return (self.known_changes(conn)[1] if after is None else after,)

    def changes_after(self, conn: ServerConnection, place: Cursor, limit: int) -> list[Step]:
        old = (changes.c.at <= func.now() - text(f"INTERVAL {_GAP_SECONDS} SECOND")).label("old")
        statement = (
            select(changes.c.commit_no, changes.c.op, changes.c.session_id, sql_cast(old, Integer))
            .where(changes.c.commit_no > place[0])
            .order_by(changes.c.commit_no)
            .limit(limit)
        )
        steps: list[Step] = []
        last = place[0]
        for number, op, session_id, is_old in conn.tuples(statement):
            # A number is drawn before its change is committed, so one that is missing may come
            # yet: it is passed over when what came after it has been there for a while, and no
            # open transaction has it.
            if number > last + 1 and not (is_old and self._are_free(conn, last, number)):
                break
            steps.append(Step((number,), number, op, session_id))
            last = number
        return steps

    @staticmethod
    def _are_free(conn: ServerConnection, after: int, before: int) -> bool:
        """Return True if no open transaction has inserted a change between two numbers.

        An inserted row is locked until its transaction ends, so asking for a lock without waiting
        finds it out, and needs no privilege.
        """
        one = select(changes.c.commit_no).where(
            changes.c.commit_no > after, changes.c.commit_no < before
        )
        try:
            conn.execute(one.with_for_update(read=True, nowait=True)).fetchall()
        except DBAPIError as error:
            if number_of(error) not in NOT_WAITED_FOR:
                raise
            return False
        return True

    def listen(self, engine: Engine, heard: threading.Event, stop: threading.Event) -> None:
        while not stop.wait(_POLL_SECONDS):
            heard.set()


def _reset(connection: Any, record: Any, state: PoolResetState) -> None:
    """Roll back what a connection brings back to the pool, unless nothing is open there.

    The driver sends a ROLLBACK always: a round trip for each change, after its COMMIT.
    """
    committed = record.info.pop(COMMITTED, False)
    if not (committed or state.transaction_was_reset or state.terminate_only):
        connection.rollback()


def _with_driver(url: str) -> URL:
    """Return *url* with PyMySQL as its driver. Raises :class:`BadConfig` if it is malformed."""
    try:
        made = make_url(url)
    except (ArgumentError, ValueError):  # the second for a port that is none
        made = None
    if "," in re.sub(r".*@|[/?].*", "", url.partition("://")[2]):
        raise BadConfig(
            "the address of a MySQL server names one host; for several servers name a proxy or an"
            " address that moves with the primary"
        )
    if made is None or not made.database:
        # Not repeated: a password can be in any part of it.
        raise BadConfig(
            "the address of the MySQL server cannot be understood;"
            " write mysql://user:password@host/database"
        ) from None
    unknown = sorted(set(made.query) - _PARAMETERS)
    if unknown:
        raise BadConfig(f"the address of the MySQL server has an unknown parameter {unknown[0]}")
    return made.set(drivername="mysql+pymysql")
