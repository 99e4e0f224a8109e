"""Subscriptions: the changes of a store, one by one, on a connection of their own."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from hermes_actor import limits
from hermes_actor.client.connect import RetryPolicy, handshake, program_name
from hermes_actor.client.protocol import subscription_protocol
from hermes_actor.errors import Closed, SpawnFailed
from hermes_actor.system import fork
from hermes_protocol.features import SESSIONS
from hermes_protocol.framing import FrameError

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import ChangeStream
    from hermes_actor.paths import StorePaths
    from hermes_protocol.messages import Changed, Gap
    from hermes_protocol.subscription import Change, SubscriptionProtocol

__all__ = ["ActorChangeStream", "Subscription"]

_now = time.monotonic

_LONGEST_SECONDS = 3600.0
"""One wait in the kernel, which counts milliseconds in 31 bits; the caller waits again."""


class Subscription:
    """The changes of a store, in the order of their ``commit_no``, each once.

    Made by :meth:`SessionDB.subscribe`. An iterator that waits for the next change, and a context
    manager that ends it. A :class:`Changed` without ``commit_no`` says that a program outside has
    written. A :class:`Gap` stands for changes that are no longer known one by one: read the tables
    instead, and go on. Lost connections are replaced without notice.
    """

    def __init__(self, stream: ChangeStream) -> None:
        self._stream = stream
        # Around take and wait together: two threads that both read could deliver out of order.
        self._turn = threading.Lock()

    def get(self, timeout: float | None = None) -> Changed | Gap | None:
        """Return the next change; ``None`` if there is none within *timeout* seconds.

        It can take longer when an actor has to be started. Threads that call it at once take
        turns.

        Raises:
            Closed: the subscription was closed, before or meanwhile.
            HermesActorError: there is no actor any more, and none could be started. Nothing is
                lost; the next call retries.
        """
        until = None if timeout is None else time.monotonic() + timeout
        if not self._turn.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return None
        try:
            # Taken once before and once after each wait: with a timeout of 0 what is there is
            # returned.
            change, over = self._stream.take(), False
            while change is None and not over:
                self._stream.wait(None if until is None else max(0.0, until - time.monotonic()))
                over = until is not None and time.monotonic() >= until
                change = self._stream.take()
            return change
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the subscription, from any thread: a thread in :meth:`get` gets :class:`Closed`."""
        self._stream.close()

    def __iter__(self) -> Iterator[Changed | Gap]:
        return self

    def __next__(self) -> Changed | Gap:
        try:
            change = self.get()
        except Closed:
            raise StopIteration from None
        assert change is not None
        return change

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class ActorChangeStream:
    """The changes of one actor, and of the next one when it is gone.

    Connected when it is made. After a lost connection *timeout* is how long another one is tried
    for before an error says why there is none; the next call tries again. Without *start* no
    actor is started: while there is none, that is :class:`NotRunning`.
    """

    def __init__(
        self,
        paths: StorePaths,
        after: int | None,
        timeout: float,
        kind: str = SESSIONS,
        *,
        start: bool = True,
    ) -> None:
        self._paths = paths
        self._start = start
        self._timeout = timeout
        self._closed = False
        self._begin(subscription_protocol(program_name(), after, kind=kind))
        # Before it connects: a fork in another thread must find the socket here to close.
        fork.notify(self)
        try:
            while self._sock is None:
                self.wait(None)
        except BaseException:
            self.close()
            raise

    def _begin(self, protocol: SubscriptionProtocol) -> None:
        self._protocol = protocol
        self._sock: socket.socket | None = None
        self._retries: RetryPolicy | None = None
        # Held by the thread that polls. close() never waits for it, so a subscription ends at once.
        self._busy = threading.Lock()
        # A socket and not an event: one poll waits for it and for the actor.
        self._woken, self._waker = socket.socketpair()

    @property
    def is_connected(self) -> bool:
        """True until the end of a connection is read: changes before it may still arrive."""
        return self._sock is not None

    def take(self) -> Change | None:
        """Return the next change, if it is there. Raises :class:`Closed` after the end."""
        if self._closed:
            raise Closed("this subscription is closed")
        return self._protocol.next_change()

    def wait(self, seconds: float | None) -> None:
        """Take one step: read what is there, or try once to connect.

        Raises as :meth:`RetryPolicy.failed` when there is no further try; the next call retries.
        """
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
        """Have :meth:`wait` return. Safe in any thread."""
        with contextlib.suppress(OSError):
            # A full buffer wakes as well as one more byte would.
            self._waker.send(b"!", socket.MSG_DONTWAIT)

    def close(self) -> None:
        """End the stream, from any thread; a thread in :meth:`wait` returns."""
        # In this order: the thread that is woken sees the mark, and closes what this one may not.
        self._closed = True
        self.wake()
        self._close_sockets()

    def _close_sockets(self) -> None:
        """Close them after the end, by the last thread that uses them, never under a poll."""
        # A descriptor that is closed under a poll may be another file by the time the poll returns.
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
        # Forgotten before it is closed: an exception in between loses a descriptor to the
        # collector, never the way to the next connection.
        self._sock = None
        sock.close()

    def _connect(self, until: float | None) -> None:
        retries = self._retries or RetryPolicy(self._paths, _now() + self._timeout)
        # Kept between two tries only: a caller that got an error has a new timeout.
        self._retries = None

        def wait(sock: socket.socket, deadline: float) -> None:
            # The caller's timeout and not only that of connecting: get(0.1) returns while an actor
            # is silent.
            if not self._poll(sock, deadline if until is None else min(until, deadline)):
                raise TimeoutError("no answer in time")

        try:
            sock = handshake(self._paths, self._protocol, retries.deadline, wait, start=self._start)
            try:
                sock.send(self._protocol.resend())
                self._sock = sock
            finally:
                if self._sock is not sock:
                    sock.close()
        except (SpawnFailed, OSError) as error:
            pause = retries.failed(error)
            self._retries = retries
            self._poll(None, _now() + pause if until is None else min(until, _now() + pause))

    def _poll(self, sock: socket.socket | None, until: float | None) -> bool:
        """Return True if *sock* can be read before *until*. Raises :class:`_Woken`."""
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

    def after_fork(self) -> None:
        """Go on from the same place, in a child, on a connection of its own."""
        # Copies of the child alone: the parent's connection stays open.
        inherited = (self._sock, self._woken, self._waker)
        self._begin(self._protocol.forked())
        for sock in inherited:
            if sock is not None:
                sock.close()
        self._close_sockets()


class _Woken(Exception):
    """Another thread has called :meth:`ActorChangeStream.wake`."""
