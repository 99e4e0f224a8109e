"""The connections that the writer thread reads itself, and the pipe that wakes it.

A client that writes sends one small request and waits for its answer. Through the event loop each
such request costs a turn of the scheduler and two changes of thread, more than the change itself
does. So a connection whose client writes is lent to the writer thread, which polls all of them in
the place where it waits for work anyway.

At any time one thread has the incoming side of a connection. The event loop lends it with
:meth:`WriterSelector.add`; the writer returns it as soon as anything but a whole request within the
byte budget arrives; and the event loop may remove it at any time, when the connection ends, or from
a writer that is busy with something long, so that requests are admitted, refused in time and
answered all the same (G8, G10).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Protocol

from hermes_actor import limits

if TYPE_CHECKING:
    from hermes_actor.engine.jobs import Job

__all__ = ["Admitted", "Incoming", "WriterSelector"]

Admitted = list[tuple[bytes, "Job"]]
"""Jobs with the client of each, in the order in which they came."""


class Incoming(Protocol):
    """The incoming side of a connection."""

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        ...

    def read_requests(self, admitted: Admitted) -> bool:
        """Append the requests that are here. False: the rest is not for the writer thread."""
        ...

    def returned(self) -> None:
        """Have the event loop read again. Called in either thread."""
        ...


class WriterSelector:
    """The connections that are lent to the writer thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while the writer thread reads and until what it has read is in the mailbox. Then
        a connection that was removed has nothing on its way, and its lane can be dropped whole."""
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = (end.detach() for end in socket.socketpair())
        for end in (self._wake_r, self._wake_w):
            os.set_blocking(end, False)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._lent: dict[int, Incoming] = {}
        # There is no writer thread yet: for as long as that takes it counts as away.
        self._away_since: float | None = float("-inf")

    def close(self) -> None:
        """Release the descriptors. Only when no writer thread will ever poll again."""
        self._selector.close()
        os.close(self._wake_r)
        os.close(self._wake_w)

    # --- event loop ------------------------------------------------------------------------------

    def add(self, incoming: Incoming) -> bool:
        """Lend *incoming*. False if the writer thread has not polled for long, or cannot."""
        if self._is_away():
            return False
        with self.lock:
            try:
                self._selector.register(incoming.fileno(), selectors.EVENT_READ)
            except OSError:
                return False
            self._lent[incoming.fileno()] = incoming
        return True

    def remove(self, incoming: Incoming) -> None:
        """End a loan: the writer thread does not touch *incoming* after this. Harmless if it is
        not lent."""
        with self.lock:
            if self._lent.get(incoming.fileno()) is incoming:
                self._forget(incoming)

    def remove_all_if_away(self) -> None:
        """End every loan if the writer thread has not polled for long."""
        if self._lent and self._is_away():
            with self.lock:
                self.release(list(self._lent.values()))

    def _is_away(self) -> bool:
        since = self._away_since
        return since is not None and time.monotonic() - since > limits.WRITER_AWAY_SECONDS

    def _forget(self, incoming: Incoming) -> None:
        del self._lent[incoming.fileno()]
        self._selector.unregister(incoming.fileno())

    # --- any thread ------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake a writer thread that waits."""
        # A full pipe wakes as well as one more byte would.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b"\0")

    def release(self, finished: list[Incoming]) -> None:
        """End these loans, with *lock* held. The event loop reads on at once."""
        for incoming in finished:
            self._forget(incoming)
            incoming.returned()

    # --- writer thread ---------------------------------------------------------------------------

    def wait(self, timeout: float | None, *, spins: bool = True) -> list[int]:
        """Wait for requests or for :meth:`wake`; return where something is. Empty: time is up.

        *spins*: first without sleep, for a short time.
        """
        self._away_since = None
        ready = self._spin() if spins and timeout != 0 and self._lent else []
        ready = ready or [key.fd for key, _ in self._selector.select(timeout)]
        self._away_since = time.monotonic()
        return ready

    def _spin(self) -> list[int]:
        # A client that writes one change after the other sends the next one sooner than a thread
        # that sleeps would wake up.
        until = time.monotonic() + limits.LOOK_WITHOUT_SLEEP_SECONDS
        while time.monotonic() < until:
            if found := self._selector.select(0):
                return [key.fd for key, _ in found]
        return []

    def read(self, ready: list[int]) -> tuple[Admitted, list[Incoming]]:
        """Read the requests that are there, with *lock* held.

        Returns them, and the connections whose loan is over. Those are for :meth:`release`, and not
        before the requests are in the mailbox: what the event loop reads next comes behind them.
        """
        admitted: Admitted = []
        finished: list[Incoming] = []
        for descriptor in ready:
            if descriptor == self._wake_r:
                os.read(self._wake_r, 512)
                continue
            # ``None`` if it was removed a moment ago.
            incoming = self._lent.get(descriptor)
            if incoming is not None and not incoming.read_requests(admitted):
                finished.append(incoming)
        return admitted, finished

    def readable(self) -> bool:
        """True if there is something to read."""
        return bool(self._lent) and bool(self._selector.select(0))
