"""The writer: the order of all changes of one database.

It knows no threads, sockets or event loops. Its host calls :meth:`Writer.run_batch` with the
operations that wait and :meth:`Writer.idle_slice` when none do; embedded mode, the actor, the
simulation and the crash replay are such hosts.

Guarantees to the host. Results of a batch are final when ``run_batch`` returns: committed and
synced, or not executed at all. An operation that fails takes no other with it, and a broken index
fails none. An error that leaves the outcome open (:class:`OutcomeUnknown`) breaks the writer for
good: every later call raises the first cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Raw

from hermes_actor import limits
from hermes_actor.engine.change_log import FOREIGN, ChangeLog, change_of
from hermes_actor.engine.connection import TransactionLost, WriteConnection
from hermes_actor.engine.environment import Environment
from hermes_actor.engine.fulltext import drop_triggers
from hermes_actor.engine.health import is_damage, is_index_damage, may_be_the_index
from hermes_actor.engine.indexer import forget_index, settle_watermark
from hermes_actor.engine.jobs import Outcome, Request, decoded, lease_over
from hermes_actor.engine.maintenance import Upkeep
from hermes_actor.engine.receipts import Receipts, Ticket
from hermes_actor.engine.staging import (
    LeaseParts,
    Stage,
    discard_parts,
    encode_result,
    keep_part,
    take_parts,
)
from hermes_actor.engine.statement_limit import StatementLimit, interruptible
from hermes_actor.errors import (
    DeadlineExceeded,
    HermesActorError,
    OutcomeUnknown,
    RequestError,
    Unsupported,
    ValueTooLarge,
)
from hermes_actor.sqlite import primary_code, sqlite3
from hermes_actor.store.dispatch import apply
from hermes_actor.store.guest_sql import keeps_a_part, names_index, names_messages
from hermes_actor.store.search.coverage import TABLES
from hermes_protocol.messages import Changed
from hermes_protocol.operations import SqlLease, SqlStatement, Staged, StagePart, Vacuum

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths
    from hermes_protocol.operations import Operation
    from hermes_protocol.status import PhaseReport

__all__ = ["Writer"]

_log = logging.getLogger("hermes_actor.engine")


def _identity(request: Request) -> int:
    """The same for a request as it came and as it was decoded, for as long as its batch lasts."""
    return id(request if request.ticket is None else request.ticket)


class _Misstep(Exception):
    """A change failed where there was no way back for it alone."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


R = TypeVar("R")

_Way = Callable[[Request, int], Outcome]
"""How a batch applies one request under a commit_no."""


