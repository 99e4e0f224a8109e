"""Subscriptions of tasks; see :mod:`hermes_actor.client.subscription`."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Self

import anyio

from hermes_actor import limits
from hermes_actor.client.aio.connect import close_socket, handshake
from hermes_actor.client.connect import RetryPolicy, program_name
from hermes_actor.client.protocol import subscription_protocol
from hermes_actor.errors import Closed, HermesActorError, SpawnFailed
from hermes_actor.system import fork
from hermes_protocol.framing import FrameError

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import AsyncChangeStream
    from hermes_actor.paths import StorePaths
    from hermes_protocol.messages import Changed, Gap
    from hermes_protocol.subscription import Change

__all__ = ["AsyncActorChangeStream", "AsyncSubscription"]


class AsyncSubscription:
    """The awaitable twin of a :class:`Subscription`, for one task at a time.

    Made by :meth:`AsyncSessionDB.subscribe`. An asynchronous iterator and context manager.
    Cancelling a wait loses nothing.
    """

    def __init__(self, opened: Callable[[], Awaitable[AsyncChangeStream]]) -> None:
        # Opened by the first use, because __init__ cannot await.
        self._opened = opened
        self._stream: AsyncChangeStream | None = None
        # Raises at once for a second task: two that wait would each get a part of the changes.
        self._reading = anyio.ResourceGuard("reading from")
        self._closed = False

    async def get(self, timeout: float | None = None) -> Changed | Gap | None:
        """Return the next change; ``None`` if there is none within *timeout* seconds.

        Raises:
            Closed: the subscription was closed, before or meanwhile.
            HermesActorError: there is no actor any more, and none could be started. Nothing is
                lost; the next call retries.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            stream = await self._begun()
            change, over = stream.take(), False
            while change is None and not over:
                await stream.wait(None if until is None else max(0.0, until - time.monotonic()))
                over = until is not None and time.monotonic() >= until
                change = stream.take()
            return change

    async def aclose(self) -> None:
        """End the subscription: a task that waits in :meth:`get` gets :class:`Closed`."""
        self._closed = True
        if self._stream is not None:
            self._stream.close()

    async def _begun(self) -> AsyncChangeStream:
        if self._stream is None:
            self._refuse_closed()
            self._stream = await self._opened()
            if self._closed:  # meanwhile
                self._stream.close()
        return self._stream

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed("this subscription is closed")

    def __aiter__(self) -> AsyncIterator[Changed | Gap]:
        return self

    async def __anext__(self) -> Changed | Gap:
        try:
            change = await self.get()
        except Closed:
            raise StopAsyncIteration from None
        assert change is not None
        return change

    async def __aenter__(self) -> Self:
        with self._reading:
            await self._begun()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class AsyncActorChangeStream:
    """The changes of one actor, and of the next one when it is gone. Get it with :meth:`open`."""

    def __init__(self, paths: StorePaths, after: int | None, timeout: float) -> None:
        self._paths = paths
        self._timeout = timeout
        self._protocol = subscription_protocol(program_name(), after)
        self._sock: socket.socket | None = None
        self._retries: RetryPolicy | None = None
        self._step: anyio.CancelScope | None = None
        self._closed = False
        fork.notify(self)

    @classmethod
    async def open(cls, paths: StorePaths, after: int | None, timeout: float) -> Self:
        """Return a stream that is connected: from here on no change is missed.

        Raises as :meth:`wait`.
        """
        changes = cls(paths, after, timeout)
        # An error here ends it: no caller holds the stream that could retry.
        while changes._sock is None:
            await changes.wait(None)
        return changes

    def take(self) -> Change | None:
        """Return the next change, if it is there. Raises :class:`Closed` after the end."""
        if self._closed:
            raise Closed("this subscription is closed")
        return self._protocol.next_change()

    async def wait(self, seconds: float | None) -> None:
        """Take one step: read what is there, or try once to connect.

        Raises as :meth:`RetryPolicy.failed` when there is no further try; the next call retries.
        """
        # One step, and nothing is returned from it: what was read is in the protocol before the
        # task can be cancelled, and take() does not wait.
        with anyio.move_on_after(seconds) as self._step:
            if self._sock is None:
                await self._connect()
            else:
                await self._read(self._sock)

    def close(self) -> None:
        """End the stream; a task in :meth:`wait` returns."""
        self._closed = True
        # A task that starts an actor waits for no socket: only its scope ends that.
        if self._step is not None:
            self._step.cancel()
        if self._sock is not None:
            self._disconnect(self._sock)

    async def _read(self, sock: socket.socket) -> None:
        try:
            await anyio.wait_readable(sock)
            data = sock.recv(limits.RECEIVE_BYTES)
            if data:
                self._protocol.receive(data)
                return
        except BlockingIOError:
            return
        # By close(), which has done the rest.
        except anyio.ClosedResourceError:
            return
        except (OSError, FrameError):
            pass
        self._disconnect(sock)

    async def _connect(self) -> None:
        retries = self._retries = self._retries or RetryPolicy(
            self._paths, time.monotonic() + self._timeout
        )
        try:
            self._sock = await handshake(self._paths, self._protocol, retries.deadline)
            self._sock.send(self._protocol.resend())
            self._retries = None
        except (SpawnFailed, OSError) as error:
            if self._sock is not None:
                self._disconnect(self._sock)
            # Kept between two tries only: a caller that got an error has a new timeout.
            self._retries = None
            # Raises when there is no further try; then no policy is left for the next call.
            pause = retries.failed(error)
            self._retries = retries
            await anyio.sleep(pause)
        except HermesActorError:
            self._retries = None
            raise

    def _disconnect(self, sock: socket.socket) -> None:
        if self._sock is sock:
            self._sock = None
            close_socket(sock)

    def after_fork(self) -> None:
        """Go on from the same place, in a child, on a connection of its own."""
        sock, self._sock, self._step = self._sock, None, None
        self._protocol = self._protocol.forked()
        if sock is not None:
            # This copy only, and past the loop: its selector is shared with the parent.
            sock.close()
