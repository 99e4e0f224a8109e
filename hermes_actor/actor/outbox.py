"""The one way out of a connection, for the event loop and for the writer thread.

Replies leave from the writer thread at once: a hop through the event loop would cost more than
the write. What the kernel does not take is kept, within a bound, and the event loop finishes it.
Nobody else writes to the socket, and closing takes the same lock as writing, so a descriptor that
has been reused for something else is never written to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from hermes_actor import limits

if TYPE_CHECKING:
    import socket

__all__ = ["Outbox"]


class Outbox:
    """Frames on their way to one client."""

    def __init__(self, sock: socket.socket, wake: Callable[[], None]) -> None:
        """*wake* is called, from either thread, when the event loop has something to finish."""
        self._sock = sock
        self._wake = wake
        self._lock = threading.Lock()
        self._frames: list[bytes] = []
        self._waiting = 0
        self._rest = b""
        self._closed = False
        self._emptied = trio.Event()

    def add(self, frame: bytes) -> None:
        """Put a frame in; it leaves with the next :meth:`flush`.

        A client that asks without listening is cut off: its answers are in the receipts if it
        comes back. The bound is looked at before a frame is added, so one of any size gets in.
        """
        with self._lock:
            if self._closed:
                return
            if self._waiting + len(self._rest) > limits.OUTBOX_MAX_BYTES:
                self._shut()
                self._wake()
                return
            self._frames.append(frame)
            self._waiting += len(frame)

    def flush(self) -> bool:
        """Send what is there as far as the kernel takes it. True when nothing is left."""
        with self._lock:
            if self._closed:
                return True
            data = b"".join([self._rest, *self._frames])
            self._frames.clear()
            self._waiting = 0
            self._rest = b""
            if not data:
                return True
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._shut()
                self._wake()
                return True
            self._rest = data[sent:]
            if self._rest:
                self._wake()
            return not self._rest

    async def finish(self) -> None:
        """In the event loop: send the rest. Raises ``trio.TooSlowError`` if nothing is taken."""
        while not self.flush():
            with trio.fail_after(limits.WRITE_STALL_SECONDS):
                await trio.lowlevel.wait_writable(self._sock)
        self._emptied.set()
        self._emptied = trio.Event()

    async def emptied(self) -> None:
        """In the event loop: wait until :meth:`finish` has sent everything once."""
        await self._emptied.wait()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Nothing leaves after this. Called before the socket is closed."""
        with self._lock:
            self._shut()

    def give_up(self) -> None:
        """In either thread: nothing leaves after this, and the event loop ends the connection."""
        self.close()
        self._wake()

    def _shut(self) -> None:
        self._closed = True
        self._frames.clear()
        self._waiting = 0
        self._rest = b""