class Writer(Upkeep):
    """Applies operations. The caller holds the owner lock for as long as it lives."""

    def __init__(
        self,
        paths: StorePaths,
        env: Environment | None = None,
        *,
        somebody_waits: Callable[[], bool] = lambda: False,
        on_epoch: Callable[[int], None] = lambda _epoch: None,
        on_phase: Callable[[PhaseReport], None] = lambda _phase: None,
        changes: ChangeLog | None = None,
        timeout: float = limits.OPEN_BUSY_SECONDS,
        anchored: bool = False,
        rescues: bool = True,
        private_sql: bool = True,
    ) -> None:
        """Open the file and bring its schema up to date; see :func:`open_database` for errors.

        *somebody_waits* is asked during long idle work, which is then given up. *on_epoch* is
        told each epoch that begins, *on_phase* what takes long during the opening, in which foreign
        locks are waited for with *timeout*. Every commit goes to *changes*. *anchored*: closing
        must leave the WAL to those who have the file open, or are about to. *rescues*: a database
        that is removed under us is saved whole. Without *private_sql* every statement of a guest is
        refused, in whatever way it comes.
        """
        core = WriteConnection(
            paths, env or Environment(), on_epoch, on_phase, timeout, anchored, rescues
        )
        super().__init__(core, somebody_waits)
        self.receipts = Receipts(core.swept_through)
        self.changes = changes or ChangeLog()
        self.changes.begin(core.commit_no)
        self.held_by: str | None = None
        """Who keeps changes waiting, for people."""
        self.others_wait = somebody_waits
        """Whether anything but the job that runs waits for the writer. The host may know better."""
        self._interrupted: dict[int, DeadlineExceeded] = {}
        self._foreign_told = 0
        self._changed: list[Changed] = []
        self._discarded = False
        """Whether the open transaction has removed the parts of an operation that was refused."""
        self._stage = Stage(core.env.monotonic())
        self._lease_parts = LeaseParts()
        self._private_sql = private_sql

    def __repr__(self) -> str:
        core = self.core
        state = "broken" if core.broken else "open" if core.recovered else "recovering"
        return (
            f"<Writer {state} {self.paths.db.name} epoch={core.epoch}"
            f" commit_no={core.commit_no} watermark={self.watermark}>"
        )

    # --- batches ---------------------------------------------------------------------------

    def run_batch(self, requests: Sequence[Request]) -> list[Outcome]:
        """Apply *requests* in order and commit them together.

        Returns the outcomes of a prefix of *requests*, at least one: a batch that takes long
        commits what it has, and the host brings the rest again.
        """
        self._interrupted.clear()
        try:
            if len(requests) == 1:
                return [self._run_alone(requests[0])]
            try:
                return self._attempt(requests) or [self._run_alone(requests[0])]
            except TransactionLost:
                # The one recovery path: everything was rolled back, so run them one by one.
                return [self._run_alone(request) for request in requests]
        except OutcomeUnknown as error:
            return [Outcome(error=error)] * len(requests)

    def _run_alone(self, request: Request) -> Outcome:
        try:
            request = request.decoded()
            if isinstance(request.operation, Vacuum):
                return Outcome(error=self.vacuum(request.deadline))
            (outcome,) = self._attempt([request])
        except Unsupported as error:
            outcome = Outcome(error=error)
        except TransactionLost as lost:
            outcome = self._run_without_index(request, lost)
        except OutcomeUnknown as error:
            outcome = Outcome(error=error)
        return outcome

    def _attempt(self, requests: Sequence[Request]) -> list[Outcome]:
        """Hardly ever does a change fail. So all are tried without a way back for each; if one
        fails, everything is rolled back and tried again with one. Returns the outcomes up to one
        that has to run alone."""
        try:
            return self._transaction(requests, self._apply_plainly)
        except _Misstep as misstep:
            # Explained, so that after an I/O error the second try begins on a new connection.
            self.explain(misstep.cause)
            return self._transaction(requests, self._apply_carefully)

    def _run_without_index(self, request: Request, lost: TransactionLost) -> Outcome:
        """Try a change that has lost its transaction once more, without the full-text triggers.

        FTS5 writes its pages when a statement ends or the transaction commits. If it finds damage
        there, SQLite ends the whole transaction, so this trial needs one of its own.
        """
        try:
            if may_be_the_index(lost.__cause__):
                way = partial(self._apply_without_index, lost.cause)
                (outcome,) = self._transaction([request], way)
                if outcome.error is None:
                    return outcome
        except (TransactionLost, _Misstep):
            pass
        except OutcomeUnknown as error:
            return Outcome(error=error)
        self._note_damage(request, lost.__cause__, lost.cause)
        return Outcome(error=lost.cause)

    def _transaction(self, requests: Sequence[Request], apply_one: _Way) -> list[Outcome]:
        # The timeout of the first decides about a foreign lock; the others are brought again.
        failed = self.begin(requests[0].deadline)
        if failed is not None:
            return [Outcome(error=failed)]
        try:
            outcomes = self._apply_all(requests, apply_one)
            applied = sum(1 for o in outcomes if o.error is None and not o.replayed)
            if not applied and not self._discarded:
                self._roll_back()
                return outcomes
            tickets = [r.ticket for r in requests[: len(outcomes)] if r.ticket]
            self._commit(self.core.commit_no + applied, applied, tickets)
        except (TransactionLost, _Misstep):
            self._roll_back()
            raise
        except OutcomeUnknown:
            raise
        except Exception as error:
            self._roll_back()
            raise TransactionLost(self.core.explain(error)) from error
        self._tell_changes()
        return outcomes

    def _commit(self, commit_no: int, writes: int, tickets: list[Ticket]) -> None:
        try:
            self.commit(commit_no, writes)
        except OutcomeUnknown:
            if self.core.broken is None:
                # It is in the file, and so are the receipts that answer whoever asks again.
                self.receipts.committed(tickets)
                self._tell_changes()
            raise
        self.receipts.committed(tickets)
        self._discarded = False

    def explain(self, error: Exception) -> Exception:
        """What the caller is told: a typed error, or that of a wrong value as it is."""
        wrong_value = isinstance(error, ValueError | TypeError | OverflowError)
        return error if wrong_value else self.core.explain(error)

    def abandon(self) -> None:
        """Leave no transaction open after a lease or an unexpected error, and no part of a
        statement. A broken writer touches nothing."""
        self._lease_parts = LeaseParts()
        if self.core.broken is None:
            try:
                self._roll_back()
            except sqlite3.Error as error:
                _log.error("%s cannot be rolled back: %s", self.paths.db, error)

    def _apply_all(self, requests: Sequence[Request], apply_one: _Way) -> list[Outcome]:
        env, outcomes = self.core.env, list[Outcome]()
        commit_no = self.core.commit_no + 1
        enough = env.monotonic() + limits.BATCH_SOFT_SECONDS
        size = 0
        for waiting in requests:
            try:
                request = waiting.decoded()
            except Unsupported as error:
                outcomes.append(Outcome(error=error))
                continue
            if isinstance(request.operation, Vacuum):
                break
            outcome = self._answered(request) or apply_one(request, commit_no)
            outcomes.append(outcome)
            if outcome.error is None and not outcome.replayed:
                commit_no += 1
            if isinstance(outcome.result, Raw):
                size += len(outcome.result)
            if env.monotonic() > enough or size > limits.BATCH_ANSWER_BYTES:
                break
        return outcomes

    def _tell_changes(self) -> None:
        """What the transaction that was just committed has changed, for those who follow."""
        changed, self._changed = self._changed, []
        if self.core.foreign_commits != self._foreign_told:
            # Noticed when the transaction began: what was written outside came before it.
            self._foreign_told = self.core.foreign_commits
            changed.insert(0, FOREIGN)
        if changed:
            self.changes.add(changed)

    def _roll_back(self) -> None:
        self.core.roll_back()
        self.receipts.rolled_back()
        self._changed = []
        self._discarded = False

    def _answered(self, request: Request) -> Outcome | None:
        """What the file or the clock says about a request before it is applied."""
        if request.ticket is not None:
            answered = self.receipts.find(self.core.conn, request.ticket)
            if answered is not None:
                return answered
        if (interrupted := self._interrupted.get(_identity(request))) is not None:
            return Outcome(error=interrupted)  # what was interrupted once is not tried again
        if self.core.env.monotonic() > request.deadline:
            return Outcome(error=DeadlineExceeded("the deadline passed before the change began"))
        return None

    def _apply_plainly(self, request: Request, commit_no: int) -> Outcome:
        try:
            return Outcome(self._apply(request, commit_no), None, commit_no)
        except Exception as error:
            raise _Misstep(error) from error

    def _apply_carefully(self, request: Request, commit_no: int) -> Outcome:
        conn, savepoint = self.core.conn, self.core.authorizer.savepoint
        conn.execute(f"SAVEPOINT {savepoint}")
        try:
            outcome = self._apply_plainly(request, commit_no)
        except _Misstep as misstep:
            outcome = self._apply_again(request, commit_no, misstep.cause)
        conn.execute(f"RELEASE {savepoint}")
        return outcome

    def _apply_again(self, request: Request, commit_no: int, error: Exception) -> Outcome:
        """A change has failed with *error*: without the index, or not at all."""
        explained = self.explain(error)
        changed = len(self._changed)
        self._return_to_savepoint(error, explained)
        if may_be_the_index(error):
            try:
                return self._apply_without_index(error, request, commit_no)
            except (sqlite3.Error, _Misstep):
                self._return_to_savepoint(error, explained)
                del self._changed[changed:]
        self._note_damage(request, error, explained)
        if request.ticket is None:
            return Outcome(error=explained)
        if isinstance(request.operation, StagePart | Staged):
            discard_parts(self.core.conn, request.ticket.client, request.operation.key)
            self._discarded = True
        return Outcome(error=self.receipts.refused(request.ticket, explained))

    def _return_to_savepoint(self, error: Exception, explained: Exception) -> None:
        conn = self.core.conn
        if not conn.in_transaction:
            raise TransactionLost(explained) from error
        conn.execute(f"ROLLBACK TO {self.core.authorizer.savepoint}")
        conn.layout = None

    def _apply_without_index(
        self, error: BaseException, request: Request, commit_no: int
    ) -> Outcome:
        """Apply a change that has failed with *error* without the full-text triggers (G7).

        A damaged index shows as CONSTRAINT, ERROR or CORRUPT, like many other things, so it is
        recognised by trial: if the change succeeds like this, the index was to blame. Its triggers
        then stay away until it has been rebuilt.
        """
        self._drop_index_triggers()
        outcome = self._apply_plainly(request, commit_no)
        self._index_is_damaged(error)
        return outcome

    def _drop_index_triggers(self) -> None:
        for table in TABLES:
            drop_triggers(self.core.conn, table)
        self.core.conn.layout = None

    def _index_is_damaged(self, error: BaseException) -> None:
        """A change succeeded without the triggers: whatever the index covers is to be rebuilt."""
        forget_index(self.core.conn)
        _log.error("a full-text index of %s is damaged: %s; rebuilding it", self.paths.db, error)

    def _note_damage(
        self, request: Request, error: BaseException | None, explained: BaseException
    ) -> None:
        """A change failed with and without the index: if a table is malformed, stop changes."""
        if not isinstance(request.operation, SqlStatement):
            if is_damage(error):
                self.core.faults.found_damage(explained)
        elif is_index_damage(error) and names_messages(request.operation.sql):
            self.blame_index(error)

    def _apply(self, request: Request, commit_no: int) -> Any:
        """Apply a request; with a ticket, write its receipt too and encode the result."""
        operation, ticket = decoded(request.operation), request.ticket
        if isinstance(operation, Staged) and ticket is not None:
            operation = take_parts(self.core.conn, ticket.client, operation)
        result: Any = None
        if isinstance(operation, StagePart) and ticket is not None:
            keep_part(self.core.conn, ticket.client, commit_no, operation)
        else:
            result = self._apply_within(operation, request)
        if ticket is not None:
            encoded = encode_result(result)
            self.receipts.record(self.core.conn, ticket, commit_no, encoded)
            result = Raw(encoded)
        self._changed.append(change_of(operation, commit_no))
        return result

    def _apply_within(self, operation: Operation[Any], request: Request) -> Any:
        """Apply an operation within the limits of its request."""
        clock = self.core.env.monotonic
        try:
            limit = StatementLimit(clock, request.deadline, self._is_waited_for)
            return self._apply_operation(operation, limit)
        except DeadlineExceeded as error:
            self._interrupted[_identity(request)] = error
            raise

    def _is_waited_for(self) -> bool:
        return self.others_wait() or self.core.leave_by < float("inf")

    def _apply_operation(self, operation: Operation[Any], limit: StatementLimit) -> Any:
        conn = self.core.conn
        if isinstance(operation, SqlLease):
            raise lease_over()  # a commit that comes too late, or again
        if not isinstance(operation, SqlStatement):
            return apply(conn, operation)
        self._check_private_sql()
        # No value that a statement makes up may fill the memory before a row of it is seen.
        longest = conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.STAGED_MAX_BYTES)
        try:
            with interruptible(conn, limit):
                if names_index(operation.sql):
                    self.index_inside()
                self.core.authorizer.enter_guest(operation.sql)
                result = apply(conn, operation)
        finally:
            conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            self.core.authorizer.leave_guest()
            # A guest may change the schema, the ids, or the index: look at all of it again.
            conn.layout = None
            self.forget_meeting()
        # What follows in this transaction must not get ids that count as indexed, nor have its
        # triggers passed over if they are not ours any more.
        self.watermark = settle_watermark(conn)
        self.defer()
        return result

    # --- leases ----------------------------------------------------------------------------

    def _check_private_sql(self) -> None:
        if not self._private_sql:
            raise Unsupported("SQL of clients is switched off (actor.private_sql)")

    def begin_lease(self, deadline: float) -> None:
        """Open a transaction for one guest. Nothing else may run until it ends."""
        self._check_private_sql()
        if self.index_blame is not None:
            self.rebuild_index()  # an earlier lease was lost by it
        failed = self.begin(deadline)
        if failed is not None:
            raise failed

    def lease_limit(
        self, end: float = float("inf"), is_gone: Callable[[], bool] = lambda: False
    ) -> StatementLimit:
        """The limit of a lease: to *end*, until the guest *is_gone*, and beside others for a short
        time (G13), whether it runs statements or pauses."""
        return StatementLimit(self.core.env.monotonic, end, self._is_waited_for, is_gone)

    def run_in_lease(
        self,
        statement: SqlStatement | Raw,
        limit: StatementLimit | None = None,
    ) -> Any:
        """Run one statement of the guest, within the *limit* of its lease.

        One that is larger than a frame comes in parts.

        A failing statement leaves the transaction open; one that is interrupted does not.
        """
        if not self.core.conn.in_transaction:
            raise RequestError("an earlier statement has ended the transaction")
        operation = decoded(statement)
        if isinstance(operation, StagePart):
            self._lease_parts.keep(operation)
            return None
        if isinstance(operation, Staged):
            operation = self._lease_parts.take(operation)
        if not isinstance(operation, SqlStatement):
            raise Unsupported("a lease runs statements only")
        limit = limit or self.lease_limit()
        try:
            return self._apply_operation(operation, limit)
        except (DeadlineExceeded, ValueTooLarge):
            # It has run, and cannot be undone alone: it must not be committed with the rest.
            self._roll_back()
            raise
        except sqlite3.Error as error:
            return self._lease_without_index(operation, error, limit)

    def _lease_without_index(
        self, statement: SqlStatement, error: sqlite3.Error, limit: StatementLimit
    ) -> Any:
        """Try a statement that has failed with *error* once more, without the index."""
        conn, savepoint = self.core.conn, self.core.authorizer.savepoint
        explained = self.core.explain(error)
        if not may_be_the_index(error) or not names_messages(statement.sql):
            raise explained from error
        if not conn.in_transaction:
            # What the lease had done is lost with it. The next one must not meet the same damage.
            if primary_code(error) == sqlite3.SQLITE_CORRUPT:
                self.blame_index(error)
            raise explained from error
        if keeps_a_part(statement.sql):
            raise explained from error
        conn.execute(f"SAVEPOINT {savepoint}")
        try:
            self._drop_index_triggers()
            result = self._apply_operation(statement, limit)
            self._index_is_damaged(error)
        except Exception:
            if conn.in_transaction:
                conn.execute(f"ROLLBACK TO {savepoint}")
                conn.execute(f"RELEASE {savepoint}")
                conn.layout = None
            raise explained from error
        conn.execute(f"RELEASE {savepoint}")
        return result

    def end_lease(self, commit: Request | None) -> Outcome:
        """Commit as one operation, with a receipt if its request has a ticket; or roll back."""
        if commit is None:
            self._roll_back()
            return Outcome()
        if not self.core.conn.in_transaction:
            return Outcome(error=RequestError("a statement had ended the transaction"))
        commit_no, encoded = self.core.commit_no + 1, encode_result(None)
        try:
            if commit.ticket is not None:
                answered = self.receipts.find(self.core.conn, commit.ticket)
                if answered is not None:
                    self._roll_back()
                    return answered
                self.receipts.record(self.core.conn, commit.ticket, commit_no, encoded)
            self._commit(commit_no, 1, [commit.ticket] if commit.ticket else [])
        except TransactionLost as lost:
            self._roll_back()
            return Outcome(error=lost.cause)
        except OutcomeUnknown as error:
            return Outcome(error=error)
        except Exception as error:
            self._roll_back()
            return Outcome(error=self.core.explain(error))
        self._changed = [change_of(decoded(commit.operation), commit_no)]
        self._tell_changes()
        return Outcome(Raw(encoded), None, commit_no)

    def forget(self, client: bytes) -> None:
        """A client will not come back. Its receipts go now, or with a later sweep."""
        self._tidy(lambda: self.receipts.forget(self.core.conn, client))

    def idle_slice(self) -> float | None:
        if self.core.broken is None:
            self._sweep()
        pause = super().idle_slice()
        self._tell_changes()
        return pause

    def _sweep(self) -> None:
        """Remove what clients have left, when it is time."""
        core, now = self.core, self.core.env.monotonic()
        if self.receipts.sweep_is_due(core.commit_no):
            through = self._tidy(lambda: self.receipts.sweep(core.conn, core.commit_no))
            if through is not None:
                self.receipts.swept(through)
        if self._stage.sweep_is_due(now):
            self._stage.look(now, core.commit_no)
            if self._stage.has_leftovers(core.conn):
                self._tidy(lambda: self._stage.sweep(core.conn))

    def _tidy(self, work: Callable[[], R]) -> R | None:
        """Remove something of ours in a transaction of its own. ``None``: it failed; try later."""
        if self.begin(self.core.env.monotonic()) is not None:
            return None
        try:
            result = work()
            self.commit()
        except (HermesActorError, sqlite3.Error) as error:
            self._roll_back()
            _log.warning("receipts and parts were not removed: %s", error)
            return None
        self._tell_changes()
        return result
