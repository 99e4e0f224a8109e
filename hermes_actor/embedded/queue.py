"""How callers and the writer thread meet: a queue of jobs, and a place to wait for each."""

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

__all__ = ["Queue", "Waiter"]


class Waiter:
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
        began = time.monotonic()
        if not self.poll(job.deadline - began) and job.take():
            raise DeadlineExceeded(
                f"the writer of this process was busy for {time.monotonic() - began:.3g} s, longer"
                f" than the caller's timeout; nothing was changed"
            )
        return self.result()


class Queue:
    """The jobs of one writer, in the order in which they came."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[jobs.Job] = queue.SimpleQueue()
        self.put = self._jobs.put

    def take(self, timeout: float | None) -> list[jobs.Job]:
        try:
            taken = [outside(self._jobs.get, timeout=timeout)]
        except queue.Empty:
            return []
        while len(taken) < limits.BATCH_MAX_OPERATIONS and not self._jobs.empty():
            taken.append(self._jobs.get())
        return taken

    def waiting(self) -> bool:
        return not self._jobs.empty()
