"""Statements of guests, callers that bring SQL of their own, on the write connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hermes_actor import limits
from hermes_actor.engine.statement_limit import StatementLimit, interruptible
from hermes_actor.errors import Unsupported
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.guest_sql import names_index, run_statement

if TYPE_CHECKING:
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.index.base import Index
    from hermes_protocol.operations import SqlStatement

__all__ = ["GuestStatements"]


class GuestStatements:
    """Runs them inside the open transaction, within their limits."""

    def __init__(
        self,
        connection: WriteConnection,
        index: Index,
        others_wait: Callable[[], bool],
        *,
        allowed: bool,
    ) -> None:
        """*others_wait*: True if a job other than the running one waits for the writer."""
        self._connection = connection
        self._index = index
        self._others_wait = others_wait
        self._allowed = allowed

    def check_allowed(self) -> None:
        """Raise :class:`Unsupported` if guests may run no SQL."""
        if not self._allowed:
            raise Unsupported("SQL of clients is switched off (actor.private_sql)")

    def limit(
        self, end: float = float("inf"), is_gone: Callable[[], bool] = lambda: False
    ) -> StatementLimit:
        """Return the limit of a statement or a lease: to *end*, until the guest *is_gone*, and
        beside others for a short time (G13), whether it runs statements or pauses."""
        return StatementLimit(self._connection.env.monotonic, end, self._is_in_the_way, is_gone)

    def _is_in_the_way(self) -> bool:
        return self._others_wait() or self._connection.leave_by < float("inf")

    def run(self, statement: SqlStatement, limit: StatementLimit, *, in_lease: bool = False) -> Any:
        """Run *statement* and return its result; *in_lease*: as a part of a lease.

        Raises :class:`DeadlineExceeded` if *limit* ended it, :class:`NotAllowed`,
        :class:`IndexBehind`, or the error of SQLite.
        """
        self.check_allowed()
        conn, authorizer = self._connection.conn, self._connection.authorizer
        # A value that a statement makes up must not fill the memory before a row of it is seen.
        longest = conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.STAGED_MAX_BYTES)
        try:
            with interruptible(conn, limit):
                if names_index(statement.sql):
                    # Before the authorizer: indexing is the writer's own work.
                    self._index.index_in_transaction()
                authorizer.enter_guest(statement.sql, in_lease=in_lease)
                result = run_statement(conn, statement)
        finally:
            conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            authorizer.leave_guest()
            # A guest may change the schema, the ids, or the index: derive all of it again.
            conn.layout = None
            self._connection.invalidate_schema()
        # What follows in this transaction must not get ids that count as indexed, nor have its
        # triggers passed over if they are not the known ones any more.
        self._index.guest_has_written()
        return result
