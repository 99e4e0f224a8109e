"""Connections that the writer reads itself.

A client that writes sends one small request and waits for its answer. Through the event loop each
such request costs a turn of the scheduler and two changes of thread, more than the change itself
does. So a connection whose client writes is lent to the writer, which waits for the requests of all
of them in the place where it waits for work anyway.

At any time one thread has the incoming side of a connection. The event loop lends it; the writer
gives it back as soon as anything but a whole request within the credit arrives; and the event loop
may take it back at any time, when the connection ends, or from a writer that is busy with something
long, so that requests are admitted, refused in time and answered all the same (G8, G10).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from typing import Protocol

from hermes_actor import limits

__all__ = ["Incoming", "WriterSelector"]


class Incoming(Protocol):
    """The incoming side of a connection."""

    def fileno(self) -> int: ...

    def read_requests(self) -> bool:
        """In the writer's thread: admit the requests that are here. False: the rest is not for
        the writer."""
        ...

    def given_back(self) -> None:
        """In either thread: the event loop has it again."""
        ...


class WriterSelector:
    """What is lent to the writer, and the bell that wakes it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = (end.detach() for end in socket.socketpair())
        for end in (self._bell, self._rope):
            os.set_blocking(end, False)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._guard = threading.Lock()
        self._lent: dict[int, Incoming] = {}
        self._away_since: float | None = float("-inf")

    def close(self) -> None:
        """When the writer is gone for good."""
        self._selector.close()
        os.close(self._bell)
        os.close(self._rope)

    # --- the event loop --------------------------------------------------------------------------

    def lend(self, incoming: Incoming) -> bool:
        """Let the writer read *incoming* from now on. False if it is busy with something long, or
        the kernel watches no more for us."""
        if self._is_away():
            return False
        with self._guard:
            try:
                self._selector.register(incoming.fileno(), selectors.EVENT_READ)
            except OSError:
                return False
            self._lent[incoming.fileno()] = incoming
        return True

    def take_back(self, incoming: Incoming) -> None:
        """The writer does not touch *incoming* after this; harmless if it is not lent."""
        with self._guard:
            if self._lent.get(incoming.fileno()) is incoming:
                self._end_loan(incoming)

    def take_back_if_away(self) -> None:
        """Read everything in the event loop if the writer has not looked for long."""
        if self._lent and self._is_away():
            with self._guard:
                for incoming in list(self._lent.values()):
                    self._end_loan(incoming)
                    incoming.given_back()

    def _is_away(self) -> bool:
        since = self._away_since
        return since is not None and time.monotonic() - since > limits.WRITER_AWAY_SECONDS

    def _end_loan(self, incoming: Incoming) -> None:
        del self._lent[incoming.fileno()]
        self._selector.unregister(incoming.fileno())

    def ring(self) -> None:
        """Wake a writer that waits. From any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._rope, b"\0")

    # --- the writer ------------------------------------------------------------------------------

    def wait(self, timeout: float | None) -> list[int]:
        """Wait for requests, or for the bell. Returns where something is; nowhere: time is up."""
        self._away_since = None
        ready = self._look_for_a_while() if timeout != 0 and self._lent else []
        ready = ready or [key.fd for key, _ in self._selector.select(timeout)]
        self._away_since = time.monotonic()
        return ready

    def _look_for_a_while(self) -> list[int]:
        """A client that writes one change after the other sends the next one sooner than a thread
        that sleeps would wake up."""
        until = time.monotonic() + limits.LOOK_WITHOUT_SLEEP_SECONDS
        while time.monotonic() < until:
            if found := self._selector.select(0):
                return [key.fd for key, _ in found]
        return []

    def admit(self, ready: list[int]) -> None:
        """Read the requests that are there."""
        with self._guard:
            for descriptor in ready:
                if descriptor == self._bell:
                    os.read(self._bell, 512)
                    continue
                # Nobody, if it was taken back a moment ago.
                incoming = self._lent.get(descriptor)
                if incoming is not None and not incoming.read_requests():
                    self._end_loan(incoming)
                    incoming.given_back()

    def somebody_is_here(self) -> bool:
        """Whether there is something to read."""
        return bool(self._lent) and bool(self._selector.select(0))
