"""The life of a writer between its first and its last job, the same for every host.

The host brings a *source* of jobs; the loop takes what waits, runs it as batches, and does upkeep
when nothing waits. Replies leave before any checkpoint: nobody waits for upkeep.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from hermes_actor import limits
from hermes_actor.engine.jobs import Call, CatchUp, Forget, Job, Lease, Outcome, Stop
from hermes_actor.errors import (
    DeadlineExceeded,
    HermesActorError,
    IndexBehind,
    OutcomeUnknown,
)

if TYPE_CHECKING:
    from hermes_actor.engine.writer import Writer

__all__ = ["Source", "serve"]

_log = logging.getLogger("hermes_actor.engine")


class Source(Protocol):
    """Where jobs come from."""

    def take(self, timeout: float | None) -> list[Job]:
        """What waits, in order, up to one batch; empty if nothing came in time."""
        ...

    def waiting(self) -> bool:
        """Whether more is there already."""
        ...


def serve(
    writer: Writer,
    source: Source,
    *,
    sent: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Work until a :class:`Stop` is taken. *sent* is called after the replies of each batch.

    A job that was taken is always finished, even when this function raises.
    """
    _Loop(writer, source, sent, clock).run()


class _Loop:
    def __init__(
        self,
        writer: Writer,
        source: Source,
        sent: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._writer = writer
        self._source = source
        self._sent = sent
        self._clock = clock
        self._open: list[Job] = []

    def run(self) -> None:
        try:
            pause: float | None = limits.IDLE_GRACE_SECONDS
            while True:
                jobs = [job for job in self._source.take(pause) if job.take()]
                if not jobs:
                    pause = self._idle()
                    continue
                self._open = list(jobs)
                if self._work(jobs):
                    return
                self._open = []
                pause = limits.IDLE_GRACE_SECONDS
        except BaseException as error:
            for job in self._open:
                job.finish(Outcome(error=OutcomeUnknown(f"the writer has stopped: {error}")))
            self._sent()
            raise

    def _finish(self, job: Job, outcome: Outcome) -> None:
        self._open.remove(job)
        job.finish(outcome)

    def _work(self, jobs: list[Job]) -> bool:
        """Run jobs in order, neighbouring calls together. True after a stop."""
        calls: list[Call] = []
        for job in jobs:
            if isinstance(job, Call):
                calls.append(job)
                continue
            self._run_calls(calls)
            calls = []
            if isinstance(job, Stop):
                self._writer.close()
                self._finish(job, Outcome())
                self._sent()
                return True
            self._run_other(job)
        self._run_calls(calls)
        return False

    def _run_calls(self, calls: list[Call]) -> None:
        while calls:
            outcomes = self._writer.run_batch([call.request for call in calls])
            for call, outcome in zip(calls, outcomes, strict=False):
                self._finish(call, outcome)
            self._sent()
            calls = calls[len(outcomes) :]
            self._writer.checkpoint_if_due(waiting=bool(calls) or self._source.waiting())
            if self._writer.index_lag_is_urgent:
                self._writer.index_slice(limits.INDEX_SLICE_BUSY_SECONDS)

    def _run_other(self, job: Job) -> None:
        try:
            if isinstance(job, CatchUp):
                self._catch_up(job)
            elif isinstance(job, Forget):
                self._writer.forget(job.client)
            elif isinstance(job, Lease):
                self._lease(job)
                return
        except HermesActorError as error:
            self._finish(job, Outcome(error=error))
        else:
            self._finish(job, Outcome())
        self._sent()

    def _catch_up(self, job: CatchUp) -> None:
        writer = self._writer
        while writer.index_slice(limits.INDEX_SLICE_BUSY_SECONDS):
            if writer.watermark >= job.through:
                return
            if self._clock() > job.deadline:
                raise IndexBehind(
                    f"indexed {writer.watermark} of {job.through} messages in time",
                    done=writer.watermark,
                    total=job.through,
                )

    def _lease(self, job: Lease) -> None:
        """Grant the lease, then follow its commands until it ends or a limit is reached."""
        self._writer.begin_lease(job.deadline)
        self._finish(job, Outcome())
        self._sent()
        end = self._clock() + limits.LEASE_TOTAL_SECONDS
        while not job.ended:
            allowed = min(limits.LEASE_IDLE_SECONDS, end - self._clock())
            try:
                command = job.commands.get(timeout=max(allowed, 0.0))
            except queue.Empty:
                command = None
            if command is None:
                self._writer.end_lease(None)
                job.ended = True
                break
            try:
                if command.statement is not None:
                    outcome = Outcome(self._writer.run_in_lease(command.statement))
                else:
                    outcome = self._writer.end_lease(command.commit)
            except Exception as error:
                outcome = Outcome(error=error)
            # The reply goes out before the end is marked: the holder trusts that order.
            command.finish(outcome)
            self._sent()
            job.ended = command.statement is None
        self._refuse_late_commands(job)

    def _refuse_late_commands(self, job: Lease) -> None:
        while not job.commands.empty():
            command = job.commands.get()
            if command is not None:
                command.finish(Outcome(error=lease_over()))
        self._sent()

    def _idle(self) -> float | None:
        try:
            return self._writer.idle_slice()
        except HermesActorError as error:
            _log.warning("upkeep of %s failed: %s", self._writer.place.db, error)
            return limits.PATIENCE_SECONDS


def lease_over() -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the transaction was rolled back: it may take {limits.LEASE_TOTAL_SECONDS:g} s in all"
        f" and pause for {limits.LEASE_IDLE_SECONDS:g} s"
    )
