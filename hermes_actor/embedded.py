"""Embedded mode: the writer as a thread of the calling process.

For tests and programs of one process. All SessionDB objects on one file share one writer; a
second process is told who holds it. The thread owns the write connection for its whole life.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hermes_actor import exits, limits
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Outcome, Request, lease_over
from hermes_actor.engine.loop import serve
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import (
    ActorBroken,
    Closed,
    DeadlineExceeded,
    HermesActorError,
    NotAllowed,
    Owned,
)
from hermes_protocol.operations import SqlLease

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.client.port import Answer, Lease
    from hermes_actor.engine.changes import ChangeRing
    from hermes_actor.paths import Place
    from hermes_protocol.messages import Changed, Gap
    from hermes_protocol.operations import Operation, SqlResult, SqlStatement

__all__ = ["EmbeddedChanges", "EmbeddedWriter", "share"]

R = TypeVar("R")

_log = logging.getLogger("hermes_actor.embedded")


class _Waiter:
    """Where a caller waits for the end of a job."""

    __slots__ = ("_done", "_outcome")

    def __init__(self) -> None:
        self._outcome = Outcome()
        self._done = threading.Lock()
        self._done.acquire()

    def finish(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._done.release()

    def poll(self, seconds: float) -> bool:
        """Wait for a while; true when the end has come."""
        if not self._done.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX)):
            return False
        self._done.release()
        return True

    def result(self) -> Any:
        """The result, once the end has come; as often as it is asked for."""
        with self._done:
            pass
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._outcome.result

    def wait(self, job: jobs.Job) -> Any:
        """The result of *job*. A caller gives up only while the job has not been taken."""
        if not self.poll(job.deadline - time.monotonic()) and job.take():
            raise DeadlineExceeded("the writer was busy for longer than the caller's patience")
        return self.result()


class _Queue:
    """The jobs of one writer, in the order in which they came."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[jobs.Job] = queue.SimpleQueue()
        self.put = self._jobs.put

    def take(self, timeout: float | None) -> list[jobs.Job]:
        try:
            taken = [self._jobs.get(timeout=timeout)]
        except queue.Empty:
            return []
        while len(taken) < limits.BATCH_MAX_OPERATIONS and not self._jobs.empty():
            taken.append(self._jobs.get())
        return taken

    def waiting(self) -> bool:
        return not self._jobs.empty()


class EmbeddedWriter:
    """One writer thread and its users. Get it with :func:`share`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._pid = os.getpid()
        self._queue = _Queue()
        self._lease_holder: tuple[int, _EmbeddedLease] | None = None
        self._stopped: BaseException | None = None
        self._lock = OwnerLock.acquire(place)
        opened = _Waiter()
        # Daemon, and stopped by atexit: a program that forgets to close must still end, and its
        # writer must still close the file properly.
        self._thread = threading.Thread(
            target=self._run, args=(opened,), name=f"writer {place.db.name}", daemon=True
        )
        self._thread.start()
        try:
            opened.result()
        except BaseException:
            self.stop()
            raise

    @property
    def stopped(self) -> bool:
        return self._stopped is not None

    @property
    def files_replaced(self) -> bool:
        core = self._writer.core
        return core.broken is not None and core.exit_code == exits.FILES_REPLACED

    def submit(self, operation: Operation[R], patience: float) -> R:
        (answer,) = self.send([operation], patience)
        return cast("R", answer.result())

    def send(self, operations: Sequence[Operation[Any]], patience: float) -> list[Answer]:
        self._check_caller()
        deadline = time.monotonic() + patience
        answers: list[Answer] = []
        for operation in operations:
            waiter = _Waiter()
            job = jobs.Call(waiter.finish, Request(operation, deadline))
            self._queue.put(job)
            answers.append(_Answer(self, waiter, job))
        return answers

    def catch_up(self, through: int, patience: float, *, verify: bool = False) -> None:
        waiter = _Waiter()
        self._wait(
            waiter, jobs.CatchUp(waiter.finish, time.monotonic() + patience, through, verify)
        )

    def lease(self, patience: float) -> Lease:
        waiter = _Waiter()
        job = jobs.Lease(waiter.finish, time.monotonic() + patience)
        self._wait(waiter, job)
        lease = _EmbeddedLease(self, job)
        self._lease_holder = (threading.get_ident(), lease)
        return lease

    def statistics(self) -> dict[str, Any]:
        return {"mode": "embedded", "pid": self._pid, "writer": repr(self._writer)}

    def subscribe(self, after: int | None, patience: float) -> EmbeddedChanges:
        self._check_caller()
        return EmbeddedChanges(self, self._writer.changes, after)

    def release(self) -> None:
        _registry.release(self)

    def check_process(self) -> None:
        if self._pid != os.getpid():
            raise Owned(
                f"{self._place.db} was opened with mode='embedded' by process {self._pid};"
                f" a forked child cannot use that writer"
            )

    def _check_caller(self) -> None:
        self.check_process()
        if self._lease_holder is not None and self._lease_holder[0] == threading.get_ident():
            raise NotAllowed("a call inside _execute_write would wait for its own transaction")

    def _wait(self, waiter: _Waiter, job: jobs.Job) -> Any:
        self._check_caller()
        self._queue.put(job)
        return self._result(waiter, job)

    def _result(self, waiter: _Waiter, job: jobs.Job) -> Any:
        # Looked at after putting: a writer that stops looks at the queue once more after that.
        if self._stopped is not None and job.take():
            raise self.why_stopped()
        return waiter.wait(job)

    def why_stopped(self) -> HermesActorError:
        """A fresh error each time: one that is raised again and again grows its traceback."""
        assert self._stopped is not None
        kind = type(self._stopped) if isinstance(self._stopped, Closed) else ActorBroken
        return kind(str(self._stopped))

    def stop(self) -> None:
        """Finish what has been submitted, close the file, release the lock."""
        if self._pid == os.getpid():
            self._queue.put(jobs.Stop(lambda _outcome: None))
            self._thread.join()
            self._lock.release()

    def _run(self, opened: _Waiter) -> None:
        """The writer thread."""
        try:
            self._writer = Writer(
                self._place, somebody_waits=self._queue.waiting, on_epoch=self._lock.describe
            )
        except BaseException as error:
            self._stopped = error
            opened.finish(Outcome(error=error))
            return
        opened.finish(Outcome())
        try:
            serve(self._writer, self._queue)
            self._stopped = Closed(f"the writer of {self._place.db} has been closed")
        except ActorBroken as error:  # the writer has logged its cause
            self._stopped = error
        except BaseException as error:
            _log.exception("the writer of %s has stopped", self._place.db)
            self._stopped = ActorBroken(f"the writer has stopped: {error}")
        self._writer.changes.add(())  # wakes those who follow
        while self._queue.waiting():
            for job in self._queue.take(0):
                if job.take():
                    job.finish(Outcome(error=self.why_stopped()))


class _Answer:
    """The answer to one operation, when it comes."""

    __slots__ = ("_job", "_waiter", "_writer")

    def __init__(self, writer: EmbeddedWriter, waiter: _Waiter, job: jobs.Job) -> None:
        self._writer = writer
        self._waiter = waiter
        self._job = job

    def done(self) -> bool:
        return self._waiter.poll(0)

    def result(self) -> Any:
        return self._writer._result(self._waiter, self._job)


class _EmbeddedLease:
    """The caller's end of a lease."""

    def __init__(self, writer: EmbeddedWriter, job: jobs.Lease) -> None:
        self._writer = writer
        self._job = job

    @property
    def _over(self) -> bool:
        return self._job.ended or self._writer.stopped

    def execute(self, statement: SqlStatement) -> SqlResult:
        return cast("SqlResult", self._ask(statement, None))

    def commit(self) -> None:
        self._end(Request(SqlLease(lease=0)))

    def rollback(self) -> None:
        self._end(None)

    def _end(self, commit: Request | None) -> None:
        try:
            self._ask(None, commit)
        finally:
            # An expired lease must not take the mark of the one that came after it.
            holder = self._writer._lease_holder
            if holder is not None and holder[1] is self:
                self._writer._lease_holder = None

    def _ask(self, statement: SqlStatement | None, commit: Request | None) -> Any:
        waiter = _Waiter()
        self._job.put(jobs.Command(statement, commit, waiter.finish))
        # Once the end is marked nobody reads the commands: an open reply then will never come.
        while not waiter.poll(0 if self._over else limits.LEASE_IDLE_SECONDS):
            if self._over and not waiter.poll(0):
                raise lease_over()
        return waiter.result()


