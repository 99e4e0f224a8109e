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
    from hermes_actor.engine.jobs import Job

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
        self._sleeps = False
        self._lanes: OrderedDict[bytes, deque[tuple[float, Job]]] = OrderedDict()
        self._count = 0
        self._last: Job | None = None
        self._waiting_since: float | None = None

    def put_last(self, job: Job) -> None:
        """Put in a job that is taken when everything admitted before and after it has been."""
        with self._guard:
            self._last = job
        self.selector.wake()

    def put(self, client: bytes, job: Job) -> None:
        """Admit a job to the end of its client's lane."""
        now = time.monotonic()
        with self._guard:
            lane = self._lanes.get(client)
            if lane is None:
                lane = self._lanes[client] = deque()
            lane.append((now, job))
            self._count += 1
            if self._waiting_since is None:
                self._waiting_since = now
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
            more = bool(ready) and not self._count and self._last is None
        with self._guard:
            taken: list[Job] = []
            if not self._count and self._last is not None:
                taken.append(self._last)
                self._last = None
            while self._count and len(taken) < limits.BATCH_MAX_OPERATIONS:
                client, lane = self._lanes.popitem(last=False)
                taken.append(lane.popleft()[1])
                self._count -= 1
                if lane:
                    self._lanes[client] = lane
            # The age of the oldest job would not show a stuck writer: jobs that have waited for
            # too long are refused and removed, however stuck it is.
            self._waiting_since = time.monotonic() if self._count else None
            return taken

    def _add_what_was_read(self, ready: list[int]) -> None:
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
            if finished:
                self.selector.release(finished)

    def take_expired(self, now: float) -> list[Job]:
        """Remove the jobs whose deadline has passed."""
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
        return self._count == 0

    def waiting(self) -> bool:
        """Return True if a job is queued, a polled socket is readable, or the last job is in.

        Writer thread only.
        """
        return self._count > 0 or self._last is not None or self.selector.readable()

    def stalled_for(self) -> float:
        """Return for how many seconds the writer has taken nothing although jobs wait."""
        since = self._waiting_since
        return 0.0 if since is None else time.monotonic() - since

    def statistics(self) -> MailboxStatistics:
        with self._guard:
            oldest = min((lane[0][0] for lane in self._lanes.values()), default=None)
            age = 0.0 if oldest is None else time.monotonic() - oldest
            return MailboxStatistics(self._count, len(self._lanes), age)
