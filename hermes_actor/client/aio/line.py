"""One connection to the actor, shared by all tasks of an event loop.

No task and no thread of its own. Of those who wait for an answer one reads for all and, when the
kernel does not take everything at once, one writes for all. Whoever leaves, because its answer is
there or because it was cancelled, calls the next. What was read is in the core before anybody
can be cancelled, and what was not written stays in the queue, so that neither is lost.

A request that nobody waits for any more stays in the core until it is answered, and is sent again
like any other: the order and the number of effects must not depend on who still listens. Only
when its patience is over it is not sent again; and one of which no byte has left never is.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import anyio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.aio.outgoing import Outgoing
from hermes_actor.client.aio.reaching import close_socket, reach
from hermes_actor.client.aio.waiting import Waiter, Waiting
from hermes_actor.client.core import ClientCore, Reply
from hermes_actor.client.reaching import GRACE_SECONDS, Attempts, program_name
from hermes_actor.client.upgrading import upgrade_request
from hermes_actor.errors import (
    Closed,
    DeadlineExceeded,
    HermesActorError,
    OutcomeUnknown,
    SpawnFailed,
)
from hermes_protocol.framing import FrameError, frame

if TYPE_CHECKING:
    from hermes_actor.paths import Place

__all__ = ["AsyncLine"]

_now = time.monotonic


class AsyncLine:
    """The core of a client, and the non-blocking socket that it speaks through.

    Methods without ``async`` never let another task run, so what they do is one step.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self.core = ClientCore(program_name(), partial(upgrade_request, self.place))
        self.sock: socket.socket | None = None
        self._connecting: anyio.Lock | None = None
        self._waiting = Waiting()
        self._reader: Waiter | None = None
        self._writer: Waiter | None = None
        self._outgoing = Outgoing()
        self._deadlines: dict[Reply, float] = {}
        self._for_room: deque[Waiter] = deque()

    # --- sending ---------------------------------------------------------------------------------

    async def room(self, deadline: float) -> None:
        """Wait, first come first served, until one more request may be open.

        Raises :class:`DeadlineExceeded`. The room is the caller's until it awaits again.
        """
        if self.core.has_room and not self._for_room:
            return
        waiter = Waiter(lambda: self._for_room[0] is waiter and self.core.has_room)
        self._for_room.append(waiter)
        self.flush()
        try:
            while not waiter.done():
                await self.connected(deadline)
                await self._until(waiter, deadline)
                if _now() >= deadline and not waiter.done():
                    raise DeadlineExceeded("the actor takes nothing within the patience")
        finally:
            self._for_room.remove(waiter)
            self._tell_room()

    def _tell_room(self) -> None:
        """There may be room for the one that has waited longest."""
        if self._for_room and self._for_room[0].done():
            self._for_room[0].wake()

    def request(self, operation: bytes, deadline: float) -> Reply:
        """Number an encoded operation and queue it; :meth:`flush` sends it."""
        reply, data = self.core.request(operation, max(0.0, deadline - _now()))
        self._deadlines[reply] = deadline
        self._outgoing.number(reply.number)
        self.queue(reply, data)
        return reply

    def queue(self, reply: Reply, data: bytes) -> None:
        if self.sock is not None:  # else it goes out with the next connection
            self._outgoing.put(reply.number, data)

    def flush(self) -> None:
        """Give the kernel what it takes now; those who wait send the rest."""
        if self.sock is not None:
            try:
                self._outgoing.send(self.sock)
            except OSError:
                self._lost()

    def withdraw(self, reply: Reply) -> bool:
        """Nobody waits any more. True if nothing of the request has left: then it never will."""
        if not self._outgoing.take_back(reply.number):
            return False
        self._give_up(reply)
        return True

    def _give_up(self, reply: Reply) -> None:
        self._deadlines.pop(reply, None)
        self.core.give_up(reply)
        self._tell_room()

    # --- answers ---------------------------------------------------------------------------------

    async def wait(self, reply: Reply, deadline: float) -> bytes:
        """The result, or the error raised. Being cancelled here changes nothing."""
        until = deadline + GRACE_SECONDS
        waiter = Waiter(lambda: reply.done)
        while True:
            await self._until(waiter, until)
            if waiter.done():
                break
            if self.sock is None:
                await self._reconnect_for(reply, deadline)
            elif _now() >= until:
                if self.withdraw(reply):
                    raise DeadlineExceeded("the actor takes nothing within the patience")
                self._give_up(reply)
                raise OutcomeUnknown("the actor has not answered within the patience")
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        return reply.result

    async def _reconnect_for(self, reply: Reply, deadline: float) -> None:
        """Connect again, which sends the request again. Without success nobody can tell."""
        try:
            await self.connected(deadline)
        except HermesActorError as error:
            if self.withdraw(reply) or reply.number < 0:
                raise
            self._give_up(reply)
            raise OutcomeUnknown(
                f"the connection was lost after the change was sent, and then: {error}"
            ) from error

    async def _until(self, waiter: Waiter, deadline: float) -> None:
        """Work for all, or sleep while others do. Ends early with the connection or the time."""
        try:
            while not waiter.done() and self.sock is not None and (left := deadline - _now()) > 0:
                if self._outgoing and self._writer is None:
                    await self._write(waiter, self.sock, left)
                elif self._reader is None:
                    await self._read(waiter, self.sock, left)
                else:
                    await self._waiting.sleep(waiter, left)
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        """Have somebody do what nobody does."""
        if self.sock is not None and (
            self._reader is None or (self._outgoing and self._writer is None)
        ):
            self._waiting.call_one()

    def _tell_done(self) -> None:
        """Wake those that have what they waited for."""
        self._waiting.wake_done()
        for worker in (self._reader, self._writer):
            if worker is not None and worker.done():
                worker.wake()
        self._tell_room()

    async def _read(self, waiter: Waiter, sock: socket.socket, seconds: float) -> None:
        self._reader = waiter
        self._hand_over()
        data: bytes | None = None
        try:
            with anyio.move_on_after(seconds) as waiter.work:
                await anyio.wait_readable(sock)
            data = sock.recv(limits.RECEIVE_BYTES)
        except BlockingIOError:
            pass
        except (OSError, anyio.ClosedResourceError):
            data = b""
        finally:
            waiter.work = None
            if self._reader is waiter:
                self._reader = None
        if self.sock is not sock:
            return  # somebody has connected anew: these bytes are of the past
        if data:
            self._take(data)
        elif data is not None:
            self._lost()

    async def _write(self, waiter: Waiter, sock: socket.socket, seconds: float) -> None:
        self._writer = waiter
        self._hand_over()
        try:
            with anyio.move_on_after(seconds) as waiter.work:
                await anyio.wait_writable(sock)
        except (OSError, anyio.ClosedResourceError):
            pass  # the next write tells
        finally:
            waiter.work = None
            if self._writer is waiter:
                self._writer = None
        self.flush()

    def _take(self, data: bytes) -> None:
        try:
            for reply in self.core.receive(data):
                self._deadlines.pop(reply, None)
        except FrameError:
            self._lost()
        self._tell_done()

    # --- the connection --------------------------------------------------------------------------

    async def connected(self, deadline: float) -> None:
        """Have a connection on which the actor has said Welcome. One task connects for all."""
        if self.sock is not None:
            return
        lock = self._connecting = self._connecting or anyio.Lock()
        try:
            lock.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.move_on_after(max(0.0, deadline - _now())) as patience:
                await lock.acquire()
            if patience.cancelled_caught:
                raise DeadlineExceeded(f"no actor answers for {self.place.db}") from None
        try:
            await self._connect(deadline)
        finally:
            lock.release()

    async def _connect(self, deadline: float) -> None:
        attempts = Attempts(self.place, deadline)
        while self.sock is None:
            if self.closed:
                raise Closed(f"the connection for {self.place.db} was closed")
            try:
                self._adopt(await reach(self.place, self.core, deadline))
            except (SpawnFailed, OSError) as error:
                await anyio.sleep(attempts.failed(error))

    def _adopt(self, sock: socket.socket) -> None:
        """Send everything unanswered again, in order, before anything new."""
        for reply, deadline in list(self._deadlines.items()):
            if _now() > deadline + GRACE_SECONDS:
                self._give_up(reply)
        self.sock = sock
        self._outgoing.begin(self.core.resend())
        self.flush()
        self._tell_done()
        if self.sock is None:
            raise ConnectionResetError("the connection was lost at once")

    def _lost(self) -> None:
        if self.sock is not None:
            sock, self.sock = self.sock, None
            self._reader = self._writer = None
            self._outgoing.clear()
            close_socket(sock)
            self._waiting.wake_all()

    def close(self) -> None:
        """Say good-bye, so that the actor can forget us. Those who still wait are told."""
        self.closed = True
        self._say_bye()
        self._lost()

    def _say_bye(self) -> None:
        if self.sock is not None and not self.core.in_flight and not self._outgoing:
            with contextlib.suppress(OSError):
                self.sock.send(frame(wire.Bye()))

    def __del__(self) -> None:
        # The event loop has ended without closing us; nobody can be waiting.
        if self.sock is not None:
            self._say_bye()
            self.sock.close()

    def after_fork(self) -> None:
        """In a child: another client, with a connection of its own."""
        sock = self.sock
        self._begin()
        if sock is not None:
            # Our copy only. The loop is not told: its selector is shared with the parent.
            sock.close()
