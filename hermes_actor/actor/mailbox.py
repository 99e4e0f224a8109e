"""Admitted jobs, one lane per client, taken fairly.

A lane keeps the order in which its client sent. The writer takes one job of each lane in turn, so
a bulk importer with a full lane does not hold up a client that sends a single line. The event loop
puts jobs in; the writer thread takes them, and adds what it reads itself from the connections that
are lent to it (:mod:`hermes_actor.actor.writer_poll`). Everything else is safe in either thread.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor import limits
from hermes_actor.actor.writer_poll import WriterSelector

if TYPE_CHECKING:
    from hermes_actor.engine.jobs import Job, LeaseStep, LeaseSteps

__all__ = ["Mailbox", "MailboxStatistics"]


class MailboxStatistics(NamedTuple):
    jobs: int
    lanes: int
    oldest_age: float


class Mailbox:
    """The source of jobs of the writer thread."""

    def __init__(self) -> None:
        self.selector = WriterSelector()
        self._guard = threading.Lock()
        # Spares a write to the pipe for every job that finds the writer awake.
        self._sleeps = False
        self._awaits_step = False
        self._lanes: OrderedDict[bytes, deque[tuple[float, Job]]] = OrderedDict()
        self._count = 0
        self._last: Job | None = None
        self._waiting_since: float | None = None

    def put_last(self, job: Job) -> None:
        """Put in a job that is taken when everything admitted before and after it has been."""
        with self._guard:
            self._last = job
        # Always, not only if it sleeps: it comes once in a period, and may never be missed.
        self.selector.wake()

    def put(self, client: bytes, job: Job) -> None:
        """Admit a job to the end of its client's lane."""
        now = time.monotonic()
        with self._guard:
            lane = self._lanes.get(client)
            if lane is None:
                # A client without jobs has no lane: those that only listen cost no turn.
                lane = self._lanes[client] = deque()
            lane.append((now, job))
            self._count += 1
            if self._waiting_since is None:
                self._waiting_since = now
            # Decided under the same lock as in take(): either this thread sees that the writer
            # sleeps, or the writer sees the job before it does.
            if not self._sleeps:
                return
            self._sleeps = False
        self.selector.wake()

    def take(self, timeout: float | None) -> list[Job]:
        """Return up to a batch of jobs, one of each lane in turn; empty if none came in time.

        Writer thread only.
        """
        more = True
        while more:
            with self._guard:
                sleeps = self._sleeps = not self._count and self._last is None
            ready = self.selector.wait(timeout if sleeps else 0)
            # Awake: a put from here on need not write to the pipe.
            self._sleeps = False
            if ready:
                self._add_what_was_read(ready)
            # A wake-up that brought no job, such as a loan that ended, is waited out: an empty
            # result would mean to the loop that time is over, and it would begin idle work.
            more = bool(ready) and not self._count and self._last is None
        with self._guard:
            taken: list[Job] = []
            # The last job only from empty lanes: a drain finishes what was admitted.
            if not self._count and self._last is not None:
                taken.append(self._last)
                self._last = None
            while self._count and len(taken) < limits.BATCH_MAX_OPERATIONS:
                client, lane = self._lanes.popitem(last=False)
                taken.append(lane.popleft()[1])
                self._count -= 1
                # To the end of the order: one job of each lane before the second of any.
                if lane:
                    self._lanes[client] = lane
            # The age of the oldest job would not show a stuck writer: jobs that have waited for
            # too long are refused and removed, however stuck it is.
            self._waiting_since = time.monotonic() if self._count else None
            return taken

    def take_step(self, steps: LeaseSteps, timeout: float) -> LeaseStep | None:
        """Return the next step of the lease that is open; raise ``queue.Empty`` if none came in
        time. What other clients send meanwhile is taken in. Writer thread only."""
        until = time.monotonic() + timeout
        while steps.empty():
            # Set before the second look: either this thread sees a step that the event loop has
            # brought, or the event loop sees that this thread is to be woken.
            self._awaits_step = True
            left = until - time.monotonic()
            ready = self.selector.wait(max(0.0, left), spins=False) if steps.empty() else []
            self._awaits_step = False
            if ready:
                self._add_what_was_read(ready)
            elif left <= 0:
                break
        return steps.get_nowait()

    def notice_step(self) -> None:
        """Wake a writer that waits for a step, if it does. Safe in any thread."""
        if self._awaits_step:
            self._awaits_step = False
            self.selector.wake()

    def _add_what_was_read(self, ready: list[int]) -> None:
        # Around both steps, and always before *_guard*: an event loop that ends a loan and then
        # drops the lane finds every job of that client there (G3).
        with self.selector.lock:
            admitted, finished = self.selector.read(ready)
            now = time.monotonic()
            with self._guard:
                for client, job in admitted:
                    lane = self._lanes.get(client)
                    if lane is None:
                        lane = self._lanes[client] = deque()
                    lane.append((now, job))
                self._count += len(admitted)
                if admitted and self._waiting_since is None:
                    self._waiting_since = now
            if finished:
                self.selector.release(finished)

    def take_expired(self, now: float) -> list[Job]:
        """Remove the jobs whose deadline has passed."""
        # Without the lock: a job that comes this instant is not overdue.
        if not self._count:
            return []
        with self._guard:
            expired: list[Job] = []
            for client, lane in list(self._lanes.items()):
                late = [entry for entry in lane if entry[1].deadline < now]
                for entry in late:
                    lane.remove(entry)
                    expired.append(entry[1])
                if not lane:
                    del self._lanes[client]
            self._count -= len(expired)
            return expired

    def drop(self, client: bytes) -> list[Job]:
        """Remove what a superseded connection has queued and the writer has not taken."""
        with self._guard:
            lane = self._lanes.pop(client, None)
            if lane is None:
                return []
            self._count -= len(lane)
            return [job for _, job in lane]

    def drop_all(self) -> list[Job]:
        """Remove everything that the writer has not taken."""
        with self._guard:
            jobs = [job for lane in self._lanes.values() for _, job in lane]
            self._lanes.clear()
            self._count = 0
            return jobs

    @property
    def is_empty(self) -> bool:
        """True if no client has a job here. The last job does not count. Safe in any thread."""
        return self._count == 0

    def waiting(self) -> bool:
        """Return True if a job is queued, a polled socket is readable, or the last job is in.

        Writer thread only.
        """
        # In this order: the last check is a system call, and this runs between statements.
        return self._count > 0 or self._last is not None or self.selector.readable()

    def stalled_for(self) -> float:
        """Return for how many seconds the writer has taken nothing although jobs wait."""
        since = self._waiting_since
        return 0.0 if since is None else time.monotonic() - since

    def statistics(self) -> MailboxStatistics:
        """Return the number of jobs and lanes, and the age of the oldest job in seconds."""
        with self._guard:
            oldest = min((lane[0][0] for lane in self._lanes.values()), default=None)
            age = 0.0 if oldest is None else time.monotonic() - oldest
            return MailboxStatistics(self._count, len(self._lanes), age)
