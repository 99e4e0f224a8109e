"""A transaction that a caller holds open: its end of the lease."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from hermes_actor import limits
from hermes_actor.embedded.queue import Completion
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Request
from hermes_protocol.operations import SqlLease, SqlReply, SqlResult, SqlRun, SqlStatement

if TYPE_CHECKING:
    from hermes_actor.embedded.writer import EmbeddedWriter

__all__ = ["EmbeddedLease"]


class EmbeddedLease:
    """The caller's end of a lease, of a SessionDB or of a program's connection."""

    def __init__(self, writer: EmbeddedWriter, job: jobs.Lease) -> None:
        self.reply: SqlReply | None = None
        """The reply to the first run of its terms."""
        self.interrupted = threading.Event()
        """Set once the statement that runs, or runs first, is to end."""
        self._writer = writer
        self._job = job

    @property
    def _over(self) -> bool:
        return self._job.ended or self._writer.stopped

    def execute(self, statement: SqlStatement) -> SqlResult:
        """Run *statement* in the transaction and return its result.

        Raises its error, which leaves the transaction open; :class:`DeadlineExceeded` if the lease
        is over, and nothing of it was kept.
        """
        return cast("SqlResult", self._ask(statement, None))

    def run(self, run: SqlRun) -> SqlReply:
        """Run statements in the transaction; an error of their own is in the reply.

        Raises :class:`DeadlineExceeded` if the lease is over, and nothing of it was kept.
        """
        return cast("SqlReply", self._ask(run, None))

    def run_and_commit(self, last: SqlRun) -> SqlReply:
        """Run *last* and commit; with an error in the reply everything was rolled back."""
        reply = self.run(last)
        if reply.error is None:
            self.commit()
        else:
            self.rollback()
        return reply

    def commit(self) -> None:
        """Commit as one change; returns once it is durable.

        Raises :class:`DeadlineExceeded` if the lease had ended before, and otherwise the error that
        says whether the change was executed.
        """
        # Without a ticket: no connection lies between, so nothing is ever sent twice.
        self._end(Request(SqlLease(lease=0)))

    def rollback(self) -> None:
        """End the lease, keep nothing of it. Raises :class:`DeadlineExceeded` if it had ended."""
        self._end(None)

    def give_up(self) -> None:
        """End the lease, keep nothing of it, and wait for nothing. Harmless if it had ended."""
        self._job.put(jobs.LeaseStep(None, None, lambda _outcome: None))

    def interrupt(self) -> None:
        """Have the statement end that another thread waits for."""
        self.interrupted.set()

    def _end(self, commit: Request | None) -> None:
        try:
            self._ask(None, commit)
        finally:
            # An expired lease must not take the mark of the one that came after it.
            holder = self._writer.lease_holder
            if holder is not None and holder[1] is self:
                self._writer.lease_holder = None

    def _ask(self, statement: SqlStatement | SqlRun | None, commit: Request | None) -> Any:
        completion = Completion()
        self.interrupted = threading.Event()  # of this step alone
        is_interrupted = self.interrupted.is_set
        self._job.put(jobs.LeaseStep(statement, commit, completion.finish, is_interrupted))
        # Once the end is marked no step is read any more: an open reply then will never come.
        while not completion.poll(0 if self._over else limits.LEASE_IDLE_SECONDS):
            if self._over and not completion.poll(0):
                raise self._job.why_over()
        return completion.result()
