"""One client's connection: reads its frames as far as there is credit, and ends in good order.

Whatever bytes arrive, at most this connection ends (R4). Reading stops while the client has a
full window or the budget is used up; answers go on leaving through the outbox.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.actor.conversation import Conversation, done, failed
from hermes_actor.actor.desk import Desk
from hermes_actor.actor.outbox import Outbox
from hermes_actor.engine.jobs import Outcome
from hermes_actor.errors import Closed, HandoffFailed
from hermes_protocol.framing import FrameError, frame

if TYPE_CHECKING:
    from hermes_actor.actor.handoff import HandOff
    from hermes_actor.actor.server import Server

__all__ = ["Connection", "peer_credentials"]

_log = logging.getLogger("hermes_actor.actor")


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other end."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        pid, uid, _ = struct.unpack(
            "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        )
        return pid, uid
    # macOS: LOCAL_PEERCRED at level 0 gives a version and the uid; the pid is LOCAL_PEERPID.
    _, uid = struct.unpack("Ii", sock.getsockopt(0, 1, 8))
    (pid,) = struct.unpack("i", sock.getsockopt(0, 2, 4))
    return pid, uid


class Connection:
    """The actor's end of one connection."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        self.pid, self.uid = peer_credentials(sock)
        self.name = ""
        self.build = ""
        self.since = time.time()
        self._conversation = Conversation()
        self._more_to_send = trio.Event()
        self._room = trio.Event()
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._back = trio.Event()
        self._writes = False
        self._last_words = trio.CancelScope()
        self.awaits_handoff = False
        self._intake = server.mailbox.intake
        self.outbox = Outbox(sock, lambda: server.in_loop(self._wake))
        self.desk = Desk(
            server.mailbox,
            server.metrics,
            self._answer,
            lambda: server.in_loop(lambda: self._room.set()),
            private_sql=server.private_sql,
        )

    @property
    def client_id(self) -> bytes:
        return self.desk.client_id

    # --- life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until it leaves, misbehaves, or is sent away."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._finish_sending)
                    with self._reading:
                        await self._converse(nursery)
                    await self._answer_the_rest()
                    nursery.cancel_scope.cancel()
        except* FrameError as errors:
            _log.warning("client pid %d sent bad bytes: %s", self.pid, errors.exceptions[0])
        except* (OSError, trio.TooSlowError, trio.BrokenResourceError) as errors:
            _log.debug("client pid %d is gone: %r", self.pid, errors.exceptions[0])
        finally:
            self.desk.abandon_leases()
            self._server.reception.left(self)
            self.outbox.flush()
            self.outbox.close()
            self._sock.close()

    async def _converse(self, nursery: trio.Nursery) -> None:
        with trio.fail_after(limits.HELLO_SECONDS):
            hello, _ = await self._next_message()
        assert isinstance(hello, wire.Hello)
        self.desk.client_id, self.name, self.build = hello.client_id, hello.name, hello.build
        if not await self._server.reception.welcome(self, hello, nursery):
            return
        handled = 0
        while True:
            # In a lease the writer waits for this connection, and not where it would read it.
            may_lend = self._conversation.is_between_frames and not self.desk.has_lease
            if self._writes and may_lend:
                await self._lend()
            while self.desk.is_full:
                self._room = trio.Event()
                if self.desk.is_full:
                    await self._room.wait()
            message, price = await self._next_message()
            if isinstance(message, wire.Request):
                self._admit(message, price)
                self._writes = True
            elif isinstance(message, wire.Bye):
                self.desk.forget()
                return
            else:
                self._handle(message, nursery)
            # Kept until the next frame comes, the last body of every idle client would add up.
            del message
            handled += 1
            if handled % limits.MESSAGES_IN_A_ROW == 0:
                # One that has sent much must not keep the loop from reading others.
                await trio.lowlevel.checkpoint()

    def _handle(self, message: wire.ClientMessage, nursery: trio.Nursery) -> None:
        if isinstance(message, wire.StatusRequest):
            self.send(wire.StatusReply(ask=message.ask, status=self._server.status_json()))
        elif isinstance(message, wire.CatchUp):
            self.desk.catch_up(message)
        elif isinstance(message, wire.Maintain):
            self.desk.maintain(message)
        elif isinstance(message, wire.Drain):
            self.send(wire.Done(ask=message.ask))
            self._server.drain("asked to")
        elif isinstance(message, wire.Handoff):
            self._hand_off(message, nursery)
        elif isinstance(message, wire.Subscribe):
            nursery.start_soon(self._server.follow, self.outbox, message.after)
        else:
            assert not isinstance(message, wire.Hello | wire.Request | wire.Bye)
            self.desk.lease(message)
            self.outbox.flush()

    def _hand_off(self, message: wire.Handoff, nursery: trio.Nursery) -> None:
        try:
            handoff = self._server.hand_off(message)
        except HandoffFailed as error:
            self.send_frame(failed(message.ask, error))
            return
        if message.wait:
            self.awaits_handoff = True
            nursery.start_soon(self._tell_handoff, message.ask, handoff)
        else:
            self.send_frame(done(message.ask))

    async def _tell_handoff(self, ask: int, handoff: HandOff) -> None:
        await handoff.finished.wait()
        try:
            self.send_frame(done(ask, handoff.result()))
        except HandoffFailed as error:
            self.send_frame(failed(ask, error))
        self.awaits_handoff = False
        if self._server.handed_over:
            self.go_away("hand-off")

    # --- the incoming side, when it is lent to the writer ----------------------------------------

    def fileno(self) -> int:
        return self._sock.fileno()

    def read_requests(self) -> bool:
        """In the writer's thread: see :class:`~hermes_actor.actor.intake.Incoming`."""
        try:
            data = self._sock.recv(limits.RECEIVE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._conversation.feed(data)
        while self._admit_request():
            pass
        # What is left, the end of the stream and errors are met again by the event loop.
        return bool(data) and self._conversation.is_between_frames and not self.desk.is_full

    def _admit_request(self) -> bool:
        try:
            length = self._conversation.needed()
        except FrameError:
            return False
        if length is None or self.desk.is_full:
            return False
        price = self._price(length)
        if not self._server.credit.try_take(*price):
            return False
        request = self._conversation.next_request()
        if request is None:
            self._server.credit.give_back(*price)
            return False
        self._admit(request, price)
        return True

    def given_back(self) -> None:
        self._server.in_loop(lambda: self._back.set())

    async def _lend(self) -> None:
        """Let the writer read, until it meets something that is not for it."""
        self._writes = False
        self._back = trio.Event()
        if self._intake.lend(self):
            try:
                await self._back.wait()
            finally:
                self._intake.take_back(self)

    # --- the incoming side in the event loop -----------------------------------------------------

    def _admit(self, request: wire.Request, price: tuple[int, bytes]) -> None:
        self.desk.request(request, partial(self._server.credit.give_back, *price))

    def _price(self, length: int) -> tuple[int, bytes]:
        free = length <= limits.FREE_FRAME_BYTES
        return (0 if free else limits.CREDIT_FACTOR * length, self.client_id)

    async def _next_message(self) -> tuple[wire.ClientMessage, tuple[int, bytes]]:
        """The next message and, if it is a request, the credit that it holds."""
        while (length := self._conversation.needed()) is None:
            await self._receive()
        price = self._price(length)
        await self._server.credit.take(*price)
        try:
            message = self._conversation.next_message()
            if message is None:
                with trio.fail_after(limits.BODY_SECONDS):
                    while (message := self._conversation.next_message()) is None:
                        await self._receive()
            # Ended meanwhile, while this task was about to run: what it was sent before may have
            # been dropped, and what follows must not take its place.
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            self._server.credit.give_back(*price)
            raise
        if not isinstance(message, wire.Request):
            self._server.credit.give_back(*price)
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
        self._conversation.feed(data)

    # --- sending ---------------------------------------------------------------------------------

    def _answer(self, data: bytes) -> None:
        """In either thread: an answer, which leaves at the end of the batch."""
        self.outbox.add(data)
        self._server.dirty(self.outbox)

    def send(self, message: msgspec.Struct) -> None:
        """Send from the event loop, now."""
        self.send_frame(frame(message))

    def send_frame(self, data: bytes) -> None:
        self.outbox.add(data)
        self.outbox.flush()

    def _wake(self) -> None:
        if self.outbox.closed:
            self._scope.cancel()  # it does not take its answers
        self._more_to_send.set()

    async def _finish_sending(self) -> None:
        """Send what the kernel did not take at once; cut off a client that takes nothing."""
        while True:
            await self._more_to_send.wait()
            self._more_to_send = trio.Event()
            await self.outbox.finish()
            if self.outbox.closed:
                raise ConnectionResetError("the client does not take its answers")

    # --- the end ---------------------------------------------------------------------------------

    def go_away(self, reason: str) -> None:
        """Take nothing more from this client; what was admitted is still answered."""
        self._intake.take_back(self)
        self.send(wire.GoAway(last_seq=self.desk.highest_seq, reason=reason))
        self.desk.abandon_leases()
        self.end()

    def hurry(self) -> None:
        """Wait no longer for a client that does not take its answers."""
        self._last_words.cancel()

    def end(self) -> None:
        """Take nothing more; what was admitted is still answered."""
        self._reading.cancel()

    async def _answer_the_rest(self) -> None:
        """What was admitted is answered, and the answers are sent, before the connection ends."""
        self._last_words.deadline = trio.current_time() + self._server.drain_seconds
        answered = trio.Event()
        self.desk.when_empty(lambda: self._server.in_loop(answered.set))
        with self._last_words:
            await answered.wait()
            while not self.outbox.flush():
                await self.outbox.emptied()

    async def supersede(self) -> None:
        """A newer connection of the same client takes over: forget what was not taken.

        What was taken finishes first: the newer one must find its receipts. Asks change nothing
        and are not waited for.
        """
        self._intake.take_back(self)
        self.outbox.close()
        self._scope.cancel()
        for job in self._server.mailbox.drop(self.client_id):
            if job.take():
                job.finish(Outcome(error=Closed("superseded by a newer connection")))
        while self.desk.open_requests:  # noqa: ASYNC110 - the writer's thread counts, and soon
            await trio.sleep(0.0005)
