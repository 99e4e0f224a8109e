"""The tasks that wait on one connection: some work for all, the others sleep until woken."""

from __future__ import annotations

from collections.abc import Callable

import anyio

__all__ = ["WaitQueue", "Waiter"]


class Waiter:
    """One task that waits until *done* says so, asleep or at work for all."""

    __slots__ = ("done", "event", "work")

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        self.event: anyio.Event | None = None
        self.work: anyio.CancelScope | None = None

    def wake(self) -> None:
        """Have it check again; its work is interrupted, and left to the next task."""
        if self.event is not None:
            self.event.set()
        if self.work is not None:
            self.work.cancel()


class WaitQueue:
    """The sleeping tasks of one connection.

    At most one of them is on its way to take over work at any time, so that a free place costs
    one task a wake-up and not all of them. If that one is cancelled on its way, it is forgotten
    here, and the next task that leaves wakes another.
    """

    def __init__(self) -> None:
        self._asleep: dict[Waiter, None] = {}
        self._called: Waiter | None = None

    async def sleep(self, waiter: Waiter, seconds: float) -> None:
        """Sleep until the waiter is woken, at most *seconds*."""
        # A new one each time: events cannot be cleared, and one that was set late belongs to no
        # sleep.
        event = waiter.event = anyio.Event()
        self._asleep[waiter] = None
        try:
            with anyio.move_on_after(seconds):
                await event.wait()
        finally:
            waiter.event = None
            del self._asleep[waiter]
            if self._called is waiter:
                self._called = None

    def wake_next(self) -> None:
        """Wake the task that has slept longest, to take over work."""
        if self._called is not None:
            return  # one is on its way; it takes over, or wakes the next when it leaves
        for waiter in self._asleep:
            # Not one that is awake already: it may have its reply, and would not take over.
            if waiter.event is not None and not waiter.event.is_set():
                self._called = waiter
                waiter.wake()
                return

    def wake_done(self) -> None:
        """Wake the tasks that have what they waited for."""
        for waiter in self._asleep:
            if waiter.done():
                waiter.wake()

    def wake_all(self) -> None:
        """Wake every task: the connection is lost, and each decides for itself what to do."""
        for waiter in self._asleep:
            waiter.wake()
