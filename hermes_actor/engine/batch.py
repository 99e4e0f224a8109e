"""Batches: many requests in one transaction, each with an outcome of its own.

A change hardly ever fails. So the requests of a batch are applied without a savepoint for each; if
one fails, everything is rolled back and applied again with savepoints. If SQLite ends the whole
transaction, they run one by one, and the one to blame once more without the full-text triggers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Raw, structs

from hermes_actor import limits
from hermes_actor.engine.admin_tasks import vacuum
from hermes_actor.engine.batch_notes import BatchNotes, identity, statements_of
from hermes_actor.engine.connection import TransactionLost
from hermes_actor.engine.guest_statements import GuestStatements, RunOutcome
from hermes_actor.engine.health import is_damage, is_index_damage
from hermes_actor.engine.jobs import Outcome, Request, decoded, lease_lost
from hermes_actor.engine.staged_parts import discard_parts, encode_result, keep_part, take_parts
from hermes_actor.errors import (
    DeadlineExceeded,
    NotAllowed,
    OutcomeUnknown,
    Unsupported,
)
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.guest_sql import names_messages
from hermes_protocol.operations import SqlLease, SqlRun, SqlStatement, Staged, StagePart, Vacuum

if TYPE_CHECKING:
    from hermes_actor.engine.change_transaction import ChangeTransaction
    from hermes_actor.engine.checkpoint import Checkpointer
    from hermes_actor.engine.connection import WriteConnection
    from hermes_actor.engine.index.base import Index
    from hermes_actor.engine.receipts import Receipts
    from hermes_protocol.operations import Operation, SqlResult, SqlStep

__all__ = ["BatchRunner"]


class _BatchFailed(Exception):
    """A request failed without a savepoint of its own: the transaction must be rolled back."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _OtherSettings(ValueError):
    """A run needs other settings than those of the transaction: it is applied in another one."""


_ApplyOne = Callable[[Request, int], Outcome]
"""Applies one request under a ``commit_no``."""


