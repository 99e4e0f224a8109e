"""The one way into the actor from a connection: bytes become admitted requests, or messages.

Requests go to the desk as far as the window and the credit allow; reading stops while they do not.
The event loop reads; or, while a client does nothing but write, the writer itself does: see
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
from hermes_protocol.server import ServerProtocol

if TYPE_CHECKING:
    from hermes_actor.actor.byte_limiter import ByteLimiter
    from hermes_actor.actor.gate import Gate
    from hermes_actor.actor.requests import RequestTracker
    from hermes_actor.actor.writer_poll import WriterSelector

__all__ = ["FrameReader"]

_Price = tuple[int, bytes]

_UNGATED = wire.Hello | wire.StatusRequest | wire.Drain | wire.Handoff | wire.Subscribe | wire.Bye
"""What is answered without a writer."""


class FrameReader:
    """What comes from one client."""

    def __init__(
        self,
        sock: socket.socket,
        desk: RequestTracker,
        credit: ByteLimiter,
        intake: WriterSelector,
        in_loop: Callable[[Callable[[], None]], None],
        gate: Gate,
    ) -> None:
        self._sock = sock
        self._desk = desk
        self._credit = credit
        self._intake = intake
        self._in_loop = in_loop
        self._gate = gate
        self._protocol = ServerProtocol()
        self._read_so_far = 0
        self._writes = False
        self._failure: Exception | None = None
        self._back = trio.Event()
        self._room = trio.Event()

    # --- in the event loop -----------------------------------------------------------------------

    async def next_message(self) -> tuple[wire.ClientMessage, Callable[[], None]]:
        """The next message that is not a request; requests are admitted meanwhile.

        It keeps its credit until the function that comes with it is called, in either thread.
        """
        while True:
            self._read_so_far += 1
            if self._read_so_far % limits.MESSAGES_IN_A_ROW == 0:
                # One that has sent much must not keep the loop from reading others.
                await trio.lowlevel.checkpoint()
            # In a lease the writer waits for this connection, and not where it would read it.
            may_lend = self._protocol.is_between_frames and not self._desk.has_lease
            if self._writes and may_lend and self._gate.is_open:
                await self._lend()
            while self._desk.is_full:
                self._room = trio.Event()
                if self._desk.is_full:
                    await self._room.wait()
            message, price = await self._read()
            if not isinstance(message, wire.Request):
                return message, self._giver_back(price)
            self._admit(message, price)
            self._writes = True
            # Kept until the next frame comes, the last body of every idle client would add up.
            del message

    def has_room(self) -> None:
        """In either thread: the window is open again."""
        self._in_loop(lambda: self._room.set())

    def take_back(self) -> None:
        """Nothing is read by the writer after this."""
        self._intake.take_back(self)

    async def _read(self) -> tuple[wire.ClientMessage, _Price]:
        """The next message and the credit that it holds."""
        while (length := self._protocol.needed()) is None:
            await self._receive()
        price = self._price(length)
        await self._credit.take(*price)
        try:
            message = self._protocol.next_message()
            if message is None:
                with trio.fail_after(limits.BODY_SECONDS):
                    while (message := self._protocol.next_message()) is None:
                        await self._receive()
            if not isinstance(message, _UNGATED):
                await self._gate.passed()
            # Ended meanwhile, while this task was about to run: what it was sent before may have
            # been dropped, and what follows must not take its place.
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            self._credit.give_back(*price)
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
        """Let the writer read, until it meets something that is not for it."""
        self._writes = False
        self._back = trio.Event()
        if self._intake.lend(self):
            try:
                await self._back.wait()
            finally:
                self._intake.take_back(self)
        if self._failure is not None:
            raise self._failure

    # --- in the writer's thread ------------------------------------------------------------------

    def fileno(self) -> int:
        return self._sock.fileno()

    def read_requests(self) -> bool:
        """Admit the requests that are here. False: the rest is not for the writer."""
        try:
            return self._read_requests()
        except Exception as error:
            # It ends this connection, by way of the event loop, and not the writer (G16).
            self._failure = error
            return False

    def _read_requests(self) -> bool:
        try:
            data = self._sock.recv(limits.RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._protocol.feed(data)
        while self._admit_next():
            pass
        # What is left, the end of the stream and errors are met again by the event loop.
        return bool(data) and self._protocol.is_between_frames and not self._desk.is_full

    def _admit_next(self) -> bool:
        try:
            length = self._protocol.needed()
        except FrameError:
            return False
        if length is None or self._desk.is_full:
            return False
        price = self._price(length)
        if not self._credit.try_take(*price):
            return False
        request = self._protocol.next_request()
        if request is None:
            self._credit.give_back(*price)
            return False
        self._admit(request, price)
        return True

    def given_back(self) -> None:
        """In either thread: the event loop reads again."""
        self._in_loop(lambda: self._back.set())

    # --- in either -------------------------------------------------------------------------------

    def _admit(self, request: wire.Request, price: _Price) -> None:
        self._desk.request(request, partial(self._credit.give_back, *price))

    def _giver_back(self, price: _Price) -> Callable[[], None]:
        """Gives the credit of a message back, once, however often it is called."""
        held = [price]

        def give_back() -> None:
            if held:
                self._credit.give_back(*held.pop())

        return give_back

    def _price(self, length: int) -> _Price:
        free = length <= limits.FREE_FRAME_BYTES
        return (0 if free else limits.CREDIT_FACTOR * length, self._desk.client_id)
