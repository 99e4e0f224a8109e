"""The writer: the only write connection of a database, and the order of all changes.

It knows no threads, sockets or event loops. Its host calls :meth:`Writer.run_batch` with the
operations that wait and :meth:`Writer.idle_slice` when none do; embedded mode, the actor, the
simulation and the crash replay are such hosts.

Guarantees to the host. Results of a batch are final when ``run_batch`` returns: committed and
synced, or not executed at all. An operation that fails takes no other with it. An error that
leaves the outcome open (:class:`OutcomeUnknown`) breaks the writer for good: every later call
raises the first cause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from hermes_actor import limits
from hermes_actor.engine.authorizer import Authorizer
from hermes_actor.engine.barrier import pass_barrier
from hermes_actor.engine.busy import is_busy, retry_busy
from hermes_actor.engine.checkpoint import Action, CheckpointState, decide, run_checkpoint
from hermes_actor.engine.indexer import advance, derive_watermark, newest_id
from hermes_actor.engine.jobs import Outcome, Request
from hermes_actor.engine.opening import open_database
from hermes_actor.engine.own_tables import file_id, get_own, set_own
from hermes_actor.engine.receipts import Receipts
from hermes_actor.engine.seams import Seams
from hermes_actor.engine.staging import encode_result, keep_part, take_parts
from hermes_actor.errors import (
    ActorBroken,
    Busy,
    ConstraintFailed,
    DeadlineExceeded,
    DiskFull,
    HermesActorError,
    OutcomeUnknown,
    RequestError,
    from_sqlite,
    is_storage_failure,
)
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.apply import apply
from hermes_actor.store.layout import layout_of
from hermes_actor.store.schema import OWN_INDEXES
from hermes_protocol.operations import SqlStatement, Staged, StagePart, Vacuum

if TYPE_CHECKING:
    from hermes_actor.paths import Place
    from hermes_protocol.operations import Operation

__all__ = ["Writer"]

_log = logging.getLogger("hermes_actor.engine")


class _TransactionLost(Exception):
    """SQLite ended the transaction of a batch, or refused to commit it: nothing was executed."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Writer:
    """Owner of the write connection. The caller holds the owner lock for as long as it lives."""

    def __init__(
        self,
        place: Place,
        seams: Seams | None = None,
        *,
        somebody_waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """Open the file and bring its schema up to date; see :func:`open_database` for errors.

        *somebody_waits* is asked during long idle work, which is then given up.
        """
        self.place = place
        self.epoch = 0
        self.file_id = b""
        self.commit_no = 0
        self.watermark = 0
        self.checkpoints = CheckpointState()
        self._seams = seams or Seams()
        self._somebody_waits = somebody_waits
        self.receipts = Receipts()
        self._authorizer = Authorizer()
        self._broken: BaseException | None = None
        self._through_barrier = False
        self._schema_cookie = -1
        self._conn = open_database(place, self._seams)
        self._conn.set_authorizer(self._authorizer)

    def __repr__(self) -> str:
        state = "broken" if self._broken else "open" if self._through_barrier else "recovering"
        return (
            f"<Writer {state} {self.place.db.name} epoch={self.epoch}"
            f" commit_no={self.commit_no} watermark={self.watermark}>"
        )

    # --- batches ---------------------------------------------------------------------------

    def run_batch(self, requests: Sequence[Request]) -> list[Outcome]:
        """Apply *requests* in order and commit them together.

        Returns the outcomes of a prefix of *requests*, at least one: a batch that takes long
        commits what it has, and the host brings the rest again.
        """
        try:
            if len(requests) == 1 or isinstance(requests[0].operation, Vacuum):
                return [self._run_alone(requests[0])]
            try:
                return self._attempt(requests)
            except _TransactionLost:
                # The one recovery path: everything was rolled back, so run them one by one.
                return [self._run_alone(request) for request in requests]
        except OutcomeUnknown as error:
            return [Outcome(error=error)] * len(requests)

    def _run_alone(self, request: Request) -> Outcome:
        if isinstance(request.operation, Vacuum):
            return self._vacuum(request)
        try:
            (outcome,) = self._attempt([request])
        except _TransactionLost as lost:
            return Outcome(error=lost.cause)
        return outcome

    def _attempt(self, requests: Sequence[Request]) -> list[Outcome]:
        # The patience of the first decides about a foreign lock; the others are brought again.
        failed = self._begin(requests[0].deadline)
        if failed is not None:
            return [Outcome(error=failed)]
        outcomes: list[Outcome] = []
        commit_no = self.commit_no
        enough = self._seams.monotonic() + limits.BATCH_SOFT_SECONDS
        for request in requests:
            if isinstance(request.operation, Vacuum):
                break
            outcome = self._apply_one(request, commit_no + 1, alone=len(requests) == 1)
            outcomes.append(outcome)
            if outcome.error is None and not outcome.replayed:
                commit_no += 1
            if self._seams.monotonic() > enough:
                break
        if commit_no == self.commit_no:
            self._roll_back()
            return outcomes
        self._set_own("commit_no", commit_no)
        self._seams.failpoint("batch.before_commit")
        self._commit()
        self._seams.failpoint("batch.after_commit")
        self._committed(commit_no, requests[: len(outcomes)])
        return outcomes

    def _committed(self, commit_no: int, requests: Sequence[Request] = ()) -> None:
        self.checkpoints.wrote(commit_no - self.commit_no, self._seams.monotonic())
        self.commit_no = commit_no
        self.receipts.committed([request.ticket for request in requests if request.ticket])

    def _roll_back(self) -> None:
        if self._conn.in_transaction:
            self._conn.execute("ROLLBACK")
        self._conn.layout = None
        self.receipts.rolled_back()

    def _set_own(self, key: str, value: int) -> None:
        try:
            set_own(self._conn, key, value)
        except sqlite3.Error as error:
            self._roll_back()
            raise _TransactionLost(self._explain(error)) from error

    def _begin(self, deadline: float) -> HermesActorError | None:
        """Begin a transaction under our epoch, or say why the batch cannot run (not executed)."""
        if self._broken is not None:
            return _broken(self._broken)
        try:
            self._pass_barrier(deadline)
            retry_busy(lambda: self._conn.execute("BEGIN IMMEDIATE"), self._seams, deadline)
        except sqlite3.Error as error:
            return from_sqlite(error, self.place.db)
        except HermesActorError as error:
            return error
        self._conn.layout_checked = False
        if get_own(self._conn, "epoch") != self.epoch:
            self._roll_back()
            self._broken = ActorBroken(f"another owner has taken over {self.place.db}")
            return _broken(self._broken)
        self._meet_schema()
        return None

    def _apply_one(self, request: Request, commit_no: int, *, alone: bool) -> Outcome:
        conn, savepoint = self._conn, self._authorizer.savepoint
        if request.ticket is not None:
            answered = self.receipts.find(conn, request.ticket)
            if answered is not None:
                return answered
        if self._seams.monotonic() > request.deadline:
            return Outcome(error=DeadlineExceeded("the deadline passed before the change began"))
        if not alone:
            conn.execute(f"SAVEPOINT {savepoint}")
        try:
            result = self._apply(request, commit_no)
        except Exception as error:
            explained = self._explain(error)
            if request.ticket is not None:
                self.receipts.refused(request.ticket, explained)
            if not conn.in_transaction:
                raise _TransactionLost(explained) from error
            if not alone:
                conn.execute(f"ROLLBACK TO {savepoint}")
                conn.execute(f"RELEASE {savepoint}")
            conn.layout = None
            return Outcome(error=explained)
        if not alone:
            conn.execute(f"RELEASE {savepoint}")
        return Outcome(result, None, commit_no)

    def _apply(self, request: Request, commit_no: int) -> Any:
        """Apply a request; with a ticket, write its receipt too and encode the result."""
        operation, ticket = request.operation, request.ticket
        if ticket is None:
            return self._apply_operation(operation)
        result: Any = None
        if isinstance(operation, StagePart):
            keep_part(self._conn, ticket.client, commit_no, operation)
        elif isinstance(operation, Staged):
            whole = take_parts(self._conn, ticket.client, operation)
            result = self._apply_operation(whole)
        else:
            result = self._apply_operation(operation)
        encoded = encode_result(result)
        self.receipts.record(self._conn, ticket, commit_no, encoded)
        return Raw(encoded)

    def _apply_operation(self, operation: Operation[Any]) -> Any:
        if not isinstance(operation, SqlStatement):
            return apply(self._conn, operation)
        self._authorizer.enter_guest(operation.sql)
        try:
            return apply(self._conn, operation)
        finally:
            self._authorizer.leave_guest()

    def _commit(self) -> None:
        try:
            self._conn.execute("COMMIT")
        except sqlite3.Error as error:
            explained = self._explain(error)
            # A refused constraint, a foreign lock, no room for the commit frame: in each of these
            # the transaction is whole, and rolled back means not executed.
            if isinstance(explained, ConstraintFailed | Busy | DiskFull):
                self._roll_back()
                raise _TransactionLost(explained) from error
            # Anything else at this point, an fsync error above all, leaves the outcome open. The
            # connection is neither closed nor used again: both could write stale pages.
            self._broken = explained
            raise OutcomeUnknown(f"{explained}; nobody can tell whether it was kept") from error

    def _explain(self, error: BaseException) -> BaseException:
        if isinstance(error, sqlite3.Error) and not isinstance(error, HermesActorError):
            return from_sqlite(error, self.place.db)
        return error

    def _vacuum(self, request: Request) -> Outcome:
        failed = self._begin(request.deadline)
        if failed is not None:
            return Outcome(error=failed)
        self._conn.execute("ROLLBACK")
        try:
            self._checkpoint(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
            retry_busy(lambda: self._conn.execute("VACUUM"), self._seams, request.deadline)
            self._checkpoint(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
        except sqlite3.Error as error:
            return Outcome(error=self._explain(error))
        return Outcome()

    # --- leases ----------------------------------------------------------------------------

    def begin_lease(self, deadline: float) -> None:
        """Open a transaction for one guest. Nothing else may run until it ends."""
        failed = self._begin(deadline)
        if failed is not None:
            raise failed

    def run_in_lease(self, statement: SqlStatement) -> Any:
        """One statement of the guest. A failing statement leaves the transaction open."""
        try:
            result = self._apply_operation(statement)
        except sqlite3.Error as error:
            if isinstance(error, HermesActorError):
                raise
            raise from_sqlite(error, self.place.db) from error
        finally:
            self._conn.layout = None
        return result

    def end_lease(self, commit: Request | None) -> Outcome:
        """Commit as one operation, with a receipt if its request has a ticket; or roll back."""
        if commit is None:
            self._roll_back()
            return Outcome()
        if not self._conn.in_transaction:
            return Outcome(error=RequestError("a statement had ended the transaction"))
        commit_no, encoded = self.commit_no + 1, encode_result(None)
        try:
            if commit.ticket is not None:
                self.receipts.find(self._conn, commit.ticket)
                self.receipts.record(self._conn, commit.ticket, commit_no, encoded)
            self._set_own("commit_no", commit_no)
            self._commit()
        except _TransactionLost as lost:
            return Outcome(error=lost.cause)
        except OutcomeUnknown as error:
            return Outcome(error=error)
        self._committed(commit_no, [commit])
        return Outcome(Raw(encoded), None, commit_no)

    def forget(self, client: bytes) -> None:
        """A client will not come back."""
        if self._begin(self._seams.monotonic()) is None:
            self.receipts.forget(self._conn, client)
            self.receipts.sweep(self._conn, self.commit_no)
            self._commit()

    # --- opening and idle work -------------------------------------------------------------

    def recover(self) -> bool:
        """Try to pass the barrier now. False while a foreign lock is in the way."""
        try:
            self._pass_barrier(self._seams.monotonic() + limits.OPEN_BUSY_SECONDS)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise from_sqlite(error, self.place.db) from error
        return self._through_barrier

    def _pass_barrier(self, deadline: float) -> None:
        if not self._through_barrier:
            self.epoch = pass_barrier(self._conn, self._seams, deadline)
            self.commit_no = get_own(self._conn, "commit_no") or 0
            self.file_id = file_id(self._conn)
            self._through_barrier = True

    def _meet_schema(self) -> None:
        """Decide, inside a transaction, whether indexing is deferred and from where it goes on."""
        layout = layout_of(self._conn)
        if self._conn.layout_cookie == self._schema_cookie:
            return
        self._authorizer.deferring = layout.deferrable
        self.watermark = derive_watermark(self._conn)
        self._schema_cookie = self._conn.layout_cookie

    def checkpoint_if_due(self, *, waiting: bool) -> None:
        """The host calls this after it has sent the replies of a batch."""
        if self._broken is not None:
            return
        action = decide(self.checkpoints, self._seams.monotonic(), waiting=waiting)
        if action is not Action.NOTHING:
            self._checkpoint(action, limits.RESTART_BUDGET_SECONDS)

    def _checkpoint(self, action: Action, budget: float) -> None:
        self._seams.failpoint("checkpoint.before")
        result = run_checkpoint(self._conn, action, self._seams, budget)
        self.checkpoints.ran(action, result, self._seams.monotonic())

    @property
    def index_lag_is_urgent(self) -> bool:
        """Whether indexing must go on between batches. Costs one look at the newest id."""
        return newest_id(self._conn) - self.watermark > limits.INDEX_LAG_URGENT_ROWS

    def index_slice(self, seconds: float) -> bool:
        """Index for about *seconds*. Returns whether more is left to do."""
        deadline = self._seams.monotonic() + limits.OPEN_BUSY_SECONDS
        failed = self._begin(deadline)
        if failed is not None:
            raise failed
        newest = newest_id(self._conn)
        if self.watermark >= newest or not self._authorizer.deferring:
            self._conn.execute("ROLLBACK")
            return False
        self._seams.failpoint("index.slice")
        watermark = advance(
            self._conn, self.watermark, self._seams, self._seams.monotonic() + seconds
        )
        try:
            self._commit()
        except _TransactionLost as lost:
            raise lost.cause from None
        self.watermark = watermark
        self.checkpoints.wrote(0, self._seams.monotonic())
        return watermark < newest

    def idle_slice(self) -> float | None:
        """Do a bounded piece of upkeep.

        Returns after how many seconds the next piece is due, ``None`` if all is done. A foreign
        lock only postpones the work; other errors of the storage pass to the host.
        """
        if self._broken is not None:
            return None
        try:
            if self.index_slice(limits.INDEX_SLICE_IDLE_SECONDS):
                return 0.0
            missing = [n for n in OWN_INDEXES if n not in layout_of(self._conn).indexes]
            if missing:
                return 0.0 if self._build_index(missing[0]) else limits.IDLE_GRACE_SECONDS
            self.checkpoint_if_due(waiting=False)
        except Busy:
            return limits.TRUNCATE_AFTER_IDLE_SECONDS
        return None if self.checkpoints.truncated else limits.TRUNCATE_AFTER_IDLE_SECONDS

    def _build_index(self, name: str) -> bool:
        """Build one of our extra indexes unless somebody comes; false if it was given up."""
        self._conn.set_progress_handler(lambda: 1 if self._somebody_waits() else 0, 1000)
        try:
            self._conn.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {OWN_INDEXES[name]}")
        except sqlite3.OperationalError as error:
            if is_storage_failure(error):
                raise
            _log.debug("building %s was given up for now: %s", name, error)
            return False
        finally:
            self._conn.set_progress_handler(None, 0)
            self._conn.layout = None
        self.checkpoints.wrote(0, self._seams.monotonic())
        return True

    def close(self) -> None:
        """Fold the WAL back as far as readers allow and close. A broken writer stays open."""
        if self._broken is not None:
            return
        try:
            if self._through_barrier:
                self._checkpoint(Action.TRUNCATE, limits.TRUNCATE_BUDGET_SECONDS)
        finally:
            self._conn.close()


def _broken(cause: BaseException) -> ActorBroken:
    return ActorBroken(f"the writer has stopped: {cause}")
