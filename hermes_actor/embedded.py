"""Embedded mode: the writer as a thread of the calling process.

For tests and programs of one process. All SessionDB objects on one file share one writer; a
second process is told who holds it. The thread owns the write connection for its whole life, takes
everything that waits as one batch, and does upkeep when nothing waits.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hermes_actor.engine import limits
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.writer import Outcome, Request, Writer
from hermes_actor.errors import (
    ActorBroken,
    Closed,
    DeadlineExceeded,
    HermesActorError,
    IndexBehind,
    NotAllowed,
    OutcomeUnknown,
    Owned,
)

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.client.port import Lease
    from hermes_actor.paths import Place
    from hermes_protocol.operations import Operation, SqlResult, SqlStatement

__all__ = ["EmbeddedWriter", "share"]

R = TypeVar("R")

_log = logging.getLogger("hermes_actor.embedded")


class _Job:
    """Something for the writer thread, and the place where the caller waits for it."""

    __slots__ = ("_done", "_guard", "deadline", "outcome")

    def __init__(self, patience: float) -> None:
        self.deadline = time.monotonic() + patience
        self.outcome = Outcome()
        self._done = threading.Lock()
        self._done.acquire()
        self._guard = threading.Lock()

    def take(self) -> bool:
        """The writer takes the job, unless its caller has given up."""
        return self._guard.acquire(blocking=False)

    def finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._done.release()

    @property
    def finished(self) -> bool:
        return not self._done.locked()

    def poll(self, seconds: float) -> None:
        """Wait for the end for a while."""
        if self._done.acquire(timeout=seconds):
            self._done.release()

    def wait(self) -> Any:
        """The result. A caller gives up only while the job has not been taken."""
        patience = self.deadline - time.monotonic()
        timeout = min(max(0.0, patience), threading.TIMEOUT_MAX)
        if not self._done.acquire(timeout=timeout):
            if self._guard.acquire(blocking=False):
                raise DeadlineExceeded("the writer was busy for longer than the caller's patience")
            self._done.acquire()
        if self.outcome.error is not None:
            raise self.outcome.error
        return self.outcome.result


class _Call(_Job):
    __slots__ = ("operation",)

    def __init__(self, operation: Operation[Any], patience: float) -> None:
        super().__init__(patience)
        self.operation = operation


class _CatchUp(_Job):
    __slots__ = ("through",)

    def __init__(self, through: int, patience: float) -> None:
        super().__init__(patience)
        self.through = through


class _Stop(_Job):
    __slots__ = ()


class _LeaseJob(_Job):
    """A lease: granted when the writer takes it, then a dialogue of statements."""

    __slots__ = ("commands", "ended")

    def __init__(self, patience: float) -> None:
        super().__init__(patience)
        self.ended = False
        self.commands: queue.SimpleQueue[tuple[str, SqlStatement | None, _Job]] = (
            queue.SimpleQueue()
        )


class EmbeddedWriter:
    """One writer thread and its users. Get it with :func:`share`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._taken: list[_Job] = []
        self._lease_holder: int | None = None
        self._stopped: BaseException | None = None
        self._lock = OwnerLock.acquire(place)
        opened = _Job(float("inf"))
        # Daemon, and stopped by atexit: a program that forgets to close must still end, and its
        # writer must still close the file properly.
        self._thread = threading.Thread(
            target=self._serve, args=(opened,), name=f"writer {place.db.name}", daemon=True
        )
        self._thread.start()
        try:
            opened.wait()
        except BaseException:
            self._thread.join()
            self._lock.release()
            raise

    # --- the callers' side -----------------------------------------------------------------

    def submit(self, operation: Operation[R], patience: float) -> R:
        return cast("R", self._wait(_Call(operation, patience)))

    def catch_up(self, through: int, patience: float) -> None:
        self._wait(_CatchUp(through, patience))

    def lease(self, patience: float) -> Lease:
        job = _LeaseJob(patience)
        self._wait(job)
        self._lease_holder = threading.get_ident()
        return _EmbeddedLease(self, job)

    def statistics(self) -> dict[str, Any]:
        return {"mode": "embedded", "pid": self._pid, "writer": repr(self._writer)}

    def release(self) -> None:
        _registry.release(self)

    def _wait(self, job: _Job) -> Any:
        if self._pid != os.getpid():
            raise Owned(
                f"{self._place.db} was opened with mode='embedded' by process {self._pid};"
                f" a forked child cannot use that writer"
            )
        if self._lease_holder == threading.get_ident():
            raise NotAllowed("a call inside _execute_write would wait for its own transaction")
        if self._stopped is not None:
            raise self._stopped
        self._jobs.put(job)
        return job.wait()

    def stop(self) -> None:
        """Finish what has been submitted, close the file, release the lock."""
        if self._stopped is None and self._pid == os.getpid():
            self._jobs.put(_Stop(float("inf")))
            self._thread.join()
            self._lock.release()

    # --- the writer thread -----------------------------------------------------------------

    def _serve(self, opened: _Job) -> None:
        try:
            self._writer = Writer(self._place, somebody_waits=lambda: not self._jobs.empty())
        except BaseException as error:
            self._stopped = error
            opened.finish(Outcome(error=error))
            return
        opened.finish(Outcome())
        try:
            self._loop()
            self._stopped = Closed(f"the writer of {self._place.db} has been closed")
        except BaseException as error:
            _log.exception("the writer of %s has stopped", self._place.db)
            self._stopped = ActorBroken(f"the writer has stopped: {error}")
        finally:
            self._refuse_the_rest()

    def _loop(self) -> None:
        pause: float | None = limits.IDLE_GRACE_SECONDS
        while True:
            try:
                job = self._jobs.get(timeout=pause)
            except queue.Empty:
                pause = self._idle()
                continue
            if isinstance(job, _Stop):
                self._writer.close()
                return
            self._handle(job)
            pause = limits.IDLE_GRACE_SECONDS

    def _handle(self, job: _Job) -> None:
        """Run one job, and with a call everything that waits behind it up to the next other job."""
        waiting: list[_Call] = []
        following: _Job | None = job
        while isinstance(following, _Call):
            if following.take():
                waiting.append(following)
            following = None
            if len(waiting) < limits.BATCH_MAX_OPERATIONS and not self._jobs.empty():
                following = self._jobs.get()
        self._taken = [*waiting, following] if following else list(waiting)
        self._run_calls(waiting)
        if isinstance(following, _Stop):
            self._jobs.put(following)
        elif isinstance(following, _CatchUp) and following.take():
            self._catch_up(following)
        elif isinstance(following, _LeaseJob) and following.take():
            self._run_lease(following)
        self._taken = []

    def _run_calls(self, calls: list[_Call]) -> None:
        while calls:
            outcomes = self._writer.run_batch([Request(c.operation, c.deadline) for c in calls])
            for call, outcome in zip(calls, outcomes, strict=False):
                call.finish(outcome)
            calls = calls[len(outcomes) :]
            self._writer.checkpoint_if_due(waiting=bool(calls) or not self._jobs.empty())
            if self._writer.index_lag_is_urgent:
                self._writer.index_slice(limits.INDEX_SLICE_BUSY_SECONDS)

    def _catch_up(self, job: _CatchUp) -> None:
        writer = self._writer
        try:
            while writer.watermark < job.through:
                if not writer.index_slice(limits.INDEX_SLICE_BUSY_SECONDS):
                    break
                if time.monotonic() > job.deadline:
                    raise IndexBehind(
                        f"indexed {writer.watermark} of {job.through} messages in time",
                        done=writer.watermark,
                        total=job.through,
                    )
        except HermesActorError as error:
            job.finish(Outcome(error=error))
        else:
            job.finish(Outcome())

    def _idle(self) -> float | None:
        try:
            return self._writer.idle_slice()
        except HermesActorError as error:
            _log.warning("upkeep of %s failed: %s", self._place.db, error)
            return limits.PATIENCE_SECONDS

    def _run_lease(self, job: _LeaseJob) -> None:
        writer, end = self._writer, time.monotonic() + limits.LEASE_TOTAL_SECONDS
        try:
            writer.begin_lease(job.deadline)
        except HermesActorError as error:
            job.finish(Outcome(error=error))
            return
        job.finish(Outcome())
        while not job.ended:
            allowed = min(limits.LEASE_IDLE_SECONDS, end - time.monotonic())
            try:
                verb, statement, reply = job.commands.get(timeout=max(allowed, 0.0))
            except queue.Empty:
                writer.end_lease(commit=False)
                job.ended = True
                return
            try:
                if statement is not None:
                    outcome = Outcome(writer.run_in_lease(statement))
                else:
                    writer.end_lease(commit=verb == "commit")
                    outcome = Outcome()
            except Exception as error:
                outcome = Outcome(error=error)
            # The reply goes out before the end is marked: the holder trusts that order.
            reply.finish(outcome)
            job.ended = statement is None

    def _refuse_the_rest(self) -> None:
        """Nobody may wait for a writer that is gone."""
        for job in self._taken:
            if not job.finished:
                job.finish(
                    Outcome(error=OutcomeUnknown(f"the writer has stopped: {self._stopped}"))
                )
        while not self._jobs.empty():
            job = self._jobs.get()
            if job.take():
                job.finish(Outcome(error=self._stopped))


