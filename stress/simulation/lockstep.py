"""A thread that runs only while its owner waits for it: code that blocks, inside simulated time.

The loop of the engine blocks when it waits for jobs and when it sleeps. Here it runs in a thread of
its own, and the baton goes back and forth: at every moment exactly one of the two sides runs, so a
run depends on nothing but the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Killed", "LockStep"]


class Killed(BaseException):
    """The simulated process ends here, without another word."""


class LockStep:
    """Runs *work* in steps. Between two steps it waits until ``wake`` or, if it *listens*, news."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._mine = threading.Semaphore(0)
        self._theirs = threading.Semaphore(0)
        self._killed = False
        self.wake = float("inf")
        self.listens = True
        self.ended = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._theirs.acquire()
        try:
            if not self._killed:
                self._work()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._mine.release()

    def step(self) -> None:
        """By the owner: let it run until it waits again, or has ended."""
        self._theirs.release()
        self._mine.acquire()

    def kill(self) -> None:
        """By the owner: it gets no further than where it waits now."""
        if not self.ended:
            self._killed = True
            self.step()
        self._thread.join()

    def wait(self, until: float, *, listens: bool) -> None:
        """By the thread: give the baton back until a time."""
        self.wake, self.listens = until, listens
        self._mine.release()
        self._theirs.acquire()
        if self._killed:
            raise Killed
