"""One connection to the actor, shared by all tasks of an event loop.

No task and no thread of its own. Of the tasks that wait for a reply one reads for all and, when the
kernel does not take everything at once, one writes for all. A task that leaves, because its reply
is there or because it was cancelled, wakes the next. What was read is in the protocol before any
task can be cancelled, and what was not written stays in the queue, so that neither is lost.

A request whose caller was cancelled stays in the protocol until it is answered, and is sent again
like any other: the order and the number of effects must not depend on who still listens. Only
when its time is over it is not sent again; and one of which no byte has left never is (see
:mod:`hermes_actor.client.exchange`).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

import hermes_protocol.messages as wire
from hermes_actor.client.aio.connect import close_socket, handshake
from hermes_actor.client.aio.wait_queue import Waiter, WaitQueue
from hermes_actor.client.connect import RetryPolicy, program_name
from hermes_actor.client.exchange import Exchange, Sending
from hermes_actor.client.protocol import client_protocol
from hermes_actor.client.upgrade import handoff_request
from hermes_actor.errors import Closed, HermesActorError, SpawnFailed
from hermes_protocol.client import PendingReply
from hermes_protocol.features import SESSIONS
from hermes_protocol.framing import frame

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["AsyncActorConnection"]

_now = time.monotonic


class AsyncActorConnection:
    """The exchange of a client, and its connection.

    Methods without ``async`` never let another task run, so what they do is one step.
    """

    def __init__(self, paths: StorePaths) -> None:
        self.paths = paths
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self.protocol = client_protocol(
            program_name(), partial(handoff_request, self.paths), kind=SESSIONS
        )
        self.exchange = Exchange(self.paths, self.protocol)
        self._connecting: anyio.Lock | None = None
        self._waiting = WaitQueue()
        self._reader: Waiter | None = None
        self._writer: Waiter | None = None
        self._for_room: deque[Waiter] = deque()

    # --- sending ---------------------------------------------------------------------------------

    async def request(self, steps: list[PendingReply], operation: bytes, deadline: float) -> None:
        """Number an encoded operation, as the next of *steps*, once there is room for it.

        :meth:`flush` sends it. Raises :class:`DeadlineExceeded` without room.
        """
        # No await between the two: the room is still there when the request is numbered.
        await self._room(deadline)
        self.exchange.request(steps, operation, deadline)

    async def _room(self, deadline: float) -> None:
        """Wait, first come first served, until one more request may be open.

        The room is the caller's until it awaits again.
        """
        # Behind those that wait already: a task that asks again and again must not pass them.
        if not self._for_room and self.exchange.has_room():
            return
        began = _now()
        waiter = Waiter(lambda: self._for_room[0] is waiter and self.exchange.has_room())
        self._for_room.append(waiter)
        # What is queued must be on its way: only its answers make room.
        self.flush()
        try:
            while not waiter.done():
                await self.ensure_connected(deadline)
                await self._until(waiter, deadline)
                if _now() >= deadline and not waiter.done():
                    raise self.exchange.no_room(began)
        finally:
            self._for_room.remove(waiter)
            self._wake_for_room()

    def _wake_for_room(self) -> None:
        """Wake the task that has waited longest for room, if there is some now."""
        if self._for_room and self._for_room[0].done():
            self._for_room[0].wake()

    def ask(self, make: Any, deadline: float) -> PendingReply:
        """Queue an ask, and send it as far as the kernel takes it."""
        reply = self.exchange.ask(make, deadline)
        self.flush()
        return reply

    def flush(self) -> None:
        """Give the kernel what it takes now; those who wait send the rest."""
        if self.exchange.sock is not None:
            try:
                self.exchange.send()
            except OSError:
                self._disconnect()

    def withdraw(self, steps: Sequence[PendingReply]) -> bool:
        """Take back what has not left; true if the operation of *steps* is not executed."""
        withdrawn = self.exchange.withdraw(steps)
        self._wake_for_room()
        return withdrawn

    def break_off(self, sendings: Sequence[Sending], error: BaseException) -> bool:
        """Stop sending half-way; see :meth:`Exchange.break_off`."""
        some_left = self.exchange.break_off(sendings, error)
        self._wake_for_room()
        return some_left

    # --- answers ---------------------------------------------------------------------------------

    async def wait(self, steps: Sequence[PendingReply]) -> bytes:
        """Return the result of the last of *steps*, or raise the first error.

        Being cancelled here changes nothing. An error at the deadline says truthfully whether the
        operation was executed.
        """
        deadline = steps[-1].deadline
        for reply in steps:
            # One for each reply of a change in parts: an error of a part is raised without waiting
            # for the others.
            waiter = Waiter(reply.is_done)
            while not reply.done:
                await self._until(waiter, deadline)
                if not reply.done:
                    await self._retry_or_give_up(steps, deadline)
            if reply.error is not None:
                raise reply.error
        result = steps[-1].result
        assert result is not None
        return result

    async def _retry_or_give_up(self, steps: Sequence[PendingReply], deadline: float) -> None:
        """Connect again, which sends the request again; raises if that fails or time is over."""
        cause: HermesActorError | None = None
        if self.exchange.sock is None:
            try:
                await self.ensure_connected(deadline)
                return
            except HermesActorError as failed:
                cause = failed
        elif _now() < deadline:
            return
        error = self.exchange.give_up(steps, cause)
        if self.exchange.torn:
            self._disconnect()
        self._wake_for_room()
        raise error from cause

    async def _until(self, waiter: Waiter, deadline: float) -> None:
        """Work for all, or sleep while others do. Ends early with the connection or the time."""
        try:
            while (
                not waiter.done()
                and (sock := self.exchange.sock) is not None
                and (left := deadline - _now()) > 0
            ):
                if self.exchange.torn:
                    self._disconnect()
                # Writing before reading: what has not left has no answer to wait for.
                elif self.exchange.frames and self._writer is None:
                    await self._write(waiter, sock, left)
                elif self._reader is None:
                    await self._read(waiter, sock, left)
                else:
                    await self._waiting.sleep(waiter, left)
        finally:
            self._pass_work_on()

    def _pass_work_on(self) -> None:
        """Wake a sleeping task if reading, or writing, is left to no task."""
        if self.exchange.sock is not None and (
            self._reader is None or (self.exchange.frames and self._writer is None)
        ):
            self._waiting.wake_next()

    def _wake_done(self) -> None:
        """Wake the tasks that have what they waited for."""
        self._waiting.wake_done()
        for worker in (self._reader, self._writer):
            if worker is not None and worker.done():
                worker.wake()
        self._wake_for_room()

    async def _read(self, waiter: Waiter, sock: socket.socket, seconds: float) -> None:
        self._reader = waiter
        # Now, while this task still runs: another one that sleeps may take the other half of the
        # work.
        self._pass_work_on()
        try:
            await _wait_for(waiter, anyio.wait_readable(sock), seconds)
        finally:
            if self._reader is waiter:
                self._reader = None
            # Also when this task is cancelled: what has arrived may be for others.
            if self.exchange.sock is sock:
                self._take()

    async def _write(self, waiter: Waiter, sock: socket.socket, seconds: float) -> None:
        self._writer = waiter
        self._pass_work_on()
        try:
            await _wait_for(waiter, anyio.wait_writable(sock), seconds)
        finally:
            if self._writer is waiter:
                self._writer = None
        self.flush()

    def _take(self) -> None:
        try:
            answered = self.exchange.receive()
        except OSError:
            self._disconnect()
            return
        if answered:
            self._wake_done()

    # --- the connection --------------------------------------------------------------------------

    async def ensure_connected(self, deadline: float) -> None:
        """Connect, unless there is a connection. One task connects for all.

        Raises as :meth:`RetryPolicy.failed`, and :class:`Closed`.
        """
        if self.exchange.sock is not None:
            return
        # Made here, not with the object: it belongs to the loop that runs now.
        lock = self._connecting = self._connecting or anyio.Lock()
        retries = RetryPolicy(self.paths, deadline)
        try:
            # Without an await if it is free: the common case has no point at which it can be
            # cancelled.
            lock.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.move_on_after(max(0.0, deadline - _now())) as timeout:
                await lock.acquire()
            if timeout.cancelled_caught:
                raise retries.deadline_exceeded("another task is connecting") from None
        try:
            await self._connect(retries)
        finally:
            lock.release()

    async def _connect(self, retries: RetryPolicy) -> None:
        while self.exchange.sock is None:
            if self.closed:
                raise Closed(f"the connection for {self.paths.db} was closed")
            try:
                self._adopt(await handshake(self.paths, self.protocol, retries.deadline))
            except (SpawnFailed, OSError) as error:
                await anyio.sleep(retries.failed(error))

    def _adopt(self, sock: socket.socket) -> None:
        """Send everything unanswered again, in order, before anything new."""
        self.exchange.begin(sock)
        self.flush()
        # Requests that were abandoned with the last connection have made room.
        self._wake_done()
        if self.exchange.sock is None:
            raise ConnectionResetError("the connection was lost at once")

    def _disconnect(self) -> None:
        sock = self.exchange.end()
        if sock is not None:
            # Both wake up by the closing of the socket, and must not find themselves in charge of
            # the next.
            self._reader = self._writer = None
            close_socket(sock)
            self._waiting.wake_all()

    def close(self) -> None:
        """Send Bye, so that the actor forgets this client. Calls that still wait get an error."""
        self.closed = True
        self._say_bye()
        self._disconnect()

    def _say_bye(self) -> None:
        exchange = self.exchange
        # With anything under way its receipts are still needed: the actor keeps them for a while.
        if exchange.sock is not None and not self.protocol.in_flight and not exchange.frames:
            with contextlib.suppress(OSError):
                exchange.sock.send(frame(wire.Bye()))

    def __del__(self) -> None:
        # The event loop has ended without closing it, so no task can be waiting.
        if self.exchange.sock is not None:
            self._say_bye()
            self.exchange.sock.close()

    def after_fork(self) -> None:
        """Become another client, in a child, with a connection of its own."""
        sock = self.exchange.sock
        self._begin()
        if sock is not None:
            # This copy only, and past the loop: its selector is shared with the parent.
            sock.close()


async def _wait_for(waiter: Waiter, ready: Awaitable[None], seconds: float) -> None:
    """Wait until a socket is *ready*, for so long; the waiter can be woken meanwhile."""
    try:
        with anyio.move_on_after(seconds) as waiter.work:
            await ready
    except (OSError, anyio.ClosedResourceError):
        pass  # the next call of the kernel raises it
    finally:
        waiter.work = None