class _EmbeddedLease:
    """The caller's end of a lease."""

    def __init__(self, writer: EmbeddedWriter, job: _LeaseJob) -> None:
        self._writer = writer
        self._job = job

    def execute(self, statement: SqlStatement) -> SqlResult:
        return cast("SqlResult", self._ask("execute", statement))

    def commit(self) -> None:
        self._end("commit")

    def rollback(self) -> None:
        self._end("rollback")

    def _end(self, verb: str) -> None:
        try:
            self._ask(verb, None)
        finally:
            self._writer._lease_holder = None

    def _ask(self, verb: str, statement: SqlStatement | None) -> Any:
        reply = _Job(float("inf"))
        self._job.commands.put((verb, statement, reply))
        # Once the end is marked nobody reads the queue: an open reply then will never come.
        while not reply.finished:
            if self._job.ended and not reply.finished:
                raise DeadlineExceeded(
                    f"the transaction was rolled back: it may take {limits.LEASE_TOTAL_SECONDS:g} s"
                    f" in all and pause for {limits.LEASE_IDLE_SECONDS:g} s"
                )
            reply.poll(limits.LEASE_IDLE_SECONDS)
        return reply.wait()


class _Registry:
    """The writers of this process, by file, with the number of their users."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._users: dict[Path, tuple[EmbeddedWriter, int]] = {}
        self._pid = os.getpid()

    def share(self, place: Place) -> EmbeddedWriter:
        with self._guard:
            if self._pid != os.getpid():
                # The parent's writers are not ours; their locks are held by the parent.
                self._users, self._pid = {}, os.getpid()
            writer, users = self._users.get(place.db, (None, 0))
            if writer is None or writer._stopped is not None:
                writer = EmbeddedWriter(place)
            self._users[place.db] = (writer, users + 1)
            return writer

    def release(self, writer: EmbeddedWriter) -> None:
        with self._guard:
            registered, users = self._users.get(writer._place.db, (None, 0))
            if registered is not writer:
                return
            if users > 1:
                self._users[writer._place.db] = (writer, users - 1)
                return
            del self._users[writer._place.db]
            writer.stop()

    def stop_all(self) -> None:
        with self._guard:
            writers, self._users = list(self._users.values()), {}
        if self._pid == os.getpid():
            for writer, _ in writers:
                writer.stop()


_registry = _Registry()
share = _registry.share
atexit.register(_registry.stop_all)
