"""Interface of the differences between servers; one class per kind of server implements it.

Everything else in this package is written once, in SQLAlchemy Core.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    Table,
    and_,
    func,
    not_,
    or_,
    select,
    text,
    true,
)

from hermes_actor.errors import HermesActorError, Unsupported
from hermes_actor.providers.sql.query_tree import Node, Not, Or, Phrase
from hermes_actor.providers.sql.tables import changes
from hermes_actor.store.rows import Row
from hermes_actor.write_rules import NO_RULES, WriteRules

if TYPE_CHECKING:
    import threading

    from hermes_actor.api.provider import Capabilities
    from hermes_actor.providers.sql.connection import ServerConnection
    from hermes_actor.providers.sql.receipts import Ticket

__all__ = [
    "COMMITTED", "Classification", "Cursor", "RetryAction", "ServerDialect", "Settings", "Step",
]  # fmt: skip

Cursor: TypeAlias = tuple[int, ...]
"""A position in the order of changes; opaque outside of the dialect."""


class Step(NamedTuple):
    """One change, and the cursor after it."""

    place: Cursor
    commit_no: int
    op: str
    session_id: str | None


class Settings(NamedTuple):
    """Settings of a store on a server."""

    pool_size: int = 8
    statement_timeout_seconds: float = 30.0
    connect_timeout_seconds: float = 10.0
    synchronous_commit: str = "on"
    similarity: bool = False
    rules: WriteRules = NO_RULES

    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of ``create_engine`` that are the same for all servers."""
        return {
            "pool_size": self.pool_size,
            "max_overflow": 0,
            "pool_timeout": self.connect_timeout_seconds,
            "pool_use_lifo": True,
            # Parameters are what people said to their agents: never in an error or a log.
            "hide_parameters": True,
        }


COMMITTED = "hermes_actor_committed"
"""In the facts of a connection: nothing was sent since its transaction was committed, so the pool
may take it back without a rollback."""


class RetryAction(Enum):
    """Reaction to an error of a server."""

    RAISE = "raise"
    """The request is at fault, or a retry will not help soon."""
    RETRY = "retry"
    """The server rolled the transaction back; the same one may succeed."""
    RETRY_LATER = "retry later"
    """The server has no room for a connection now; nothing was begun."""
    RECONNECT = "reconnect"
    """The connection is lost. A commit that was under way may have happened."""


class Classification(NamedTuple):
    """Reaction to an error, and the error that callers get."""

    action: RetryAction
    error: HermesActorError
    once: bool = False
    """True if it is retried only once."""


