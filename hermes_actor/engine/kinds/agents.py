"""Files of an agent store: many agents in one file, each with a view of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hermes_actor import limits
from hermes_actor.engine.authorizer import GuestRules
from hermes_actor.engine.index.base import Index
from hermes_actor.engine.kinds.kind import Kind, LeaseLimits
from hermes_actor.engine.meta_table import create_meta_tables, lacks_meta_tables
from hermes_actor.errors import IncompatibleFormat, wrong_kind
from hermes_actor.store.inspection import may_hold_agents, recorded_kind
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import COMMON_OWN_SQL
from hermes_protocol.messages import Changed

if TYPE_CHECKING:
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.startup.open_database import Opening
    from hermes_actor.sqlite import Connection
    from hermes_protocol.operations import Operation

__all__ = ["AGENTS"]

_VERSION = "SELECT value FROM hermes_actor_meta WHERE key = 'agents_version'"


class _Agents(Kind):
    # Tables and changes are imported when a file of this kind is opened: no other actor pays.
    name = "agents"
    format = 3
    own_sql = COMMON_OWN_SQL
    newest_table = "hermes_actor_stage"
    settings: ClassVar[Mapping[str, int | str]] = {"foreign_keys": 1, "secure_delete": 1}
    guests = GuestRules(refusal="an agent store takes operations, not statements")

    @property
    def leases(self) -> LeaseLimits:
        """Short ones: the changes of all other processes wait meanwhile."""
        return LeaseLimits(
            limits.LEASE_TOTAL_SECONDS,
            limits.LEASE_IDLE_SECONDS,
            limits.STATEMENT_BESIDE_OTHERS_SECONDS,
        )

    def prepare(self, opening: Opening) -> None:
        """Create the tables of the registry, or refuse those of a newer build; set WAL mode."""
        from hermes_actor.agents.tables import VERSION

        conn = opening.conn
        if not may_hold_agents(conn):
            raise wrong_kind(opening.paths.db, recorded_kind(conn) or "plain", self.name)
        stored = None if lacks_meta_tables(conn, self) else scalar(conn, _VERSION)
        if stored is not None and stored > VERSION:
            raise IncompatibleFormat(
                f"{opening.paths.db} has tables of version {stored}; this build knows {VERSION}:"
                " update it. The file was not changed"
            )
        opening.ensure_wal()
        if stored != VERSION:
            opening.in_transaction(self._create_schema)

    def _create_schema(self, conn: Connection) -> None:
        from hermes_actor.agents.schema import SQLITE, create_statements
        from hermes_actor.agents.tables import VERSION

        create_meta_tables(conn, self)
        for statement in create_statements(SQLITE):
            conn.execute(statement)
        conn.execute(
            "INSERT OR REPLACE INTO hermes_actor_meta VALUES ('agents_version', ?)", (VERSION,)
        )

    def read_schema(self, conn: Connection) -> None:
        """Read nothing: the schema is that of the registry."""

    def apply(self, conn: Connection, operation: Operation[Any]) -> Any:
        """Apply a change of an agent store."""
        from hermes_actor.agents.changes import apply
        from hermes_actor.agents.rows import FileRows

        return apply(FileRows(conn), operation)

    def change_of(self, operation: Operation[Any], commit_no: int) -> Changed:
        """Return the notification, with the table and the agent that it is about."""
        from hermes_actor.agents.notes import change_of

        return change_of(operation, commit_no)

    def index(
        self,
        connection: WriteConnection,
        checkpointer: Checkpointer,
        others_wait: Callable[[], bool],
    ) -> Index:
        """Return the index that does nothing: words are columns of the rows themselves."""
        return Index()


AGENTS = _Agents()
