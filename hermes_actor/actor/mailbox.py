"""Admitted jobs, one lane per client, taken fairly.

A lane keeps the order in which its client sent. The writer takes one job of each lane in turn, so
a bulk importer with a full lane does not hold up somebody who sends a single line. The event loop
puts, and so does the writer itself with what it reads from connections that are lent to it; the
writer takes. Everything else about the mailbox is asked from either.
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
        self.intake = WriterSelector()
        self._guard = threading.Lock()
        self._sleeps = False
        self._lanes: OrderedDict[bytes, deque[tuple[float, Job]]] = OrderedDict()
        self._count = 0
        self._last: Job | None = None

    def put_last(self, job: Job) -> None:
        """A job that is taken when everything admitted before and after it has been."""
        with self._guard:
            self._last = job
        self.intake.ring()

    def put(self, client: bytes, job: Job) -> None:
        """Admit a job to the end of its client's lane."""
        with self._guard:
            lane = self._lanes.get(client)
            if lane is None:
                lane = self._lanes[client] = deque()
            lane.append((time.monotonic(), job))
            self._count += 1
            if not self._sleeps:
                return
            self._sleeps = False
        self.intake.ring()

    def take(self, timeout: float | None) -> list[Job]:
        """Up to a batch of jobs, one of each lane in turn; empty if nothing came in time."""
        more = True
        while more:
            with self._guard:
                sleeps = self._sleeps = not self._count and self._last is None
            ready = self.intake.wait(timeout if sleeps else 0)
            # From here on nobody needs to wake us, least of all we ourselves.
            self._sleeps = False
            if ready:
                self.intake.admit(ready)
            more = bool(ready) and not self._count and self._last is None
        with self._guard:
            if not self._count and self._last is not None:
                last, self._last = self._last, None
                return [last]
            taken: list[Job] = []
            while self._count and len(taken) < limits.BATCH_MAX_OPERATIONS:
                client, lane = self._lanes.popitem(last=False)
                taken.append(lane.popleft()[1])
                self._count -= 1
                if lane:
                    self._lanes[client] = lane
            return taken

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
        """In the writer's thread: whether somebody waits, here or at the door, or for our end."""
        return self._count > 0 or self._last is not None or self.intake.somebody_is_here()

    def statistics(self) -> MailboxStatistics:
        with self._guard:
            oldest = min((lane[0][0] for lane in self._lanes.values()), default=None)
            age = 0.0 if oldest is None else time.monotonic() - oldest
            return MailboxStatistics(self._count, len(self._lanes), age)
