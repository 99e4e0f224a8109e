"""Plain files: databases of other programs, which hold nothing of ours but the ``hermes_actor_*``
tables that exactly-once needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hermes_actor import limits
from hermes_actor.engine.authorizer import RUNS
from hermes_actor.engine.index.base import Index
from hermes_actor.engine.kinds.kind import Kind, LeaseLimits
from hermes_actor.engine.meta_table import create_meta_tables, lacks_meta_tables
from hermes_actor.errors import wrong_kind
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import COMMON_OWN_SQL

if TYPE_CHECKING:
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.startup.open_database import Opening
    from hermes_actor.sqlite import Connection
    from hermes_protocol.operations import Operation

__all__ = ["PLAIN"]


class _Plain(Kind):
    name = "plain"
    format = 2
    own_sql = COMMON_OWN_SQL
    newest_table = "hermes_actor_stage"
    # None: programs that bring their own SQL were written for SQLite's defaults.
    settings: ClassVar[Mapping[str, int | str]] = {}
    guests = RUNS

    @property
    def leases(self) -> LeaseLimits:
        """Longer ones than where the engine has work of its own: these programs wait for locks."""
        return LeaseLimits(
            limits.PLAIN_LEASE_TOTAL_SECONDS, limits.PLAIN_LEASE_IDLE_SECONDS, beside_others=None
        )

    def prepare(self, opening: Opening) -> None:
        """Create our tables and set WAL mode; the rest of the file stays as it is."""
        conn = opening.conn
        if lacks_meta_tables(conn, self):
            # Before the mode is changed, and in a commit of its own: a crash in between must not
            # lose the mode to which detach returns.
            mode = scalar(conn, "PRAGMA journal_mode")
            opening.in_transaction(lambda conn: create_meta_tables(conn, self, journal_mode=mode))
        opening.ensure_wal()

    def read_schema(self, conn: Connection) -> None:
        """Read nothing: statements find out for themselves."""

    def apply(self, conn: Connection, operation: Operation[Any]) -> Any:
        """Raise :class:`WrongKind`: SQL of guests is all that the file takes."""
        (_, _, db), *_ = conn.execute("PRAGMA database_list")
        raise wrong_kind(db, self.name, "sessions")

    def index(
        self,
        connection: WriteConnection,
        checkpointer: Checkpointer,
        others_wait: Callable[[], bool],
    ) -> Index:
        """Return the index that does nothing: those of the file are its programs' own."""
        return Index()


PLAIN = _Plain()
