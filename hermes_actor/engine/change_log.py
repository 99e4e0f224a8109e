"""The latest changes of a database, for subscribers.

The writer's thread adds every commit to a ring; subscribers read it at their own pace, each from
its own position. One that falls out of the ring gets the numbers of the changes it has missed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from hermes_actor import limits
from hermes_protocol.messages import Changed, Gap

__all__ = ["FOREIGN", "ChangeLog", "Position"]

FOREIGN = Changed()
"""Stands for commits of other programs, whose content is unknown."""


class Position(NamedTuple):
    """The next item of the ring to read, and the last ``commit_no`` before it."""

    item: int
    after: int


class ChangeLog:
    """The last changes of one database. Safe to use from any thread."""

    def __init__(self, size: int = limits.RING_CHANGES) -> None:
        self._guard = threading.Lock()
        self._ring: deque[Changed] = deque(maxlen=size)
        self._added = 0
        self._floor = 0
        self._newest = 0
        self._listeners: list[Callable[[], None]] = []

    def begin(self, commit_no: int) -> None:
        """Start empty at *commit_no*, where the writer has opened the file."""
        with self._guard:
            self._ring.clear()
            self._floor = self._newest = commit_no

    def add(self, changes: Iterable[Changed]) -> None:
        """Add committed changes, in their order. Writer thread only."""
        with self._guard:
            for change in changes:
                # The oldest falls out with the next append. Foreign commits have no number.
                if len(self._ring) == self._ring.maxlen:
                    self._floor = self._ring[0].commit_no or self._floor
                self._ring.append(change)
                self._added += 1
                self._newest = change.commit_no or self._newest
        # Outside of the lock: a listener may read the ring.
        for listener in tuple(self._listeners):
            listener()

    def add_listener(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have *listener* called, in the writer's thread, after each addition.

        Returns the function that removes it.
        """
        with self._guard:
            # A new list: add() walks the old one without the lock.
            self._listeners = [*self._listeners, listener]

        def remove() -> None:
            with self._guard:
                self._listeners = [known for known in self._listeners if known is not listener]

        return remove

    def position_after(self, after: int | None) -> tuple[Position, Gap | None]:
        """Return the position to read on after ``commit_no`` *after*; ``None``: from now on.

        The gap names what the ring no longer has; or, for a number that is yet to come, that the
        file is not the one in which it was seen.
        """
        with self._guard:
            if after is None or after == self._newest:
                return Position(self._added, self._newest), None
            if after > self._newest:
                gap = Gap(after=after, through=self._newest)
                return Position(self._added, self._newest), gap
            if after < self._floor:
                gap = Gap(after=after, through=self._floor)
                return Position(self._added - len(self._ring), self._floor), gap
            first = self._added - len(self._ring)
            # From the newest end: a subscriber that resumes is seldom far behind.
            for back, change in enumerate(reversed(self._ring)):
                if change.commit_no is not None and change.commit_no <= after:
                    return Position(self._added - back, after), None
            return Position(first, after), None

    def read(self, position: Position, limit: int) -> tuple[list[Changed | Gap], Position]:
        """Return up to *limit* items from *position* on, and the position after them."""
        with self._guard:
            items: list[Changed | Gap] = []
            first, after = self._added - len(self._ring), position.after
            start = position.item
            if start < first:
                # Nothing with a number was missed if only foreign commits fell out.
                if after < self._floor:
                    items.append(Gap(after=after, through=self._floor))
                    after = self._floor
                start = first
            changes = list(islice(self._ring, start - first, start - first + limit))
            for change in changes:
                after = change.commit_no or after
            items.extend(changes)
            return items, Position(start + len(changes), after)
