"""The writer thread. It owns the write connection for its whole life."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hermes_actor import exit_codes
from hermes_actor.embedded.leases import EmbeddedLease
from hermes_actor.embedded.queue import Completion, JobQueue
from hermes_actor.embedded.subscription import EmbeddedChanges
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Outcome, Request
from hermes_actor.engine.loop import serve
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import ActorBroken, AlreadyOwned, Closed, HermesActorError, NotAllowed
from hermes_actor.paths import StorePaths
from hermes_actor.system.fork import inside
from hermes_actor.write_settings import rules_or_default
from hermes_protocol.features import SESSIONS
from hermes_protocol.operations import Operation, SqlReply, SqlRun

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import Answer, Lease, SqlLease

__all__ = ["EmbeddedWriter", "close_inherited_locks"]

R = TypeVar("R")

_log = logging.getLogger("hermes_actor.embedded")

_held: set[OwnerLock] = set()
"""The locks of this process, also of writers that are about to begin or to end."""


def close_inherited_locks() -> None:
    """Close the copies of a forked child: the locks are the parent's and must not outlive it."""
    while _held:
        _held.pop().release()


class EmbeddedWriter:
    """One writer thread, shared by its users. Get it with :func:`hermes_actor.embedded.share`."""

    def __init__(
        self, paths: StorePaths, release: Callable[[EmbeddedWriter], None], kind: str = SESSIONS
    ) -> None:
        """*release* is called when one of its users leaves. *kind* is that of a file that does not
        say its own."""
        self.paths = paths
        self._release = release
        self._kind = kind
        self._pid = os.getpid()
        self._queue = JobQueue()
        self.lease_holder: tuple[int, EmbeddedLease] | None = None
        self._stopped: BaseException | None = None
        # In the caller's thread, before anything is started: another owner is its error at once.
        self._lock = OwnerLock.acquire(paths, "embedded")
        _held.add(self._lock)
        opened = Completion()
        # Daemon, and stopped by atexit: a program that forgets to close must still end, and its
        # writer must still close the file properly.
        self._thread = threading.Thread(
            target=inside, args=(self._run, opened), name=f"writer {paths.db.name}", daemon=True
        )
        self._thread.start()
        try:
            opened.result()
        except BaseException:
            self.stop()
            raise

    @property
    def stopped(self) -> bool:
        """True if the writer takes no job any more."""
        return self._stopped is not None

    @property
    def kind(self) -> str:
        """The kind of the file."""
        return self._writer.kind.name

    @property
    def files_replaced(self) -> bool:
        """True if it stopped because its files were replaced (R3)."""
        connection = self._writer.connection
        return connection.broken is not None and connection.exit_code == exit_codes.FILES_REPLACED

    def submit(self, operation: Operation[R], timeout: float) -> R:
        """Have *operation* applied; returns its result once it is committed and synced.

        Raises :class:`DeadlineExceeded` if the writer could not begin within *timeout*, and the
        error of the change; see :class:`~hermes_actor.client.interfaces.WriterPort`.
        """
        (answer,) = self.send([operation], timeout)
        return cast("R", answer.result())

    def send(self, operations: Sequence[Operation[Any]], timeout: float) -> list[Answer]:
        """Give several operations to the writer, in order; returns their answers without waiting.

        Raises :class:`NotAllowed` inside a lease of the same thread, :class:`AlreadyOwned` in a
        forked child.
        """
        self._check_caller()
        return self._send(operations, timeout)

    def _send(self, operations: Sequence[Operation[Any]], timeout: float) -> list[Answer]:
        # One for all: the caller waits for the whole, not for each in turn.
        deadline = time.monotonic() + timeout
        answers: list[Answer] = []
        for operation in operations:
            completion = Completion()
            # Without a ticket: no connection lies between, so nothing is sent twice, and no receipt
            # is needed.
            job = jobs.Call(completion.finish, Request(operation, deadline))
            self._queue.put(job)
            answers.append(EmbeddedAnswer(self, completion, job))
        return answers

    def catch_up(self, through: int, timeout: float, *, damaged: int | None = None) -> None:
        """Return when both full-text indexes cover all messages up to *through*.

        *damaged*: rebuild them first, unless the schema has another number by now. Raises
        :class:`IndexBehind` if *timeout* is too short.
        """
        completion = Completion()
        deadline = time.monotonic() + timeout
        self._wait(
            completion, jobs.IndexBarrier(completion.finish, deadline, through, damaged=damaged)
        )

    def lease(self, timeout: float) -> Lease:
        """Begin an interactive transaction for the calling thread.

        Raises :class:`DeadlineExceeded` if the writer could not begin within *timeout*, and
        :class:`NotAllowed` if this thread holds one already.
        """
        completion = Completion()
        job = jobs.Lease(completion.finish, time.monotonic() + timeout)
        self._wait(completion, job)
        lease = EmbeddedLease(self, job)
        self.lease_holder = (threading.get_ident(), lease)
        return lease

    def run(self, run: SqlRun, timeout: float) -> SqlReply:
        """Run statements of a connection as one change.

        Raises as :meth:`submit`, but not in a thread that holds a lease: it waits.
        """
        self.check_process()
        (answer,) = self._send([run], timeout)
        return cast("SqlReply", answer.result())

    def open_lease(
        self,
        settings: Mapping[str, int | str],
        timeout: float,
        *,
        first: SqlRun | None = None,
        seconds: float | None = None,
        pause: float | None = None,
        begun: list[SqlLease] | None = None,
    ) -> SqlLease:
        """Begin the transaction of a connection, and run *first* in it.

        Raises :class:`DeadlineExceeded` if the writer could not begin within *timeout*. It is
        appended to *begun* before it is asked for.
        """
        self.check_process()
        completion = Completion()
        job = jobs.Lease(completion.finish, time.monotonic() + timeout)
        lease = EmbeddedLease(self, job)
        job.terms = jobs.LeaseTerms(first, settings, seconds, pause, lease.interrupted.is_set)
        if begun is not None:
            begun.append(lease)
        self._queue.put(job)
        lease.reply = self.result_of(completion, job)
        return lease

    def statistics(self) -> dict[str, Any]:
        """Return what describes this writer, for people."""
        return {"mode": "embedded", "pid": self._pid, "writer": repr(self._writer)}

    def subscribe(self, after: int | None, timeout: float) -> EmbeddedChanges:
        """Return the changes after ``commit_no`` *after*, or from now on.

        *timeout* is for writers in other processes; nothing is waited for here.
        """
        self._check_caller()
        return EmbeddedChanges(self, self._writer.changes, after)

    def release(self) -> None:
        """End one use. With the last one the writer stops and the file is closed."""
        self._release(self)

    def check_process(self) -> None:
        """Raise :class:`AlreadyOwned` in a forked child: thread, file and lock are the parent's."""
        if self._pid != os.getpid():
            raise AlreadyOwned(
                f"{self.paths.db} was opened with mode='embedded' by process {self._pid};"
                f" a forked child cannot use that writer"
            )

    def _check_caller(self) -> None:
        self.check_process()
        # The writer serves nothing else during a lease: this thread would wait for itself.
        if self.lease_holder is not None and self.lease_holder[0] == threading.get_ident():
            raise NotAllowed("a call inside _execute_write would wait for its own transaction")

    def _wait(self, completion: Completion, job: jobs.Job) -> Any:
        self._check_caller()
        self._queue.put(job)
        return self.result_of(completion, job)

    def result_of(self, completion: Completion, job: jobs.Job) -> Any:
        """Wait for the end of *job* and return its result. Raises its error.

        Once the writer has stopped, a job that it has not taken is refused at once.
        """
        # Checked after the put: a writer that stops reads the queue once more after it is marked.
        if self._stopped is not None and job.take():
            raise self.why_stopped()
        return completion.wait(job)

    def why_stopped(self) -> HermesActorError:
        """Return a new error each time: one that is raised repeatedly grows its traceback."""
        assert self._stopped is not None
        kind = type(self._stopped) if isinstance(self._stopped, Closed) else ActorBroken
        return kind(str(self._stopped))

    def stop(self) -> None:
        """Finish what has been submitted, close the file, release the lock."""
        # In a forked child none of this is its own: LOCK_UN would free the lock of the parent.
        if self._pid == os.getpid():
            self._queue.put(jobs.Stop(lambda _outcome: None))
            self._thread.join()
            # After the thread has closed the file, never before (rule 1 of the owner lock).
            self._lock.unlock()
            _held.discard(self._lock)

    def _run(self, opened: Completion) -> None:
        """The writer thread: inside SQLite, as far as forks are concerned, except where it waits
        for jobs, for the commands of a lease, or for a foreign lock."""
        try:
            # Here and not in __init__: a write connection belongs to the thread that has opened it.
            self._writer = Writer(
                self.paths,
                others_wait=self._queue.waiting,
                on_epoch=self._lock.describe,
                kind=self._kind,
                rules=rules_or_default(self.paths.db.parent),
            )
        except BaseException as error:
            self._stopped = error
            opened.finish(Outcome(error=error))
            return
        opened.finish(Outcome())
        try:
            serve(self._writer, self._queue)
            self._stopped = Closed(f"the writer of {self.paths.db} has been closed")
        except ActorBroken as error:  # the writer has logged its cause
            self._stopped = error
        except BaseException as error:
            _log.exception("the writer of %s has stopped", self.paths.db)
            self._stopped = ActorBroken(f"the writer has stopped: {error}")
        self._writer.changes.add(())  # wakes subscribers, which then see the end
        # After the mark is set: a job that is put from now on is refused by its sender (result_of).
        while self._queue.waiting():
            for job in self._queue.take(0):
                if job.take():
                    job.on_done(Outcome(error=self.why_stopped()))


class EmbeddedAnswer:
    """The pending answer to one operation."""

    __slots__ = ("_completion", "_job", "_writer")

    def __init__(self, writer: EmbeddedWriter, completion: Completion, job: jobs.Job) -> None:
        self._writer = writer
        self._completion = completion
        self._job = job

    def done(self) -> bool:
        """Return True if :meth:`result` would not wait."""
        return self._completion.poll(0)

    def result(self) -> Any:
        """Wait for the result and return it, as often as it is called. Raises the error."""
        return self._writer.result_of(self._completion, self._job)
