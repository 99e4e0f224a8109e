"""The queue between callers and the writer thread, and the completion of each job."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from hermes_actor import limits
from hermes_actor.engine.jobs import Outcome
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.system.fork import outside

if TYPE_CHECKING:
    from hermes_actor.engine import jobs

__all__ = ["Completion", "JobQueue"]


class Completion:
    """Lets a caller wait for the end of a job."""

    __slots__ = ("_done", "_outcome")

    def __init__(self) -> None:
        self._outcome = Outcome()
        # A lock that is held until the end: cheaper than an Event, and one is made for each change.
        self._done = threading.Lock()
        self._done.acquire()

    def finish(self, outcome: Outcome) -> None:
        """Set the outcome and wake the caller. Called once, in the writer thread."""
        self._outcome = outcome
        self._done.release()

    def poll(self, seconds: float) -> bool:
        """Wait for at most *seconds*; returns True if the job has ended."""
        # acquire() refuses a time above this one, infinity included.
        if not self._done.acquire(timeout=min(max(seconds, 0.0), threading.TIMEOUT_MAX)):
            return False
        # Free again: a result can be asked for as often as the caller likes.
        self._done.release()
        return True

    def result(self) -> Any:
        """Wait for the end and return the result, as often as it is called. Raises its error."""
        with self._done:
            pass
        if self._outcome.error is not None:
            raise self._outcome.error
        return self._outcome.result

    def wait(self, job: jobs.Job) -> Any:
        """Return the result of *job*.

        Raises :class:`DeadlineExceeded` only while the writer has not taken the job: nothing was
        executed then. Once it is taken, its true outcome is waited for (G9).
        """
        began = time.monotonic()
        # The claim decides, not the clock: if the writer was quicker, the outcome is on its way.
        if not self.poll(job.deadline - began) and job.take():
            raise DeadlineExceeded(
                f"the writer of this process was busy for {time.monotonic() - began:.3g} s, longer"
                f" than the caller's timeout; nothing was changed"
            )
        return self.result()


class JobQueue:
    """The jobs of one writer, in the order in which they came."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[jobs.Job] = queue.SimpleQueue()
        self.put = self._jobs.put

    # An empty queue is the place where the thread sleeps: outside, as far as forks are concerned.
    def take(self, timeout: float | None) -> list[jobs.Job]:
        """Return the jobs that wait, in order, up to one batch; empty if none came in time."""
        try:
            taken = [outside(self._jobs.get, timeout=timeout)]
        except queue.Empty:
            return []
        # What is there makes the batch. No timer: a lone write commits at once, and more gathers by
        # itself while a commit is synced.
        while len(taken) < limits.BATCH_MAX_OPERATIONS and not self._jobs.empty():
            taken.append(self._jobs.get())
        return taken

    def take_step(self, steps: jobs.LeaseSteps, timeout: float) -> jobs.LeaseStep | None:
        """Return the next step of a lease; raise ``queue.Empty`` if none came in time."""
        return outside(steps.get, timeout=timeout)

    def waiting(self) -> bool:
        """Return True if a job waits. It may have been given up."""
        return not self._jobs.empty()