class EmbeddedChanges:
    """The changes of a writer in this process."""

    def __init__(self, writer: EmbeddedWriter, ring: ChangeRing, after: int | None) -> None:
        self._writer = writer
        self._ring = ring
        self._closed = False
        self._awake = threading.Event()
        forget = ring.add_listener(self._awake.set)
        self._forget = weakref.finalize(self, forget)
        self._forget.atexit = False
        self._position, gap = ring.position_after(after)
        self._news: deque[Changed | Gap] = deque([gap] if gap is not None else [])

    def take(self) -> Changed | Gap | None:
        if self._closed:
            raise Closed("this subscription is closed")
        self._writer.check_process()
        if not self._news:
            # Cleared before looking: what comes after the look wakes again.
            self._awake.clear()
            stopped = self._writer.stopped
            items, self._position = self._ring.read(self._position, limits.FOLLOWER_CHANGES_AT_ONCE)
            self._news.extend(items)
            if stopped and not items:
                raise self._writer.why_stopped()
        return self._news.popleft() if self._news else None

    def wait(self, seconds: float | None) -> None:
        self._awake.wait(seconds)

    def wake(self) -> None:
        self._awake.set()

    def close(self) -> None:
        self._closed = True
        self._forget()
        self._awake.set()


class _Registry:
    """The writers of this process, by file, with the number of their users."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._replaced: set[Path] = set()
        self._users: dict[Path, tuple[EmbeddedWriter, int]] = {}
        os.register_at_fork(after_in_child=self._after_fork)

    def share(self, place: Place) -> EmbeddedWriter:
        """The writer of *place*, started if this process has none yet."""
        with self._guard:
            writer, users = self._users.get(place.db, (None, 0))
            if writer is not None and writer.stopped:
                raise writer.why_stopped()
            if place.db in self._replaced:
                raise ActorBroken(
                    f"the files of {place.db} were replaced under this process; start it again"
                )
            if writer is None:
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
            if writer.files_replaced:
                self._replaced.add(writer._place.db)

    def stop_all(self) -> None:
        with self._guard:
            writers, self._users = list(self._users.values()), {}
        for writer, _ in writers:
            writer.stop()

    def _after_fork(self) -> None:
        """The parent's writers stay the parent's; our copies of its locks must not outlive it."""
        self._guard = threading.Lock()
        users, self._users = self._users, {}
        for writer, _ in users.values():
            writer._lock.release()


_registry = _Registry()
share = _registry.share
atexit.register(_registry.stop_all)
