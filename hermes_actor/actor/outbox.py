"""The one way out of a connection, for the event loop and for the writer thread.

Replies leave from the writer thread at once: a hop through the event loop would cost more than
the write. What the kernel does not take is kept, within a bound, and the event loop finishes it.
Nothing else writes to the socket, and closing takes the same lock as writing, so a descriptor that
has been reused for something else is never written to.

A client that lets more pile up than the bound is sent what is there, and then cut off. It connects
again and asks for the rest, which is in the receipts. To drop what it has not read would be wrong:
a client that reads as fast as it can would get the same replies again and again, and never all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from hermes_actor import limits

if TYPE_CHECKING:
    import socket

__all__ = ["Backlog", "Outbox", "Unflushed"]

_log = logging.getLogger("hermes_actor.actor")


class Backlog:
    """Bytes that the kernel has not taken, of all outboxes together. In any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes = 0

    def change(self, by: int) -> None:
        """Add *by* bytes, which may be negative."""
        with self._lock:
            self.bytes += by

    @property
    def is_full(self) -> bool:
        """True if all clients together keep more than the bound."""
        # Without the lock: the bound is soft, and a frame more or less does not matter.
        return self.bytes > limits.OUTBOX_TOTAL_BYTES


class Unflushed(deque["Outbox"]):
    """The outboxes that have replies of the present batch, in the order of the replies.

    The writer thread flushes them at the end of the batch: one ``send`` for each client. The event
    loop answers too, now and then, hence a deque: its ``append`` and ``popleft`` are atomic.
    """

    def flush(self) -> None:
        """Send all replies that wait. A connection that fails ends alone."""
        while self:
            # The other thread may have taken the last one since the check.
            with contextlib.suppress(IndexError):
                outbox = self.popleft()
                try:
                    outbox.flush()
                except Exception:
                    _log.exception("replies could not be sent; their connection ends")
                    outbox.give_up()


class Outbox:
    """Frames on their way to one client."""

    def __init__(self, sock: socket.socket, wake: Callable[[], None], backlog: Backlog) -> None:
        """*wake* is called, from either thread, when the event loop has something to finish."""
        self._sock = sock
        self._wake = wake
        self._backlog = backlog
        self._lock = threading.Lock()
        self._frames: list[bytes] = []
        self._gathered = 0
        self._rest = memoryview(b"")
        self._kept = 0
        self._full = False
        self._closed = False
        self._emptied = trio.Event()

    def add(self, frame: bytes) -> None:
        """Put a frame in; it leaves with the next :meth:`flush`, or at once if much has gathered.

        The bound is checked before a frame is added, so one of any size gets in. While all
        clients together have too much, a large one does not.
        """
        with self._lock:
            if self._closed or self._full:
                return
            # Full for good: a client that is not cut off would wait in vain for the reply that is
            # dropped here. On its next connection it asks for it again.
            if self._is_too_much(frame):
                self._full = True
                self._send()
                return
            self._frames.append(frame)
            self._gathered += len(frame)
            # The kernel has refused bytes already. Another try for each frame would be a system
            # call in vain; the event loop is waiting for room.
            if self._rest:
                self._count()
            elif self._gathered >= limits.OUTBOX_FLUSH_BYTES:
                self._send()

    def _is_too_much(self, frame: bytes) -> bool:
        # A client that reads everything is never cut off for small replies, however full the
        # backlog of the others is.
        if not self._rest and len(frame) < limits.OUTBOX_FLUSH_BYTES:
            return False
        return self._kept > limits.OUTBOX_MAX_BYTES or self._backlog.is_full

    def flush(self) -> bool:
        """Send what is there as far as the kernel takes it. True when nothing is left."""
        with self._lock:
            if not self._closed:
                self._send()
            return not self._rest

    def _send(self) -> None:
        """Locked. Each byte is copied once, however often the kernel takes only a part."""
        while True:
            if not self._rest:
                if not self._frames:
                    break
                # A view, so that a part that was taken is cut off without copying the rest: with
                # bytes, an answer of many megabytes that leaves in small parts would be copied for
                # each of them.
                self._rest = memoryview(b"".join(self._frames))
                self._frames.clear()
                self._gathered = 0
            try:
                sent = self._sock.send(self._rest)
            except BlockingIOError:
                break
            except OSError:
                # The event loop finds it closed and ends the connection: only there its task can be
                # ended.
                self._shut()
                self._wake()
                return
            self._rest = self._rest[sent:]
            # No second try: a part means that the buffer of the kernel is full.
            if self._rest:
                break
        self._count()
        if not self._rest and self._full:
            self._shut()
        if self._rest or self._closed:
            self._wake()

    def _count(self) -> None:
        """Report to the backlog what is kept: whole frames, as long as a part of them is left."""
        # Whole frames, because the view keeps all of its bytes in memory until the last has left.
        kept = len(self._rest.obj) + self._gathered if self._rest else 0  # type: ignore[arg-type]
        if kept != self._kept:
            self._backlog.change(kept - self._kept)
            self._kept = kept

    async def finish(self) -> None:
        """Send the rest. Raises ``trio.TooSlowError`` if nothing is taken. Event loop only."""
        while not self.flush():
            # For each wait, not for the whole: a slow client that takes something keeps its
            # connection.
            with trio.fail_after(limits.WRITE_STALL_SECONDS):
                await trio.lowlevel.wait_writable(self._sock)
        self._emptied.set()
        self._emptied = trio.Event()

    async def emptied(self) -> None:
        """Wait until :meth:`finish` has sent everything once. Event loop only."""
        await self._emptied.wait()

    @property
    def closed(self) -> bool:
        """True if nothing is sent any more. Safe in any thread."""
        return self._closed

    def close(self) -> None:
        """Send nothing after this. Called before the socket is closed."""
        with self._lock:
            self._shut()

    def give_up(self) -> None:
        """Send nothing more, and have the event loop end the connection. Safe in any thread."""
        self.close()
        self._wake()

    def _shut(self) -> None:
        self._closed = True
        self._frames.clear()
        self._gathered = 0
        self._rest = memoryview(b"")
        self._count()