class ServerDialect(ABC):
    """Base of the dialects: everything that differs between kinds of server."""

    name: ClassVar[str]
    messages: ClassVar[Table]
    """The table of messages for inserts: with the column ``words``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    # --- connecting --------------------------------------------------------------------------

    @abstractmethod
    def engine(self, url: str) -> Engine:
        """Return an engine with a pool of its own for the store at *url*, without connecting."""

    @abstractmethod
    def classify(self, error: BaseException) -> Classification:
        """Return the reaction to an error of the driver, and the error that callers get."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return what the store promises on this server, with these settings."""

    def durability_settings(self) -> dict[str, str]:
        """Return the settings that the declared durability depends on."""
        return {}

    # --- schema ------------------------------------------------------------------------------

    @abstractmethod
    def schema_lock(self, engine: Engine) -> AbstractContextManager[Connection]:
        """Give a connection that holds the lock on the schema, for the block.

        One process at a time gets it, on any machine. The changes of the block are committed at its
        end.
        """

    @abstractmethod
    def has_table(self, conn: Connection, name: str) -> bool:
        """Return True if the table exists in the schema of this store."""

    @abstractmethod
    def create(self, conn: Connection) -> None:
        """Create all tables and indexes that are missing; the caller holds the schema lock."""

    @abstractmethod
    def create_common(self, conn: Connection) -> None:
        """Create the tables of receipts and subscribers that are missing, and no others."""

    @abstractmethod
    def renew_words(self, conn: Connection) -> None:
        """Convert the words of messages to format 2, or drop them to be filled in again."""

    def lacks_words(self, conn: Connection) -> bool:
        """Return True if messages have no words yet, which must then be filled in."""
        return False

    @abstractmethod
    def prepare(self, conn: Connection) -> None:
        """Detect, at every opening, what the server supports."""

    @abstractmethod
    def complete(self, engine: Engine) -> None:
        """Build, at every opening, the indexes that an earlier version did not make."""

    # --- statements --------------------------------------------------------------------------

    @abstractmethod
    def insert_if_absent(
        self, conn: ServerConnection, table: Table, values: Mapping[str, Any]
    ) -> bool:
        """Insert a row unless its key exists; return True if it was inserted."""

    def upsert(
        self, conn: ServerConnection, table: Table, values: Row, kept: Sequence[str] = ()
    ) -> None:
        """Insert a row, or set all columns but *kept* of the row that has its key."""
        key = table.primary_key.columns
        changed = [name for name in values if name not in key and name not in kept]
        conn.execute(self.upsert_statement(table, changed), values)

    @abstractmethod
    def upsert_statement(self, table: Table, changed: list[str]) -> Executable:
        """Return an insert that sets the columns *changed* of a row that has the key."""

    @abstractmethod
    def limit_statements(self, conn: Connection, seconds: float | None) -> None:
        """Limit each statement of this transaction to *seconds*, on the server.

        ``None``: the limit of the settings.
        """

    @contextmanager
    def limited_reads(self, conn: Connection, seconds: float) -> Iterator[None]:
        """Limit each statement of the block, which reads in one transaction, on the server."""
        self.limit_statements(conn, seconds)
        yield

    def one_statement(self, ticket: Ticket) -> tuple[Executable, Mapping[str, Any]] | None:
        """Return a change with its receipt as one statement; ``None`` if it takes several.

        The statement returns one row, whose first value is the result, or no row and then it has
        changed nothing. A receipt that exists makes it fail with an ``IntegrityError``.
        """
        return None

    def notes_last(self, ticket: Ticket) -> bool:
        """Return True for a change that takes fewer round trips with its receipt after it."""
        return False

    def for_one_read(self, conn: Connection) -> Connection:
        """Return *conn* as a single statement that reads needs it, with the fewest round trips."""
        return conn.execution_options(isolation_level="AUTOCOMMIT")

    def begin_snapshot(self, conn: Connection) -> None:
        """Have all statements of the transaction that begins now see one state."""
        conn.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))

    @abstractmethod
    def words_column(self, values: Mapping[str, Any]) -> str:
        """Return the value of the column ``words`` for a message."""

    def message_values(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of a message to insert: *values* and its ``words``."""
        return {**values, "words": self.words_column(values)}

    # --- search ------------------------------------------------------------------------------

    @abstractmethod
    def like(self, column: ColumnElement[Any] | Column[Any], pattern: str) -> ColumnElement[bool]:
        r"""Return a ``LIKE`` condition, escape ``\``, that ignores at least the case of A to Z."""

    @abstractmethod
    def before_nul(self, column: Column[Any]) -> ColumnElement[Any]:
        """Return the part of a text before its first NUL: all that SQLite's LIKE sees."""

    def may_contain(self, conn: ServerConnection, terms: Sequence[str]) -> ColumnElement[bool]:
        """Return a condition that an index answers, and every message with one of *terms* meets."""
        return true()

    @abstractmethod
    def contains_words(
        self, conn: ServerConnection, tree: Node
    ) -> tuple[ColumnElement[bool], ColumnElement[Any]]:
        """Return a condition and a rank: messages that match a tree of words."""

    @abstractmethod
    def contains_part(self, part: str) -> ColumnElement[bool]:
        """Return a condition: messages that hold the text *part*, in any searched column."""

    def contains_parts(self, tree: Node) -> ColumnElement[bool]:
        """Return a condition: messages that match a tree of parts of texts."""
        if isinstance(tree, Phrase):
            return self.contains_part(tree.text)
        if isinstance(tree, Not):
            return and_(self.contains_parts(tree.kept), not_(self.contains_parts(tree.dropped)))
        join = or_ if isinstance(tree, Or) else and_
        return join(*map(self.contains_parts, tree.parts))

    def headlines(self, conn: ServerConnection, tree: Node, ids: list[int]) -> dict[int, str]:
        """Return snippets, by id, for hits that FTS5 would not have found."""
        return {}

    def similar(self, wanted: str) -> tuple[ColumnElement[bool], ColumnElement[Any]]:
        """Return a condition and a distance: messages that hold something like *wanted*."""
        raise Unsupported(f"{self.name} does not tell how similar texts are")

    # --- changes -----------------------------------------------------------------------------

    @abstractmethod
    def notify_subscribers(self, conn: ServerConnection) -> None:
        """Have subscribers woken when the transaction of *conn* commits."""

    @abstractmethod
    def one_hour_ago(self) -> ColumnElement[Any]:
        """Return an SQL expression for the time one hour ago, by the server's clock."""

    @abstractmethod
    def place_after(self, conn: ServerConnection, after: int | None) -> Cursor:
        """Return the cursor after ``commit_no`` *after*; ``None``: from now on."""

    def newest_change(self, conn: ServerConnection) -> int:
        """Return the ``commit_no`` that a follower who has seen all changes goes on from."""
        return self.known_changes(conn)[1]

    @abstractmethod
    def changes_after(self, conn: ServerConnection, place: Cursor, limit: int) -> list[Step]:
        """Return the next changes, up to the first that an earlier one may still precede."""

    @abstractmethod
    def listen(self, engine: Engine, heard: threading.Event, stop: threading.Event) -> None:
        """Set *heard* whenever there may be changes, until *stop* is set.

        Raises the error of the driver when the connection is lost.
        """

    @staticmethod
    def known_changes(conn: ServerConnection) -> tuple[int, int]:
        """Return the oldest and the newest ``commit_no`` with a receipt; 0 if there is none."""
        bounds = select(func.min(changes.c.commit_no), func.max(changes.c.commit_no))
        ((oldest, newest),) = conn.tuples(bounds)
        return oldest or 0, newest or 0