class BatchRunner:
    """Applies requests in their order and commits them together."""

    def __init__(
        self,
        connection: WriteConnection,
        checkpointer: Checkpointer,
        receipts: Receipts,
        transaction: ChangeTransaction,
        index: Index,
        guests: GuestStatements,
    ) -> None:
        self._connection = connection
        self._checkpointer = checkpointer
        self._receipts = receipts
        self._transaction = transaction
        self._index = index
        self._guests = guests
        self._notes = BatchNotes()

    def run(self, requests: Sequence[Request]) -> list[Outcome]:
        """Apply *requests*; see :meth:`Writer.run_batch`."""
        self._notes.clear()
        try:
            if len(requests) == 1:
                return [self._run_alone(requests[0])]
            try:
                # Empty if the first one cannot share a transaction.
                return self._run_transaction(requests) or [self._run_alone(requests[0])]
            except TransactionLost:
                # Everything was rolled back, so one by one cannot apply anything twice.
                return [self._run_alone(request) for request in requests]
        except OutcomeUnknown as error:
            # All, also those that the transaction had not come to: *unknown* is never false.
            return [Outcome(error=error)] * len(requests)

    def _run_alone(self, request: Request) -> Outcome:
        try:
            request = request.decoded()
            if isinstance(request.operation, Vacuum):
                # Not in a batch: SQLite refuses VACUUM inside a transaction.
                return Outcome(error=vacuum(self._connection, self._checkpointer, request.deadline))
            return self._run_transaction([request])[0]
        except Unsupported as error:
            return Outcome(error=error)
        except TransactionLost as lost:
            return self._run_without_index(request, lost)
        except OutcomeUnknown as error:
            return Outcome(error=error)

    def _run_without_index(self, request: Request, lost: TransactionLost) -> Outcome:
        """Run a request that has lost its transaction once more, without the full-text triggers.

        FTS5 writes its pages when a statement ends or the transaction commits. If it finds damage
        there, SQLite ends the whole transaction, so this trial needs one of its own.
        """
        try:
            # By SQLite's own error: only its code says whether an index can be the cause.
            if self._index.may_have_caused(lost.__cause__):
                way = partial(self._apply_without_index, lost.cause)
                (outcome,) = self._run_transaction([request], way)
                if outcome.error is None:
                    return outcome
        except (TransactionLost, _BatchFailed):
            # The trial failed as well, so the index is not the cause: the first error is reported.
            pass
        except OutcomeUnknown as error:
            return Outcome(error=error)
        if self._is_run_without_note(request):
            # The error is the statement's own then, and what came before the statement is kept.
            return self._run_alone(request)
        self._record_damage(request, lost.__cause__, lost.cause)
        return Outcome(error=lost.cause)

    def _is_run_without_note(self, request: Request) -> bool:
        """Return True once for a run, and note that the index is not to blame for its error."""
        not_the_index = self._notes.not_the_index
        if not isinstance(request.operation, SqlRun) or identity(request) in not_the_index:
            return False
        not_the_index.add(identity(request))
        return True

    def _run_transaction(
        self, requests: Sequence[Request], apply_one: _ApplyOne | None = None
    ) -> list[Outcome]:
        """Return the outcomes up to a limit, or to a request that must run alone.

        Without *apply_one* optimistically: without savepoints, and again with them if a request
        fails. Raises :class:`TransactionLost` or :class:`_BatchFailed` after a rollback.
        """
        connection, transaction = self._connection, self._transaction
        apply_request = apply_one or self._apply_request
        try:
            first = requests[0].decoded()
            settings = self._notes.settings_of(first)
        except (Unsupported, NotAllowed) as error:
            return [Outcome(error=error)]
        # The timeout of the first decides about a foreign lock; the host brings the others again.
        failed = connection.begin(first.deadline, settings)
        if failed is not None:
            return [Outcome(error=failed)]
        monotonic, outcomes = connection.env.monotonic, list[Outcome]()
        commit_no, applied, size = connection.commit_no, 0, 0
        enough = monotonic() + limits.BATCH_SOFT_SECONDS
        try:
            for position, waiting in enumerate(requests):
                try:
                    # One at a time: decoded, the requests of a batch could be of any size (G8).
                    request = waiting.decoded() if position else first
                    first = waiting
                    # The batch ends before it. It comes first in the next one, so the order holds
                    # (G3). Settings hold for a whole transaction.
                    if isinstance(request.operation, Vacuum) or not connection.settings.are_set(
                        self._notes.settings_of(request)
                    ):
                        break
                except (Unsupported, NotAllowed) as error:
                    outcomes.append(Outcome(error=error))
                    continue
                outcome = self._known_outcome(request)
                if outcome is None:
                    number = commit_no + applied + 1
                    outcome = apply_request(request, number)
                    # A request that is refused, or that has changed nothing, takes no number:
                    # commit_no has no gaps (G3).
                    if outcome.commit_no == number:
                        applied += 1
                outcomes.append(outcome)
                if isinstance(outcome.result, Raw):
                    size += len(outcome.result)
                # After a request: each batch gets on by at least one, however slow the disk is.
                if monotonic() > enough or size > limits.BATCH_ANSWER_BYTES:
                    break
            # Nothing to keep: without this, requests that are all refused would cost a sync each.
            if not applied and not transaction.parts_discarded:
                transaction.roll_back()
                return outcomes
            tickets = [r.ticket for r in requests[: len(outcomes)] if r.ticket]
            transaction.commit(commit_no + applied, applied, tickets)
        except _BatchFailed as batch:
            transaction.roll_back()
            if apply_one is not None:
                raise
            # Explained, so that after an I/O error the second try begins on a new connection.
            connection.explain_to_caller(batch.cause)
            return self._run_transaction(requests, self._apply_with_savepoint)
        except TransactionLost:
            transaction.roll_back()
            raise
        except OutcomeUnknown:
            # No rollback: the writer is broken (R2), or the transaction is in the file already.
            raise
        except Exception as error:
            transaction.roll_back()
            raise TransactionLost(connection.explain(error)) from error
        # Only what is in the file: a subscriber reads there what it is notified of.
        transaction.publish()
        return outcomes

    def _known_outcome(self, request: Request) -> Outcome | None:
        """Return what the receipts or the clock say about a request before it is applied."""
        # Before the clock: to say "not executed" of a change that was applied, because the client
        # asks late, would be false (G2, G9).
        if request.ticket is not None:
            # A run that has changed nothing has no receipt, and the commit of a lost lease never
            # gets one. Neither can have been applied then.
            again = isinstance(request.operation, SqlRun | SqlLease)
            answered = self._receipts.find(self._connection.conn, request.ticket, again=again)
            if answered is not None:
                return answered
        interrupted = self._notes.interrupted
        if interrupted and (error := interrupted.get(identity(request))) is not None:
            return Outcome(error=error)  # what was interrupted once is not tried again
        if self._connection.env.monotonic() > request.deadline:
            return Outcome(error=DeadlineExceeded("the deadline passed before the change began"))
        return None

    def _apply_request(self, request: Request, commit_no: int) -> Outcome:
        """Apply a request; with a ticket, write its receipt too and encode the result.

        Raises :class:`_BatchFailed` for whatever went wrong.
        """
        connection, ticket = self._connection, request.ticket
        try:
            operation = decoded(request.operation)
            result: Any = None
            if isinstance(operation, Staged) and ticket is not None:
                operation = take_parts(connection.conn, ticket.client, operation)
            if isinstance(operation, StagePart) and ticket is not None:
                keep_part(connection.conn, ticket.client, commit_no, operation)
            elif isinstance(operation, SqlRun):
                reply, changed = self._apply_run(operation, request)
                if not changed:
                    # Nothing to keep, its receipt included: a read must not cost a commit.
                    answer = reply if ticket is None else Raw(encode_result(reply))
                    return Outcome(answer, None, commit_no - 1)
                result = reply
            elif isinstance(operation, SqlStatement | SqlLease):
                result = self._apply_guest(operation, request)
            else:
                result = connection.kind.apply(connection.conn, operation)
            if ticket is not None:
                # In the transaction of the change: a crash keeps both or neither (G2).
                encoded = encode_result(result)
                self._receipts.record(connection.conn, ticket, commit_no, encoded)
                result = Raw(encoded)
            self._transaction.changed.append(connection.kind.change_of(operation, commit_no))
        except Exception as error:
            raise _BatchFailed(error) from error
        return Outcome(result, None, commit_no)

    def _apply_guest(self, operation: Operation[Any], request: Request) -> Any:
        if not isinstance(operation, SqlStatement):
            raise lease_lost()  # the commit of a lease of another connection, or another actor
        try:
            return self._guests.run(operation, self._guests.limit(request.deadline))
        except DeadlineExceeded as error:
            self._notes.interrupted[identity(request)] = error
            raise

    def _apply_run(self, run: SqlRun, request: Request) -> RunOutcome:
        """Apply the statements of a connection, and return their reply.

        Raises the error of a statement that has ended the transaction of all, or that the index may
        be to blame for; the request is then applied again.
        """
        notes, key = self._notes, identity(request)
        if not self._connection.settings.are_set(run.settings):
            # It came in parts, which could not be read before the transaction began.
            notes.settings[key] = run.settings
            raise _OtherSettings("the settings of a run are set before its transaction begins")
        noted = notes.ended_by.get(key)
        if noted is not None:
            # Every statement is a transaction of its own for its caller: what came before the one
            # that has ended the transaction is kept, of that one nothing.
            run = structs.replace(run, steps=run.steps[: len(noted.results)])
        raised: list[sqlite3.Error] = []

        def retry(step: SqlStep, error: sqlite3.Error) -> SqlResult:
            raised.append(error)
            raise error

        try:
            limit = self._guests.limit(request.deadline)
            limit.is_interrupted = request.is_interrupted
            reply, changed = self._guests.run_steps(run, limit, retry, in_lease=False)
        except DeadlineExceeded as error:
            notes.interrupted[key] = error
            raise
        if raised and key not in notes.not_the_index:
            failed = run.steps[len(reply.results)]
            if self._index.may_have_caused(raised[0]) and names_messages(failed.sql):
                raise raised[0]
        if not reply.open:
            notes.ended_by[key] = reply
            raise raised[0]
        if noted is not None and reply.error is None:
            reply = structs.replace(reply, error=noted.error, failed=noted.failed)
        return RunOutcome(reply, changed)

    def _apply_with_savepoint(self, request: Request, commit_no: int) -> Outcome:
        conn, savepoint = self._connection.conn, self._connection.authorizer.savepoint
        # Under a name that no guest can guess: see Authorizer.
        conn.execute(f"SAVEPOINT {savepoint}")
        try:
            outcome = self._apply_request(request, commit_no)
        except _BatchFailed as failed:
            outcome = self._apply_failed(request, commit_no, failed.cause)
        # After a failure, too: a savepoint that was rolled back to is still open.
        conn.execute(f"RELEASE {savepoint}")
        return outcome

    def _apply_failed(self, request: Request, commit_no: int, error: Exception) -> Outcome:
        """Apply a request that failed with *error* without the index, or refuse it."""
        if isinstance(error, _OtherSettings):
            raise TransactionLost(error) from error
        explained = self._connection.explain_to_caller(error)
        changed = self._transaction.changed
        before = len(changed)
        self._return_to_savepoint(error, explained)
        if self._index.may_have_caused(error):
            try:
                return self._apply_without_index(error, request, commit_no)
            except (sqlite3.Error, _BatchFailed):
                self._return_to_savepoint(error, explained)
                del changed[before:]
        if self._index.may_have_caused(error) and self._is_run_without_note(request):
            try:
                return self._apply_request(request, commit_no)
            except _BatchFailed as failed:
                return self._apply_failed(request, commit_no, failed.cause)
        self._record_damage(request, error, explained)
        if request.ticket is None:
            return Outcome(error=explained)
        if isinstance(request.operation, StagePart | Staged):
            # In this transaction, which is then committed even if nothing was applied: the parts of
            # an operation that is refused would stay in the file.
            discard_parts(self._connection.conn, request.ticket.client, request.operation.key)
            self._transaction.parts_discarded = True
        return Outcome(error=self._receipts.refused(request.ticket, explained))

    def _return_to_savepoint(self, error: Exception, explained: Exception) -> None:
        conn = self._connection.conn
        # SQLite ended it with the statement, as it does when FTS5 finds damage: the work of the
        # other requests of the batch is gone with it.
        if not conn.in_transaction:
            raise TransactionLost(explained) from error
        conn.execute(f"ROLLBACK TO {self._connection.authorizer.savepoint}")
        # What was learned about the schema may have been rolled back.
        conn.layout = None

    def _apply_without_index(
        self, error: BaseException, request: Request, commit_no: int
    ) -> Outcome:
        """Apply a request that has failed with *error* without the full-text triggers (G7).

        A damaged index shows as CONSTRAINT, ERROR or CORRUPT, like many other things, so it is
        recognised by trial: if the change succeeds like this, the index was to blame. Its triggers
        then stay away until it has been rebuilt.
        """
        # Dropped, in this transaction, and not only passed over: an index without its triggers
        # counts as broken, so whichever owner comes next rebuilds it, after a crash as well.
        self._index.drop_triggers()
        outcome = self._apply_request(request, commit_no)
        self._index.forget_contents(error)
        return outcome

    def _record_damage(
        self, request: Request, error: BaseException | None, explained: BaseException
    ) -> None:
        """Refuse further changes if a table is malformed: the index was not to blame."""
        # A guest may read anything, tables of its own included. Its statement never has the changes
        # of all others refused.
        statements = statements_of(request.operation)
        if not statements:
            if is_damage(error):
                self._connection.health.mark_corrupt(explained)
        elif is_index_damage(error) and any(map(names_messages, statements)):
            self._index.report_damage(error)
