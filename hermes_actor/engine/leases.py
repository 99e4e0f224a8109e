"""Leases: a transaction that one guest holds open, statement by statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Raw, structs

from hermes_actor.engine.connection import TransactionLost
from hermes_actor.engine.jobs import Outcome, Request, decoded
from hermes_actor.engine.staged_parts import LeaseParts, encode_result
from hermes_actor.errors import (
    DeadlineExceeded,
    HermesActorError,
    OutcomeUnknown,
    RequestError,
    Unsupported,
    ValueTooLarge,
)
from hermes_actor.sqlite import primary_code, sqlite3
from hermes_actor.store.guest_sql import RowBudget, keeps_a_part, names_messages, quoted
from hermes_protocol.operations import SqlRun, SqlStatement, Staged, StagePart

if TYPE_CHECKING:
    from hermes_actor.engine.change_transaction import ChangeTransaction
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.guest_settings import Settings
    from hermes_actor.engine.guest_statements import GuestStatements
    from hermes_actor.engine.index.base import Index
    from hermes_actor.engine.jobs import LeaseTerms
    from hermes_actor.engine.kinds import LeaseLimits
    from hermes_actor.engine.receipts import Receipts
    from hermes_actor.engine.statement_limit import StatementLimit
    from hermes_protocol.operations import SqlReply, SqlResult, SqlStep

__all__ = ["LeaseRunner"]

R = TypeVar("R")


class LeaseRunner:
    """The writer's side of leases. There is one at a time; nothing else runs until it ends."""

    def __init__(
        self,
        connection: WriteConnection,
        receipts: Receipts,
        transaction: ChangeTransaction,
        index: Index,
        guests: GuestStatements,
    ) -> None:
        self._connection = connection
        self._receipts = receipts
        self._transaction = transaction
        self._index = index
        self._guests = guests
        self._parts = LeaseParts()
        self.statements = 0
        """Statements of the open lease, or of the last one."""
        self.last = ""
        """The last of them, shortened."""
        self.has_changed = False
        """True once a statement of the lease has changed something."""

    def begin(
        self, deadline: float, settings: Settings | None = None, *, may_share: bool = False
    ) -> None:
        """Open a transaction for one guest, under the *settings* of its connection.

        *may_share*: its commit may leave the sync to others. Raises the reason if there is none by
        *deadline*.
        """
        self._guests.check_allowed()
        self.statements, self.last, self.has_changed = 0, "", False
        if self._index.damage is not None:
            self._index.rebuild()  # an earlier lease was lost by it
        failed = self._connection.begin(deadline, settings, may_share=may_share)
        if failed is not None:
            raise failed

    def limits(self, terms: LeaseTerms | None = None) -> LeaseLimits:
        """Return the limits of a lease on this kind of file, or those under *terms*.

        Raises :class:`NotAllowed` if there are no leases of so many seconds.
        """
        leases = self._connection.kind.leases
        if terms is None or terms.seconds is None:
            return leases
        return leases.lasting(terms.seconds, terms.pause)

    def limit(
        self, leases: LeaseLimits, is_gone: Callable[[], bool] = lambda: False
    ) -> StatementLimit:
        """Return the limit of a lease that begins now; see :meth:`GuestStatements.lease_limit`."""
        return self._guests.lease_limit(leases, is_gone)

    def run(
        self, statement: SqlStatement | SqlRun | Raw, limit: StatementLimit | None = None
    ) -> Any:
        """Run one statement of the guest, or a run of several, within the *limit* of its lease, and
        return the result.

        One that is larger than a frame comes in parts. One that fails leaves the transaction open;
        one that is interrupted does not.
        """
        if not self._connection.conn.in_transaction:
            raise RequestError("an earlier statement has ended the transaction")
        operation = decoded(statement)
        if isinstance(operation, StagePart):
            self._parts.keep(operation)
            return None
        if isinstance(operation, Staged):
            operation = self._parts.take(operation)
        limit = limit or self.limit(self.limits())
        try:
            if isinstance(operation, SqlRun):
                self._note([step.sql for step in operation.steps])
                return self._run_steps(operation, limit)
            if isinstance(operation, SqlStatement):
                self._note([operation.sql])
                self.has_changed = True
                return self._run_statement(operation, limit)
        except (DeadlineExceeded, ValueTooLarge):
            # It has run, and cannot be undone alone: it must not be committed with the rest.
            self._transaction.roll_back()
            raise
        raise Unsupported("a lease runs statements only")

    def _note(self, statements: list[str]) -> None:
        self.statements += len(statements)
        if statements:
            self.last = quoted(statements[-1])

    def _run_steps(self, run: SqlRun, limit: StatementLimit) -> SqlReply:
        def retry(step: SqlStep, error: sqlite3.Error) -> SqlResult:
            # The rows before the failing one of a repeated statement are kept: not run again.
            repeated = step.rows is not None or step.named_rows is not None
            if repeated or not self._may_be_the_index(step.sql, error):
                raise error
            return self._without_index(
                error, lambda: self._guests.run_step(step, limit, RowBudget(), in_lease=True)
            )

        # The program may have changed some since the transaction began.
        self._connection.settings.apply(run.settings, inside=True)
        reply, changed = self._guests.run_steps(run, limit, retry, in_lease=True)
        self.has_changed = self.has_changed or changed
        return reply

    def _run_statement(self, statement: SqlStatement, limit: StatementLimit) -> Any:
        try:
            return self._guests.run(statement, limit, in_lease=True)
        except HermesActorError:
            raise  # some are errors of sqlite3 as well
        except sqlite3.Error as error:
            explained = self._connection.explain(error)
            if not self._may_be_the_index(statement.sql, error):
                raise explained from error
            try:
                return self._without_index(
                    error, lambda: self._guests.run(statement, limit, in_lease=True)
                )
            except sqlite3.Error:
                raise explained from error

    def _may_be_the_index(self, sql: str, error: sqlite3.Error) -> bool:
        """Return True if another try without the index may succeed, and is allowed."""
        # Only changes of messages fire the triggers; any other statement failed by itself.
        if not self._index.may_have_caused(error) or not names_messages(sql):
            return False
        if not self._connection.conn.in_transaction:
            # What the lease had done is lost with it. The next one must not meet the same damage.
            if primary_code(error) == sqlite3.SQLITE_CORRUPT:
                self._index.report_damage(error)
            return False
        # A statement like INSERT OR FAIL keeps the rows before the failing one: run again, it would
        # apply them twice.
        return not keeps_a_part(sql)

    def _without_index(self, error: sqlite3.Error, run: Callable[[], R]) -> R:
        """Try a statement that has failed with *error* once more, without the index (G7).

        Raises *error* if that fails, too.
        """
        conn, savepoint = self._connection.conn, self._connection.authorizer.savepoint
        conn.execute(f"SAVEPOINT {savepoint}")
        try:
            self._index.drop_triggers()
            result = run()
            self._index.forget_contents(error)
        except Exception:
            if conn.in_transaction:
                conn.execute(f"ROLLBACK TO {savepoint}")
                conn.execute(f"RELEASE {savepoint}")
                conn.layout = None
            raise error from None
        conn.execute(f"RELEASE {savepoint}")
        return result

    def run_and_end(
        self, last: SqlRun | Raw, commit: Request, limit: StatementLimit | None = None
    ) -> Outcome:
        """Run *last* and commit, with its reply as the result; roll back if a statement fails."""
        reply = self.run(last, limit)
        if reply.error is None:
            return self.end(commit, reply)
        self._transaction.roll_back()
        # Nothing is kept, so there is no receipt.
        failed = structs.replace(reply, open=False)
        return Outcome(Raw(encode_result(failed)), None, self._connection.commit_no)

    def end(self, commit: Request | None, result: SqlReply | None = None) -> Outcome:
        """Commit as one operation, with a receipt if its request has a ticket; or roll back.

        One that has changed nothing is rolled back, too. The caller publishes the change.
        """
        connection, transaction = self._connection, self._transaction
        if commit is None:
            transaction.roll_back()
            return Outcome()
        if connection.broken is not None:
            return Outcome(error=connection.broken_error())
        if not connection.conn.in_transaction:
            return Outcome(error=RequestError("a statement had ended the transaction"))
        commit_no, encoded = connection.commit_no + 1, encode_result(result)
        try:
            if commit.ticket is not None:
                answered = self._receipts.find(connection.conn, commit.ticket)
                # A commit that is sent again: its receipt answers, and what this lease has done
                # once more goes (G2).
                if answered is not None:
                    transaction.roll_back()
                    return answered
                if not self.has_changed:
                    # Nothing to keep, as of a run: no number, no receipt and no sync.
                    transaction.roll_back()
                    return Outcome(Raw(encoded), None, connection.commit_no)
                self._receipts.record(connection.conn, commit.ticket, commit_no, encoded)
            transaction.commit(commit_no, 1, [commit.ticket] if commit.ticket else [])
        except TransactionLost as lost:
            transaction.roll_back()
            return Outcome(error=lost.cause)
        except OutcomeUnknown as error:
            # No rollback: the writer is broken, or the change is in the file.
            return Outcome(error=error)
        except Exception as error:
            transaction.roll_back()
            return Outcome(error=connection.explain(error))
        # One change with one number, however many statements it had: as one it was acknowledged.
        change = connection.kind.change_of(decoded(commit.operation), commit_no)
        transaction.changed = [change]
        return Outcome(Raw(encoded), None, commit_no)

    def discard_parts(self) -> None:
        """Forget the parts of a statement that was not completed."""
        self._parts = LeaseParts()
