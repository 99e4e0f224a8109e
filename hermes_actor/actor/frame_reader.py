"""The one way into the actor from a connection: bytes become admitted requests, or messages.

Requests are admitted as far as the window and the byte budget allow; reading stops while they do
not. The event loop reads; or, while a client does nothing but write, the writer thread does: see
:mod:`hermes_actor.actor.writer_poll`, whose ``Incoming`` this is.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_protocol.framing import FrameError
from hermes_protocol.server import ServerProtocol, WriterMessage

if TYPE_CHECKING:
    from hermes_actor.actor.interfaces import Resources
    from hermes_actor.actor.outbox import Outbox
    from hermes_actor.actor.requests import RequestTracker
    from hermes_actor.actor.writer_poll import Admitted
    from hermes_actor.engine import jobs

__all__ = ["FrameReader"]

_Price = tuple[int, bytes]

_UNGATED = (
    wire.Hello
    | wire.StatusRequest
    | wire.Drain
    | wire.Handoff
    | wire.Subscribe
    | wire.Bye
    | wire.Interrupt
)
"""Messages that are answered without a writer."""


class FrameReader:
    """The incoming side of one connection."""

    def __init__(
        self, sock: socket.socket, requests: RequestTracker[Outbox], resources: Resources
    ) -> None:
        self._sock = sock
        self._requests = requests
        self._limiter = resources.limiter
        self._mailbox = resources.mailbox
        self._selector = resources.mailbox.selector
        self._run_in_loop = resources.run_in_loop
        self._unflushed = resources.unflushed
        self._gate = resources.gate
        requests.on_room = self._has_room
        self._protocol = ServerProtocol()
        self._read_so_far = 0
        self._writes = False
        self._failure: Exception | None = None
        self._back = trio.Event()
        self._room = trio.Event()
        self._waits_for_room = False

    # --- event loop ------------------------------------------------------------------------------

    async def next_message(self) -> tuple[wire.ClientMessage, Callable[[], None]]:
        """Return the next message that is not a request; requests are admitted meanwhile.

        It holds its bytes of the budget until the function that comes with it is called, in either
        thread.
        """
        while True:
            self._read_so_far += 1
            if self._read_so_far % limits.MESSAGES_IN_A_ROW == 0:
                # A client that has sent much must not keep the loop from reading others.
                await trio.lowlevel.checkpoint()
            if self._writes and self._protocol.is_between_frames and self._gate.is_open:
                await self._lend()
            while self._requests.is_full:
                self._room = trio.Event()
                # Set before the second look: either that finds room, or the writer sees the mark.
                self._waits_for_room = True
                if self._requests.is_full:
                    await self._room.wait()
                self._waits_for_room = False
            message, price = await self._read()
            self._writes = isinstance(message, WriterMessage)
            if not isinstance(message, wire.Request):
                return message, self._giver_back(price)
            self._mailbox.put(*self._admit(message, price))
            # Kept until the next frame comes, the last body of every idle client would add up.
            del message

    def stop_lending(self) -> None:
        """Have the writer thread read nothing after this."""
        self._selector.remove(self)

    async def _read(self) -> tuple[wire.ClientMessage, _Price]:
        """Return the next message and what it holds of the byte budget."""
        while (length := self._protocol.needed()) is None:
            await self._receive()
        price = self._price(length)
        await self._limiter.take(*price)
        try:
            message = self._protocol.next_message()
            if message is None:
                with trio.fail_after(limits.BODY_SECONDS):
                    while (message := self._protocol.next_message()) is None:
                        await self._receive()
            if not isinstance(message, _UNGATED):
                await self._gate.passed()
            # Cancelled while this task was about to run: what the client sent before may have been
            # dropped, and what follows must not take its place (G3).
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            self._limiter.give_back(*price)
            raise
        return message, price

    async def _receive(self) -> None:
        while True:
            # Waited for first: a client that has just sent a request rarely has the next one ready.
            await trio.lowlevel.wait_readable(self._sock)
            try:
                data = self._sock.recv(limits.RECEIVE_BYTES)
                break
            except BlockingIOError:
                continue
        if not data:
            raise ConnectionResetError("end of stream")
        self._protocol.feed(data)

    async def _lend(self) -> None:
        """Let the writer thread read, until it meets something that is not for it."""
        self._writes = False
        self._back = trio.Event()
        if self._selector.add(self):
            try:
                await self._back.wait()
            finally:
                self._selector.remove(self)
        if self._failure is not None:
            raise self._failure

    # --- writer thread ---------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor of the socket, for the selector; -1 after its end."""
        return self._sock.fileno()

    def read_requests(self, admitted: Admitted) -> bool:
        """Append the requests that are here. False: the rest is not for the writer thread."""
        try:
            return self._read_requests(admitted)
        except Exception as error:
            # It ends this connection, by way of the event loop, and not the writer (G16).
            self._failure = error
            return False

    def _read_requests(self, admitted: Admitted) -> bool:
        try:
            data = self._sock.recv(limits.RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._protocol.feed(data)
        while self._read_one(admitted):
            pass
        # A step of a lease that is over is refused, and no batch ends that would flush that.
        self._unflushed.flush()
        # What is left, the end of the stream and errors are met again by the event loop.
        return bool(data) and self._protocol.is_between_frames and not self._requests.is_full

    def _read_one(self, admitted: Admitted) -> bool:
        """Admit the next message. False: there is none, or it is not for the writer thread."""
        try:
            length = self._protocol.needed()
        except FrameError:
            return False
        if length is None or self._requests.is_full:
            return False
        price = self._price(length)
        if not self._limiter.try_take(*price):
            return False
        message = self._protocol.next_for_writer()
        if message is None:
            self._limiter.give_back(*price)
            return False
        if isinstance(message, wire.Request):
            admitted.append(self._admit(message, price))
        elif (job := self._requests.lease(message, self._giver_back(price))) is not None:
            admitted.append((self._requests.client_id, job))
        return True

    # --- either thread ---------------------------------------------------------------------------

    def returned(self) -> None:
        """Have the event loop read again."""
        # The attribute is read in the loop: *_back* is another event after the next loan.
        self._run_in_loop(lambda: self._back.set())

    def _has_room(self) -> None:
        if self._waits_for_room:
            self._run_in_loop(lambda: self._room.set())

    def _admit(self, request: wire.Request, price: _Price) -> tuple[bytes, jobs.Call]:
        """Return the job of *request*, with its client, as the mailbox takes it."""
        job = self._requests.admit(request, partial(self._limiter.give_back, *price))
        return self._requests.client_id, job

    def _giver_back(self, price: _Price) -> Callable[[], None]:
        """Return a function that gives *price* back once, however often it is called."""
        held = [price]

        def give_back() -> None:
            if held:
                self._limiter.give_back(*held.pop())

        return give_back

    def _price(self, length: int) -> _Price:
        free = length <= limits.FREE_FRAME_BYTES
        return (0 if free else limits.CREDIT_FACTOR * length, self._requests.client_id)
