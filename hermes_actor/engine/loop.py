"""The loop of a writer from its first to its last job, the same for every host.

The host brings a *source* of jobs; the loop takes what waits, runs it as batches, and does
maintenance when nothing waits. Replies leave before any checkpoint: no client waits for
maintenance that follows its change.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hermes_actor import limits
from hermes_actor.engine.admin_tasks import copy_to, maintain
from hermes_actor.engine.jobs import (
    Call,
    CopyTo,
    ForgetClient,
    Hold,
    IndexBarrier,
    Job,
    Lease,
    LeaseStep,
    LeaseSteps,
    Maintain,
    Outcome,
    Stop,
)
from hermes_actor.engine.maintenance import BatchMaintenance
from hermes_actor.engine.shared_sync import SharedSync
from hermes_actor.errors import (
    ActorBroken,
    Closed,
    DeadlineExceeded,
    HermesActorError,
    IndexBehind,
    OutcomeUnknown,
)
from hermes_actor.sqlite import sqlite3

if TYPE_CHECKING:
    from hermes_actor.engine.jobs import Request
    from hermes_actor.engine.statement_limit import StatementLimit
    from hermes_actor.engine.writer import Writer

__all__ = ["Source", "serve"]

R = TypeVar("R")

_log = logging.getLogger("hermes_actor.engine")


class Source(Protocol):
    """The queue of a host."""

    def take(self, timeout: float | None) -> list[Job]:
        """Return the jobs that wait, in order, up to one batch; empty if none came in time."""
        ...

    def take_step(self, steps: LeaseSteps, timeout: float) -> LeaseStep | None:
        """Return the next of *steps*; raise ``queue.Empty`` if none came in time."""
        ...

    def waiting(self) -> bool:
        """Return True if a job waits."""
        ...


def serve(
    writer: Writer,
    source: Source,
    *,
    sent: Callable[[], None] = lambda: None,
    measured: Callable[[int, float], None] = lambda _size, _seconds: None,
    on_broken: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    shares_syncs: bool = False,
) -> None:
    """Work until a :class:`Stop` is taken.

    *sent* is called after the replies of each batch, *measured* with the size and the duration of
    each. *on_broken* is called when the writer has broken, before anything of that batch is
    answered. With *shares_syncs* commits of leases share them, and are answered in another thread,
    after the end of the lease. Raises :class:`ActorBroken` after *on_broken*. Every job that was
    taken gets an outcome, even when this function raises.
    """
    _Loop(writer, source, sent, measured, on_broken, clock, shares_syncs).run()


class _Loop:
    def __init__(
        self,
        writer: Writer,
        source: Source,
        sent: Callable[[], None],
        measured: Callable[[int, float], None],
        on_broken: Callable[[], None],
        clock: Callable[[], float],
        shares_syncs: bool,
    ) -> None:
        self._writer = writer
        self._source = source
        self._sent = sent
        self._measured = measured
        self._on_broken = on_broken
        self._clock = clock
        self._shares_syncs = shares_syncs
        self._open: list[Job] = []
        self._barriers: list[IndexBarrier] = []
        self._between = BatchMaintenance(
            writer.connection, writer.checkpointer, writer.index, clock
        )
        self._barrier_pause = 0.0
        self._running = 1
        """Number of open jobs that run now: 0 for a lease, which is done once it is granted."""
        # The queue of the host does not know the jobs that were taken in one go and still wait
        # here; a statement of a guest makes way for those, too (G13).
        writer.others_wait = self._others_wait
        self._shared = SharedSync(
            writer.connection.sync_wal, self._shared_sync_failed, lambda: self._sent()
        )
        writer.connection.settle = self._shared.settle

    def _others_wait(self) -> bool:
        return len(self._open) > self._running or self._source.waiting()

    def _shared_sync_failed(self, error: Exception) -> OutcomeUnknown:
        unknown = self._writer.connection.shared_sync_failed(error)
        # Before the replies, as after a batch.
        self._on_broken()
        return unknown

    def run(self) -> None:
        try:
            self._run()
        finally:
            self._shared.close()

    def _run(self) -> None:
        try:
            pause: float | None = limits.IDLE_GRACE_SECONDS
            stopped = False
            while not stopped:
                # While searches wait for the index, slices follow each other without the grace of
                # idle time. Jobs that came meanwhile are taken first: no change waits for a search.
                taken = self._source.take(self._barrier_pause if self._barriers else pause)
                jobs = [job for job in taken if self._claim(job)]
                if taken and not jobs:
                    self._sent()  # requests that cannot be read were refused while they were taken
                if jobs:
                    stopped = self._work(jobs)
                    # Not at once: the next call of a lone client comes sooner than that, and would
                    # meet a slice.
                    pause = limits.IDLE_GRACE_SECONDS
                if self._barriers:
                    self._run_maintenance(self._run_barrier_slice)
                # Not both: the searches wait for the very part of idle work that indexes.
                elif not jobs:
                    pause = self._idle()
                self._check()
            self._refuse_open(Closed("the writer has been closed"))
        except ActorBroken as error:
            # Jobs that are still open were not begun.
            self._refuse_open(error)
            raise
        except BaseException as error:
            # Unknown, not refused: the error may have come between a commit and its reply (G9).
            self._refuse_open(OutcomeUnknown(f"the writer has stopped: {error}"))
            raise

    def _claim(self, job: Job) -> bool:
        """Return True if *job* is to be run here. It is open until it has an outcome."""
        # Before the claim: from here on the job is answered even if the writer ends.
        self._open.append(job)
        try:
            if job.take():
                return True
        except Exception as error:
            self._unexpected("taking a request", error)
            self._finish(job, Outcome(error=self._writer.connection.explain(error)))
            return False
        # Its sender was quicker, has given it up, and reports that itself.
        self._open.remove(job)
        return False

    def _unexpected(self, what: str, error: Exception) -> OutcomeUnknown:
        """Log an untyped error, which ends the job it happened in and nothing else (G16)."""
        _log.error("%s failed, %s", what, self._writer.paths.db, exc_info=error)
        # The transaction may be open: what is left in it must not go into the next commit.
        self._writer.abandon()
        # Unknown: the error may have come after the commit, and then the receipt knows better.
        return OutcomeUnknown(f"{what} failed: {type(error).__name__}: {error}")

    def _check(self) -> None:
        # Maintenance breaks a writer as well, by a checkpoint or a slice that fails (R2, R3); a
        # batch has called on_broken before its replies already.
        if self._writer.connection.broken is not None:
            self._on_broken()
            raise self._writer.connection.broken_error()

    def _refuse_open(self, error: HermesActorError) -> None:
        """End every open job: no client may wait for a writer that is gone."""
        for job in list(self._open):
            self._finish(job, Outcome(error=error))
        self._sent()

    def _finish(self, job: Job, outcome: Outcome) -> None:
        # A hold or a lease is done once it is granted. An error after that must not report a second
        # outcome: on_done is called once.
        if job in self._open:
            self._open.remove(job)
            self._answer(job, outcome)

    def _answer(self, to: Job | LeaseStep, outcome: Outcome) -> None:
        """Report an outcome. One that cannot be reported is lost for its client alone."""
        try:
            to.on_done(outcome)
        except Exception:
            _log.exception("an outcome of %s could not be reported", self._writer.paths.db)

    def _work(self, jobs: list[Job]) -> bool:
        """Run jobs in order, neighbouring calls together. True after a stop."""
        calls: list[Call] = []
        for job in jobs:
            if isinstance(job, Call):
                calls.append(job)
                continue
            # Before the other job: jobs run in the order in which they came (G3), and a stop, which
            # comes last, finds everything answered.
            self._run_calls(calls)
            calls = []
            if isinstance(job, Stop):
                self._writer.connection.sync_each_commit()
                self._writer.close()
                self._finish(job, Outcome())
                return True
            self._run_other(job)
        self._run_calls(calls)
        return False

    def _run_calls(self, calls: list[Call]) -> None:
        while calls:
            began = self._clock()
            try:
                outcomes = self._writer.run_batch([call.request for call in calls])
            except Exception as error:
                outcomes = [Outcome(error=self._unexpected("a batch", error))] * len(calls)
            seconds = self._clock() - began
            # Before the replies: a client that learns of the failure must not come back here.
            if self._writer.connection.broken is not None:
                self._on_broken()
            self._writer.connection.env.failpoint("reply.before")
            for call, outcome in zip(calls, outcomes, strict=False):
                self._finish(call, outcome)
            self._sent()
            self._writer.connection.env.failpoint("reply.after")
            # A batch that took long has answered a prefix; the rest is a batch of its own.
            calls = calls[len(outcomes) :]
            self._run_maintenance(partial(self._after_batch, len(outcomes), seconds, bool(calls)))

    def _after_batch(self, size: int, seconds: float, more: bool) -> None:
        self._measured(size, seconds)
        # The rest of a batch that ended early waits here, and not in the source.
        self._between.run(waiting=more or self._source.waiting())

    def _run_other(self, job: Job) -> None:
        if isinstance(job, IndexBarrier):
            if job.verify or job.damaged is not None:
                # A rebuild that fails is not the failure of this search: its barrier waits on, for
                # a later one, until its deadline.
                self._run_maintenance(partial(self._writer.index.rebuild_if_damaged, job.damaged))
            self._barriers.append(job)
            return
        result = None
        try:
            if not isinstance(job, Lease):
                # Some of these write without a transaction of the engine.
                self._writer.connection.sync_each_commit()
            if isinstance(job, ForgetClient):
                self._writer.maintenance.forget_client(job.client)
            elif isinstance(job, Hold):
                self._hold(job)
                return
            elif isinstance(job, Maintain):
                result = self._maintain(job)
            elif isinstance(job, CopyTo):
                copy_to(self._writer.connection, job.target)
            elif isinstance(job, Lease):
                self._lease(job)
                self._run_maintenance(self._after_lease)
                return
        except HermesActorError as error:
            self._finish(job, Outcome(error=error))
        except sqlite3.Error as error:
            self._finish(job, Outcome(error=self._writer.connection.explain(error)))
        except Exception as error:
            self._finish(job, Outcome(error=self._unexpected(type(job).__name__, error)))
        else:
            self._finish(job, Outcome(result))
        self._sent()

    def _maintain(self, job: Maintain) -> Any:
        """Run a task, unless its caller has given up: the caller's next step builds on that."""
        if self._clock() > job.deadline or not job.is_wanted():
            raise DeadlineExceeded(f"{job.task} was given up before it began")
        result = maintain(
            self._writer, job.task, job.path, job.deadline, job.expected, job.is_wanted
        )
        if self._writer.connection.broken is not None:
            self._on_broken()
        return result

    def _hold(self, job: Hold) -> None:
        """Keep other jobs waiting and run what the holder brings, until it is done or silent."""
        state = self._maintain(job)
        self._writer.held_by = job.holder
        end = self._clock() + limits.HOLD_TOTAL_SECONDS
        try:
            self._finish(job, Outcome(state))
            self._sent()
            while True:
                # Two limits: a holder whose process was stopped gives no sign, and one that never
                # ends would make the writer look stuck to a watchdog.
                allowed = min(limits.HOLD_SILENT_SECONDS, end - self._clock())
                work = job.work.get(timeout=max(allowed, 0.0))
                if work is None:
                    break
                if work.take():
                    self._open.append(work)
                    self._run_other(work)
        except queue.Empty:
            _log.warning(
                "changes of %s go on: %s held them for more than %g s, or %g s without a request",
                self._writer.paths.db,
                job.holder,
                limits.HOLD_TOTAL_SECONDS,
                limits.HOLD_SILENT_SECONDS,
            )
        finally:
            self._writer.held_by = None
            job.end()
            self._sent()

    def _run_barrier_slice(self) -> None:
        """Run one slice for searches that wait for a complete index; changes come in between."""
        writer = self._writer
        try:
            # Of 10 ms, although nothing may wait: changes that come meanwhile are let in between.
            pause = writer.index.run_bulk_slice()
            more = pause is not None or writer.index.run_slice(limits.INDEX_SLICE_BUSY_SECONDS)
            if not more:
                pause = writer.index.run_large_text_slice(idle=True, wait=limits.OPEN_BUSY_SECONDS)
        except Exception as error:
            # The searches get the reason now, not at their deadline; the error goes on to the log.
            explained = self._writer.connection.explain(error)
            for job in self._barriers:
                self._finish(job, Outcome(error=explained))
            self._barriers.clear()
            self._sent()
            raise
        # A text that has failed may be due in minutes; barriers end by their deadline meanwhile.
        self._barrier_pause = min(pause or 0.0, limits.ASIDE_LOOK_SECONDS)
        for job in list(self._barriers):
            try:
                outcome = self._barrier_outcome(job, more)
            except Exception as error:
                # Of this barrier alone: left in the list, it would fail every slice, and with it
                # the searches behind it.
                self._unexpected("a wait for the index", error)
                outcome = Outcome(error=writer.connection.explain(error))
            if outcome is not None:
                self._barriers.remove(job)
                self._finish(job, outcome)
        self._sent()

    def _barrier_outcome(self, job: IndexBarrier, more: bool) -> Outcome | None:
        """Return the reply to *job*; ``None`` if it waits on. *more*: the slice has left work."""
        index, done = self._writer.index, job.through
        # Notes are not settled up to an id, as messages are indexed: while one is left, any
        # message below may be the one that lacks.
        if more and (index.unsettled or index.watermark < job.through):
            done = min(index.watermark, job.through - 1)
        elif large := self._large_texts(job):
            done = min(large) - 1
        if done >= job.through:
            return Outcome()
        # Asked only of what is not done: a barrier that is reached is never too late.
        if self._clock() <= job.deadline:
            return None
        return Outcome(error=_behind(done, job.through, index.failure))

    def _large_texts(self, job: IndexBarrier) -> set[int]:
        """Return those that *job* still waits for; what is written meanwhile is not among them."""
        large = self._writer.index.pending_large_texts(job.through)
        job.large = large if job.large is None else job.large & large
        return job.large

    def _lease(self, job: Lease) -> None:
        """Grant the lease, then run its steps until it ends or a limit is reached."""
        writer = self._writer
        leases = writer.leases.limits(job.terms)
        # One that is alone syncs its commit itself: the change of thread would only cost time.
        may_share = self._shares_syncs and (self._others_wait() or not self._shared.is_idle)
        writer.leases.begin(job.deadline, job.terms.settings, may_share=may_share)
        # From the grant on: the wait for a foreign lock before it is a matter of the deadline.
        limit = writer.leases.limit(leases, lambda: job.is_gone)
        job.since, writer.lease = time.time(), job
        try:
            first = None
            if job.terms.first is not None:
                limit.is_interrupted = job.terms.is_interrupted
                first = self._run_statement(job, job.terms.first, None, limit).result
            self._finish(job, Outcome(first))
            self._sent()
            self._running = 0
            while self._run_step(job, limit, leases.idle):
                pass
        except Exception as error:
            if job in self._open:
                raise  # by its first run: it was not granted, and its caller gets the error
            self._unexpected("a lease", error)
        finally:
            self._running, writer.lease = 1, None
            # Rolled back before the end is marked: the holder may retry at once.
            writer.abandon()
        job.end()
        self._sent()

    def _run_step(self, job: Lease, limit: StatementLimit, idle: float) -> bool:
        """Run the next step of a lease; returns False when the lease is over."""
        step = self._next_step(job, limit, idle)
        if step is None:
            return False
        goes_on = step.statement is not None and step.commit is None
        try:
            if step.statement is None:
                outcome = self._writer.leases.end(step.commit)
            elif job.is_abandoned:
                # A step that was sent ahead of the end of its client: others need not wait for it.
                raise job.why_over()
            else:
                limit.is_interrupted = step.is_interrupted
                outcome = self._run_statement(job, step.statement, step.commit, limit)
        except DeadlineExceeded as error:
            # Over its limit: nothing of it is kept, so no later statement may run either.
            job.reason = self._reason(job, limit.cause or str(error))
            outcome, goes_on = Outcome(error=error), False
        except Exception as error:
            # Only this statement failed: the transaction stays open, if SQLite has not ended it.
            outcome = Outcome(error=self._writer.connection.explain_to_caller(error))
        if self._writer.connection.broken is not None:
            self._on_broken()
        if step.commit is not None and outcome.error is None:
            self._answer_commit(step, outcome)
            return goes_on
        # The reply goes out before the end is marked: the holder trusts that order.
        self._answer(step, outcome)
        self._sent()
        return goes_on

    def _answer_commit(self, step: LeaseStep, outcome: Outcome) -> None:
        """Publish and answer a commit when it is synced: now, or with those of other leases."""
        writer, changes = self._writer, self._writer.take_changes()

        def answer(error: BaseException | None) -> None:
            if changes:
                writer.changes.add(changes)
            self._answer(step, outcome if error is None else Outcome(error=error))

        if writer.connection.shares_sync:
            self._shared.withhold(answer)
        else:
            answer(None)
            self._sent()

    def _after_lease(self) -> None:
        # Without a look at the source: under steady load there is no other time for checkpoints.
        self._writer.checkpointer.run_if_due(waiting=True)

    def _run_statement(
        self, job: Lease, statement: Any, commit: Request | None, limit: StatementLimit
    ) -> Outcome:
        """Run a statement of a lease, and its commit if it came along."""
        leases = self._writer.leases
        job.is_running = True
        try:
            if commit is None:
                return Outcome(leases.run(statement, limit))
            return leases.run_and_end(statement, commit, limit)
        finally:
            job.is_running = False

    def _next_step(self, job: Lease, limit: StatementLimit, idle: float) -> LeaseStep | None:
        """Return the next step; ``None`` if the holder pauses for too long, or its time is over.

        Steps that it has sent ahead are not run then: others wait.
        """
        pause_ends = self._clock() + idle
        while limit() is None and (left := pause_ends - self._clock()) > 0:
            with contextlib.suppress(queue.Empty):
                # In slices: others may begin to wait during the pause.
                return self._source.take_step(job.steps, min(left, limits.LEASE_LOOK_SECONDS))
        job.reason = self._reason(
            job, limit.cause or f"it paused for {idle:g} s, the longest pause"
        )
        return None

    def _reason(self, job: Lease, cause: str) -> str:
        """Return why a lease has ended, for its holder: the limit, and where it was."""
        leases = self._writer.leases
        allowed = leases.limits(job.terms)
        beside = allowed.beside_others
        others = "" if beside is None else f", {beside:g} s of it while others wait to write"
        last = f" after {leases.statements} statements, the last: {leases.last}"
        return (
            f"the transaction was rolled back{last if leases.last else ''}: {cause}. It may take"
            f" {allowed.total:g} s in all and pause for {allowed.idle:g} s{others}"
        )

    def _idle(self) -> float | None:
        return self._run_maintenance(self._writer.idle_slice)

    def _run_maintenance(self, work: Callable[[], R]) -> R | float:
        """Run *work*; if it fails, log it and retry later. It never costs a change (G16)."""
        try:
            result = work()
        except Exception as error:
            # A fault of the storage is one line each time; a bug has its traceback logged once, and
            # not every 5 s.
            expected = isinstance(error, HermesActorError | sqlite3.Error)
            if expected or repr(error) != repr(self._writer.maintenance.error):
                _log.warning(
                    "maintenance of %s failed, retrying in %g s: %s",
                    self._writer.paths.db,
                    limits.UPKEEP_RETRY_SECONDS,
                    error,
                    exc_info=None if expected else error,
                )
            self._writer.abandon()
            self._writer.maintenance.error = error
            return limits.UPKEEP_RETRY_SECONDS
        self._writer.maintenance.error = None
        return result


def _behind(done: int, total: int, failure: str | None) -> IndexBehind:
    words = f"indexed {done} of {total} messages in time"
    return IndexBehind(f"{words}; {failure}" if failure else words, done=done, total=total)
