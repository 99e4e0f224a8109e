"""What has changed lately, for subscribers.

The writer's thread notes each change in a ring; subscribers are fed by the event loop, each at
its own pace, from where it says it is. Whoever is further behind than the ring is told the gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_protocol.framing import frame

if TYPE_CHECKING:
    from hermes_actor.actor.connection import Connection

__all__ = ["Changes"]


class Changes:
    """The ring of changes and its subscribers."""

    def __init__(self, in_loop: Callable[[Callable[[], None]], None]) -> None:
        self._ring: deque[tuple[int, wire.Changed]] = deque(maxlen=limits.RING_CHANGES)
        self._next = 0
        self._first_commit_no: int | None = None
        self._subscribers = 0
        self._in_loop = in_loop
        self._new = trio.Event()

    def note(self, change: wire.Changed) -> None:
        """In the writer's thread, in the order of commits."""
        self._ring.append((self._next, change))
        self._next += 1

    def tell(self) -> None:
        """In the writer's thread, after a batch: wake the subscribers."""
        if self._subscribers:
            self._in_loop(self._wake)

    def _wake(self) -> None:
        self._new.set()
        self._new = trio.Event()

    async def feed(self, connection: Connection, after: int | None) -> None:
        """Send changes to a subscriber until its connection ends."""
        self._subscribers += 1
        try:
            position = self._next if after is None else self._position_after(connection, after)
            while True:
                new = self._new
                for number, change in list(self._ring):
                    if number >= position:
                        connection.outbox.add(frame(change))
                        position = number + 1
                connection.outbox.flush()
                if position == self._next:
                    await new.wait()
        finally:
            self._subscribers -= 1

    def _position_after(self, connection: Connection, after: int) -> int:
        known = [(number, c.commit_no) for number, c in self._ring if c.commit_no is not None]
        if known and known[0][1] <= after + 1:
            return next((number for number, commit_no in known if commit_no > after), self._next)
        newest = known[-1][1] if known else after
        if newest > after:
            connection.send(wire.Gap(after=after, through=newest))
        return self._next
