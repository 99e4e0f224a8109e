"""Subscriptions to the changes of a writer in the same process."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.errors import Closed
from hermes_protocol.messages import Changed, Gap

if TYPE_CHECKING:
    from hermes_actor.embedded.writer import EmbeddedWriter
    from hermes_actor.engine.change_log import ChangeLog

__all__ = ["EmbeddedChanges"]


class EmbeddedChanges:
    """The changes of a writer in this process."""

    def __init__(self, writer: EmbeddedWriter, ring: ChangeLog, after: int | None) -> None:
        self._writer = writer
        self._ring = ring
        self._closed = False
        self._awake = threading.Event()
        # Before the position is taken: a change that comes in between wakes, and is read.
        forget = ring.add_listener(self._awake.set)
        # For a subscription that is dropped without close(): the ring outlives it. Not at exit,
        # when the ring goes as well.
        self._forget = weakref.finalize(self, forget)
        self._forget.atexit = False
        self._position, gap = ring.position_after(after)
        self._news: deque[Changed | Gap] = deque([gap] if gap is not None else [])

    def take(self) -> Changed | Gap | None:
        """Return the next change, ``None`` if there is none yet. Raises when the writer stopped."""
        if self._closed:
            raise Closed("this subscription is closed")
        self._writer.check_process()
        if not self._news:
            # Cleared before reading: what comes after the read wakes again.
            self._awake.clear()
            # Before the ring is read: what the writer added before it stopped is delivered first.
            stopped = self._writer.stopped
            items, self._position = self._ring.read(self._position, limits.FOLLOWER_CHANGES_AT_ONCE)
            self._news.extend(items)
            if stopped and not items:
                raise self._writer.why_stopped()
        return self._news.popleft() if self._news else None

    def wait(self, seconds: float | None) -> None:
        """Wait until there may be a change, or :meth:`wake` is called."""
        self._awake.wait(seconds)

    def wake(self) -> None:
        """Have :meth:`wait` return, now or with its next call."""
        self._awake.set()

    def close(self) -> None:
        """End it: :meth:`take` raises :class:`Closed` from here on. May be called again."""
        self._closed = True
        self._forget()
        self._awake.set()
