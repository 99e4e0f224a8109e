"""Files with sessions and messages: their schema, their operations and their full-text indexes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hermes_actor import limits
from hermes_actor.engine.authorizer import GuestRules
from hermes_actor.engine.index.fulltext import broken_parts, create_fulltext
from hermes_actor.engine.index.maintenance import IndexMaintenance
from hermes_actor.engine.kinds.kind import Kind, LeaseLimits
from hermes_actor.engine.meta_table import create_meta_tables
from hermes_actor.engine.startup.schema_columns import missing_columns, stored_version
from hermes_actor.store.changes import change_of
from hermes_actor.store.dispatch import apply
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import (
    DEFERRED_INDEX_SQL,
    NEWEST_KNOWN_VERSION,
    OWN_INDEXES,
    OWN_SQL,
    PLAIN_TABLES,
    SCHEMA_SQL,
    SCHEMA_VERSION,
    statements,
)
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.search.coverage import TABLES
from hermes_protocol.status import Phase, PhaseReport

if TYPE_CHECKING:
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.startup.open_database import Opening
    from hermes_actor.sqlite import Connection
    from hermes_protocol.messages import Changed
    from hermes_protocol.operations import Operation

__all__ = ["SESSIONS"]

_log = logging.getLogger("hermes_actor.engine")


class _Sessions(Kind):
    name = "sessions"
    format = 1
    own_sql = OWN_SQL
    newest_table = "hermes_actor_stale"
    # Off by default, and never stored in the file.
    settings: ClassVar[Mapping[str, int | str]] = {"foreign_keys": 1}
    guests = GuestRules(
        refusal="each statement is a transaction of its own; use _execute_write for several"
    )

    @property
    def leases(self) -> LeaseLimits:
        """Short ones: messages of all other processes wait meanwhile."""
        return LeaseLimits(
            limits.LEASE_TOTAL_SECONDS,
            limits.LEASE_IDLE_SECONDS,
            limits.STATEMENT_BESIDE_OTHERS_SECONDS,
        )

    def prepare(self, opening: Opening) -> None:
        """Create the schema, or migrate it to version 11 in one transaction, and set WAL mode."""
        conn = opening.conn
        if scalar(conn, "SELECT COUNT(*) FROM sqlite_master") == 0:
            opening.ensure_wal()
            opening.in_transaction(self._create_schema)
        elif not _is_current(conn):
            # Late import: in embedded mode hardly a file needs it.
            from hermes_actor.engine.startup.migrations import migrate

            _log.info("migrating %s", opening.paths.db)

            def progress(done: float) -> None:
                opening.on_phase(PhaseReport(Phase.MIGRATING, f"{done:.0%}"))

            opening.in_transaction(lambda conn: migrate(conn, progress))
        # Last: a file that cannot be migrated keeps its journal mode as well.
        opening.ensure_wal()
        version = stored_version(conn)
        if version is not None and version > NEWEST_KNOWN_VERSION:
            _log.warning(
                "%s has schema version %d; the newest that this build was tested with is %d. It is"
                " used as it is, and nothing of it is taken away",
                opening.paths.db, version, NEWEST_KNOWN_VERSION,
            )  # fmt: skip

    def _create_schema(self, conn: Connection) -> None:
        """Create everything at once, extra indexes too: they cost nothing in an empty file."""
        for statement in (*statements(SCHEMA_SQL), DEFERRED_INDEX_SQL):
            conn.execute(statement)
        conn.execute("INSERT INTO schema_version (version) VALUES (?)", (SCHEMA_VERSION,))
        for table in TABLES:
            create_fulltext(conn, table)
        for name, target in OWN_INDEXES.items():
            conn.execute(f"CREATE INDEX {name} ON {target}")
        create_meta_tables(conn, self)

    def read_schema(self, conn: Connection) -> None:
        """Read the features on which queries, operations and indexing depend."""
        features_of(conn)

    def apply(self, conn: Connection, operation: Operation[Any]) -> Any:
        """Apply any operation of the store."""
        return apply(conn, operation)

    def change_of(self, operation: Operation[Any], commit_no: int) -> Changed:
        """Return the notification, with the session that it is about."""
        return change_of(operation, commit_no)

    def index(
        self,
        connection: WriteConnection,
        checkpointer: Checkpointer,
        others_wait: Callable[[], bool],
    ) -> IndexMaintenance:
        """Return the full-text indexes and the extra ones."""
        return IndexMaintenance(connection, checkpointer, others_wait)


_NEEDED = frozenset({
    *PLAIN_TABLES, "idx_sessions_source", "idx_sessions_parent", "idx_sessions_started",
    "idx_messages_session", "idx_sessions_title_unique",
})  # fmt: skip


def _is_current(conn: Connection) -> bool:
    """Return True if nothing of the schema is missing, so that opening needs no write lock."""
    present = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    if not present >= _NEEDED:
        return False
    version = stored_version(conn)
    if version is None or version < SCHEMA_VERSION:
        return False
    return not missing_columns(conn) and not broken_parts(conn)


SESSIONS = _Sessions()
