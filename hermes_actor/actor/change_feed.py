"""Sends changes to the connections of subscribers, each at its own pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from hermes_actor import limits
from hermes_protocol.framing import frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from hermes_actor.actor.outbox import Outbox
    from hermes_actor.engine.change_log import ChangeLog

__all__ = ["ChangeFeed"]


class ChangeFeed:
    """The subscribers of one change log. Event loop only."""

    def __init__(self, ring: ChangeLog, in_loop: Callable[[Callable[[], None]], None]) -> None:
        self._ring = ring
        self._in_loop = in_loop
        self._count = 0
        self._news = trio.Event()
        ring.add_listener(self._added)

    def __len__(self) -> int:
        return self._count

    def _added(self) -> None:
        """Wake the subscribers. Writer thread only."""
        # Read without a lock. A subscriber that begins now reads the log itself before it waits.
        if self._count:
            self._in_loop(self._wake)

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def feed(self, outbox: Outbox, after: int | None) -> None:
        """Send changes until cancelled.

        Nothing is buffered for a subscriber that reads slowly: it falls back in the change log, and
        gets a ``Gap`` when its position is no longer there.
        """
        self._count += 1
        try:
            position, gap = self._ring.position_after(after)
            if gap is not None:
                outbox.add(frame(gap))
            while True:
                # Before the log is read: a change that is added between the read and the wait sets
                # this one.
                news = self._news
                items, position = self._ring.read(position, limits.FOLLOWER_CHANGES_AT_ONCE)
                for item in items:
                    outbox.add(frame(item))
                # Waited for before more is read, so at most one portion is in the outbox: a slow
                # subscriber falls back in the log, which is bounded, and does not fill the backlog
                # of all.
                while not outbox.flush():
                    await outbox.emptied()
                if not items:
                    await news.wait()
        finally:
            self._count -= 1
