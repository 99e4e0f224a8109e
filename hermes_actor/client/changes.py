"""The changes that an actor tells, on a connection of their own."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.client.connect import Attempts, program_name, reach
from hermes_actor.client.protocol import subscription_protocol
from hermes_actor.errors import Closed, SpawnFailed
from hermes_protocol.framing import FrameError

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths
    from hermes_protocol.subscription import Change, SubscriptionProtocol

__all__ = ["ActorChanges"]

_now = time.monotonic

_LONGEST_SECONDS = 3600.0
"""One wait in the kernel, which counts milliseconds in 31 bits; the caller waits again."""


class ActorChanges:
    """Follows one actor, and the next one when it is gone.

    Connected when it is made. After a lost connection *timeout* is how long another one is tried
    for before an error says why there is none; the next call tries again.
    """

    def __init__(self, place: StorePaths, after: int | None, timeout: float) -> None:
        self._place = place
        self._timeout = timeout
        self._closed = False
        self._begin(subscription_protocol(program_name(), after))
        _alive.add(self)
        try:
            while self._sock is None:
                self.wait(None)
        except BaseException:
            self.close()
            raise

    def _begin(self, protocol: SubscriptionProtocol) -> None:
        self._protocol = protocol
        self._sock: socket.socket | None = None
        self._attempts: Attempts | None = None
        self._busy = threading.Lock()
        self._woken, self._waker = socket.socketpair()

    def take(self) -> Change | None:
        if self._closed:
            raise Closed("this subscription is closed")
        return self._protocol.next_change()

    def wait(self, seconds: float | None) -> None:
        """One step: read what is there, or try once to connect."""
        until = None if seconds is None else _now() + seconds
        try:
            with self._busy:
                if self._closed:
                    return
                if self._sock is None:
                    self._connect(until)
                else:
                    self._read(self._sock, until)
        except _Woken:
            pass
        finally:
            self._close_sockets()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"!", socket.MSG_DONTWAIT)

    def close(self) -> None:
        self._closed = True
        self.wake()
        self._close_sockets()

    def _close_sockets(self) -> None:
        """After the end, by whoever is the last to use them: never under somebody's poll."""
        if self._closed and self._busy.acquire(blocking=False):
            for sock in (self._sock, self._woken, self._waker):
                if sock is not None:
                    sock.close()
            self._busy.release()

    def _read(self, sock: socket.socket, until: float | None) -> None:
        if not self._poll(sock, until):
            return
        try:
            data = sock.recv(limits.RECEIVE_BYTES, socket.MSG_DONTWAIT)
            if data:
                self._protocol.receive(data)
                return
        except BlockingIOError:
            return
        except (OSError, FrameError):
            pass
        self._sock = None
        sock.close()

    def _connect(self, until: float | None) -> None:
        attempts = self._attempts or Attempts(self._place, _now() + self._timeout)
        # Kept only while there is hope: once the caller was told, timeout begins anew.
        self._attempts = None

        def wait(sock: socket.socket, deadline: float) -> None:
            if not self._poll(sock, deadline if until is None else min(until, deadline)):
                raise TimeoutError("no answer in time")

        try:
            sock = reach(self._place, self._protocol, attempts.deadline, wait)
            try:
                sock.send(self._protocol.resend())
                self._sock = sock
            finally:
                if self._sock is not sock:
                    sock.close()
        except (SpawnFailed, OSError) as error:
            pause = attempts.failed(error)
            self._attempts = attempts
            self._poll(None, _now() + pause if until is None else min(until, _now() + pause))

    def _poll(self, sock: socket.socket | None, until: float | None) -> bool:
        """Whether *sock* can be read before *until*. Raises when it is woken."""
        ready = select.poll()
        ready.register(self._woken, select.POLLIN)
        if sock is not None:
            ready.register(sock, select.POLLIN)
        seconds = _LONGEST_SECONDS if until is None else until - _now()
        found = ready.poll(1000 * min(max(0.0, seconds), _LONGEST_SECONDS))
        if any(fd == self._woken.fileno() for fd, _ in found):
            self._woken.recv(limits.RECEIVE_BYTES)
            raise _Woken
        return bool(found)

    def _after_fork(self) -> None:
        """In a child: go on from the same place, on a connection of its own."""
        inherited = (self._sock, self._woken, self._waker)
        self._begin(self._protocol.forked())
        for sock in inherited:
            if sock is not None:
                sock.close()
        self._close_sockets()


class _Woken(Exception):
    """Somebody has woken the one that waits."""


_alive: weakref.WeakSet[ActorChanges] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    for changes in list(_alive):
        changes._after_fork()


os.register_at_fork(after_in_child=_leave_to_the_parent)
