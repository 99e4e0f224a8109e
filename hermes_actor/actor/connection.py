"""One client's connection, from its Hello to its end in good order.

Whatever bytes arrive, at most this connection ends (R4). What comes goes through the inbox, and
answers leave through the outbox, also while nothing is read.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.actor.frame_reader import FrameReader
from hermes_actor.actor.outbox import Outbox
from hermes_actor.actor.replies import done, failed
from hermes_actor.actor.requests import RequestTracker
from hermes_actor.errors import Closed, HandoffFailed
from hermes_actor.paths import readable
from hermes_protocol.framing import FrameError, frame

if TYPE_CHECKING:
    from hermes_actor.actor.handoff.attempt import HandoffAttempt
    from hermes_actor.actor.server import Server

__all__ = ["Connection", "peer_credentials"]

_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL | getattr(select, "POLLRDHUP", 0)
_ASKS = wire.StatusRequest | wire.CatchUp | wire.Maintain | wire.Drain | wire.Handoff

_log = logging.getLogger("hermes_actor.actor")

_NAME_LENGTH = 200


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
        self._more_to_send = trio.Event()
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._last_words = trio.CancelScope()
        self.awaits_handoff = False
        self._has_ended = False
        self.outbox = Outbox(sock, lambda: server.in_loop(self._wake), server.backlog)
        self.desk = RequestTracker(
            server.mailbox,
            server.metrics,
            self._answer,
            lambda: self.inbox.has_room(),
            is_there=self._is_there,
            who=lambda: f"pid {self.pid} ({self.name})",
            leads=lambda leads: server.credit.favour(self.client_id if leads else None),
        )
        intake = server.mailbox.intake
        self.inbox = FrameReader(
            sock, self.desk, server.credit, intake, server.in_loop, server.gate
        )

    @property
    def client_id(self) -> bytes:
        return self.desk.client_id

    def _is_there(self) -> bool:
        """Whether the client still has its end open. Asks the kernel: we may not have read up to
        the end of what a client has sent that is gone by now."""
        ready = select.poll()
        try:
            ready.register(self._sock, _GONE)
            gone = any(events & _GONE for _, events in ready.poll(0))
        except (OSError, ValueError):
            return False  # we have closed our own end
        return not gone and not self._has_ended

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
        except* Exception:
            _log.exception("unexpected error: the connection of client pid %d ends", self.pid)
        finally:
            self._has_ended = True
            self.desk.abandon()
            self._server.reception.left(self)
            self.outbox.flush()
            self.outbox.close()
            self._sock.close()

    async def _converse(self, nursery: trio.Nursery) -> None:
        with trio.fail_after(limits.HELLO_SECONDS):
            hello, landed = await self.inbox.next_message()
        landed()
        assert isinstance(hello, wire.Hello)
        self.desk.client_id = hello.client_id
        # Kept for as long as the connection lives, and shown to people.
        self.name, self.build = hello.name[:_NAME_LENGTH], hello.build[:_NAME_LENGTH]
        if not await self._server.reception.welcome(self, hello, nursery):
            return
        while True:
            message, landed = await self.inbox.next_message()
            if isinstance(message, wire.Bye):
                break
            self._handle(message, landed, nursery)
        self.desk.forget()

    def _handle(
        self, message: wire.ClientMessage, landed: Callable[[], None], nursery: trio.Nursery
    ) -> None:
        """Do what a message asks for; *landed* is called when nothing of it is kept any more."""
        try:
            self._do(message, landed, nursery)
        except FrameError:
            raise
        except Exception as error:
            if not isinstance(message, _ASKS):
                raise
            _log.exception("unexpected error in an ask of client pid %d", self.pid)
            self.send_frame(failed(message.ask, error))
            landed()

    def _do(
        self, message: wire.ClientMessage, landed: Callable[[], None], nursery: trio.Nursery
    ) -> None:
        if isinstance(message, wire.CatchUp):
            self.desk.catch_up(message, landed)
        elif isinstance(message, wire.Maintain):
            self.desk.maintain(message, landed)
        elif isinstance(
            message, wire.LeaseOpen | wire.LeaseRun | wire.LeaseCommit | wire.LeaseRollback
        ):
            self.desk.lease(message, landed)
            self.outbox.flush()
        else:
            landed()
            self._do_at_once(message, nursery)

    def _do_at_once(self, message: wire.ClientMessage, nursery: trio.Nursery) -> None:
        if isinstance(message, wire.StatusRequest):
            self.send(wire.StatusReply(ask=message.ask, status=self._server.status_json()))
        elif isinstance(message, wire.Drain):
            self.send(wire.Done(ask=message.ask))
            self._server.drain("asked to")
        elif isinstance(message, wire.Handoff):
            self._hand_off(message, nursery)
        else:
            assert isinstance(message, wire.Subscribe)
            nursery.start_soon(self._server.follow, self.outbox, message.after)

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

    async def _tell_handoff(self, ask: int, handoff: HandoffAttempt) -> None:
        await handoff.finished.wait()
        try:
            self.send_frame(done(ask, handoff.result()))
        except HandoffFailed as error:
            self.send_frame(failed(ask, error))
        self.awaits_handoff = False
        if self._server.succession.is_over:
            self.go_away("hand-off")

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
        self.inbox.take_back()
        self.send(wire.GoAway(last_seq=self.desk.highest_seq, reason=readable(reason)))
        self.desk.abandon()
        self.end()

    def hurry(self) -> None:
        """Wait no longer for a client that does not take its answers."""
        self._last_words.cancel()

    def cut(self) -> None:
        """End the connection at once, whatever is open."""
        self._scope.cancel()

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
        self.inbox.take_back()
        self.outbox.close()
        self._scope.cancel()
        for job in self._server.mailbox.drop(self.client_id):
            job.give_up(Closed("superseded by a newer connection"))
        if not self.desk.is_settled:
            settled = trio.Event()
            self.desk.when_settled(lambda: self._server.in_loop(settled.set))
            await settled.wait()
