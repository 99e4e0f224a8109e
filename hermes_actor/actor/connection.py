"""One client's connection, from its Hello to its end in good order.

Whatever bytes arrive, at most this connection ends (R4). Messages come through a frame reader, and
replies leave through the outbox, also while nothing is read.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.actor.frame_reader import FrameReader
from hermes_actor.actor.outbox import Outbox
from hermes_actor.actor.replies import done, failed
from hermes_actor.actor.requests import RequestTracker
from hermes_actor.engine.jobs import LeaseHolder
from hermes_actor.errors import Closed, HandoffFailed
from hermes_actor.paths import readable
from hermes_protocol.features import kind_in
from hermes_protocol.framing import FrameError, frame

if TYPE_CHECKING:
    from hermes_actor.actor.handoff.coordinator import HandoffAttempt
    from hermes_actor.actor.interfaces import Controls, Resources

__all__ = ["Connection", "Lifecycle", "peer_credentials"]

_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL | getattr(select, "POLLRDHUP", 0)
_ASKS = wire.StatusRequest | wire.CatchUp | wire.Maintain | wire.Drain | wire.Handoff

_log = logging.getLogger("hermes_actor.actor")

_NAME_LENGTH = 200


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """Return (pid, uid) of the other end. Raises :class:`OSError` if it is closed."""
    # By the kernel, at the time of connecting. The pid in Hello is only what the client says.
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


class Lifecycle(Protocol):
    """The part of a set of connections that one of them needs."""

    async def welcome(
        self, connection: Connection, hello: wire.Hello, nursery: trio.Nursery
    ) -> bool:
        """Answer a Hello. Return False if the client is refused."""
        ...

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        ...


class Connection:
    """The actor's end of one connection."""

    def __init__(
        self,
        sock: socket.socket,
        resources: Resources,
        controls: Controls,
        lifecycle: Lifecycle,
    ) -> None:
        self._sock = sock
        self._controls = controls
        self._lifecycle = lifecycle
        self._mailbox = resources.mailbox
        self._run_in_loop = resources.run_in_loop
        self._drain_seconds = resources.drain_seconds
        self.pid, self.uid = peer_credentials(sock)
        self.name = ""
        self.build = ""
        self.needed_kind: str | None = None
        """The only kind of file that is of use to the client; ``None``: any."""
        self.since = time.time()
        self._more_to_send = trio.Event()
        # Three ends: *_scope* is at once; *_reading* takes nothing more and still answers;
        # *_last_words* stops waiting for a client to read its replies.
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self._last_words = trio.CancelScope()
        self.awaits_handoff = False
        self._asked: set[type[wire.ClientMessage]] = set()
        self._has_ended = False
        self.outbox = Outbox(sock, partial(self._run_in_loop, self._wake), resources.backlog)
        self.requests = RequestTracker(
            resources.mailbox,
            resources.metrics,
            self.outbox,
            resources.unflushed,
            is_there=self._is_there,
            describe=self.describe,
            holder=lambda: LeaseHolder(self.name, self.pid),
            favour=resources.limiter.favour,
        )
        self._reader = FrameReader(sock, self.requests, resources)

    @property
    def client_id(self) -> bytes:
        """The id of Hello, which outlives connections; empty before Hello."""
        return self.requests.client_id

    @property
    def only_watched(self) -> bool:
        """True if the client has asked for the status, and for nothing else."""
        return self._asked == {wire.StatusRequest} and not self.requests.highest_seq

    def describe(self) -> str:
        """Return the client's process and name, for people."""
        return f"pid {self.pid} ({self.name})"

    def _is_there(self) -> bool:
        """Return True if the client still has its end open. Safe in any thread."""
        # The kernel is asked: a client that has exited may have sent more than was read so far.
        ready = select.poll()
        try:
            ready.register(self._sock, _GONE)
            gone = any(events & _GONE for _, events in ready.poll(0))
        except (OSError, ValueError):
            return False  # this end is closed
        return not gone and not self._has_ended

    # --- run -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until it leaves, breaks the protocol, or is sent away."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    # Beside the reading: a client that sends nothing, or whose window is full,
                    # still gets replies.
                    nursery.start_soon(self._finish_sending)
                    with self._reading:
                        await self._converse(nursery)
                    await self._answer_the_rest()
                    nursery.cancel_scope.cancel()
        except* FrameError as errors:
            _log.warning("client %s broke the protocol: %s", self.describe(), errors.exceptions[0])
        except* (OSError, trio.TooSlowError, trio.BrokenResourceError) as errors:
            _log.debug("client %s has left: %r", self.describe(), errors.exceptions[0])
        except* Exception:
            _log.exception("unexpected error: the connection of client %s ends", self.describe())
        finally:
            # In this order: work that checks for its client sees it gone; leases end, for which the
            # writer and all other clients wait; and the outbox is closed before the descriptor,
            # whose number the next connection may get.
            self._has_ended = True
            self.requests.abandon()
            self._lifecycle.remove(self)
            self.outbox.flush()
            self.outbox.close()
            self._sock.close()

    async def _converse(self, nursery: trio.Nursery) -> None:
        with trio.fail_after(limits.HELLO_SECONDS):
            hello, landed = await self._reader.next_message()
        # At once: of a Hello only two short texts are kept, and they are copied below.
        landed()
        assert isinstance(hello, wire.Hello)
        self.requests.client_id = hello.client_id
        # Kept for as long as the connection lives, and shown to people.
        self.name, self.build = hello.name[:_NAME_LENGTH], hello.build[:_NAME_LENGTH]
        self.needed_kind = kind_in(hello.features)
        if not await self._lifecycle.welcome(self, hello, nursery):
            return
        while True:
            message, landed = await self._reader.next_message()
            if isinstance(message, wire.Bye):
                break
            self._handle(message, landed, nursery)
        # Only after Bye. A client whose connection broke comes back and needs its receipts (G2).
        self.requests.forget()

    def _handle(
        self, message: wire.ClientMessage, landed: Callable[[], None], nursery: trio.Nursery
    ) -> None:
        """Dispatch a message; *landed* is called when nothing of it is kept any more."""
        self._asked.add(type(message))
        try:
            self._do(message, landed, nursery)
        except FrameError:
            raise
        except Exception as error:
            # An ask is refused by its number. After anything else, such as a step of a lease, the
            # state is unknown, and the connection ends.
            if not isinstance(message, _ASKS):
                raise
            _log.exception("unexpected error in an ask of client pid %d", self.pid)
            self.send_frame(failed(message.ask, error))
            landed()

    def _do(
        self, message: wire.ClientMessage, landed: Callable[[], None], nursery: trio.Nursery
    ) -> None:
        if isinstance(message, wire.CatchUp):
            self.requests.catch_up(message, landed)
        elif isinstance(message, wire.Maintain):
            self.requests.maintain(message, landed)
        elif isinstance(
            message, wire.LeaseOpen | wire.LeaseRun | wire.LeaseCommit | wire.LeaseRollback
        ):
            job = self.requests.lease(message, landed)
            if job is not None:
                self._mailbox.put(self.client_id, job)
            # A lease that is over is refused in this thread: no batch ends that would flush it.
            self.outbox.flush()
        else:
            landed()
            self._do_at_once(message, nursery)

    def _do_at_once(self, message: wire.ClientMessage, nursery: trio.Nursery) -> None:
        if isinstance(message, wire.Interrupt):
            self.requests.interrupt(message.number)
        elif isinstance(message, wire.StatusRequest):
            self.send(wire.StatusReply(ask=message.ask, status=self._controls.status_json()))
        elif isinstance(message, wire.Drain):
            # Before the drain, which sends this client away.
            self.send(wire.Done(ask=message.ask))
            self._controls.drain("a client asked for it")
        elif isinstance(message, wire.Handoff):
            self._hand_off(message, nursery)
        else:
            assert isinstance(message, wire.Subscribe)
            nursery.start_soon(self._controls.follow, self.outbox, message.after)

    def _hand_off(self, message: wire.Handoff, nursery: trio.Nursery) -> None:
        try:
            handoff = self._controls.hand_off(message)
        except HandoffFailed as error:
            self.send_frame(failed(message.ask, error))
            return
        if message.wait:
            self.awaits_handoff = True
            nursery.start_soon(self._report_handoff, message.ask, handoff)
        else:
            self.send_frame(done(message.ask))

    async def _report_handoff(self, ask: int, handoff: HandoffAttempt) -> None:
        await handoff.finished.wait()
        try:
            self.send_frame(done(ask, handoff.result()))
        except HandoffFailed as error:
            self.send_frame(failed(ask, error))
        self.awaits_handoff = False
        if self._controls.has_handed_over:
            self.go_away("hand-off")

    # --- sending ---------------------------------------------------------------------------------

    def send(self, message: msgspec.Struct) -> None:
        """Send from the event loop, now."""
        self.send_frame(frame(message))

    def send_frame(self, data: bytes) -> None:
        """Send an encoded frame from the event loop, now, as far as the kernel takes it."""
        self.outbox.add(data)
        self.outbox.flush()

    def _wake(self) -> None:
        if self.outbox.closed:
            self._scope.cancel()  # the client does not read its replies
        self._more_to_send.set()

    async def _finish_sending(self) -> None:
        """Send what the kernel did not take at once; cut off a client that reads nothing."""
        while True:
            await self._more_to_send.wait()
            # Replaced before the outbox is emptied: what is added meanwhile sets the new one.
            self._more_to_send = trio.Event()
            await self.outbox.finish()
            if self.outbox.closed:
                raise ConnectionResetError("the client does not read its replies")

    # --- the end ---------------------------------------------------------------------------------

    def go_away(self, reason: str) -> None:
        """Take nothing more from this client; what was admitted is still answered."""
        # First: from here on the writer thread admits nothing, so the number below is the highest.
        self._reader.stop_lending()
        self.send(wire.GoAway(last_seq=self.requests.highest_seq, reason=readable(reason)))
        self.requests.abandon()
        self.end()

    def skip_flush_wait(self) -> None:
        """Wait no longer for a client that does not read its replies."""
        self._last_words.cancel()

    def cut(self) -> None:
        """End the connection at once, whatever is open."""
        self._scope.cancel()

    def end(self) -> None:
        """Take nothing more; what was admitted is still answered."""
        self._reading.cancel()

    async def _answer_the_rest(self) -> None:
        """Wait until what was admitted is answered, and the replies are sent."""
        self._last_words.deadline = trio.current_time() + self._drain_seconds
        answered = trio.Event()
        self.requests.when_empty(partial(self._run_in_loop, answered.set))
        with self._last_words:
            await answered.wait()
            while not self.outbox.flush():
                await self.outbox.emptied()

    async def supersede(self) -> None:
        """Give way to a newer connection of the same client: drop what the writer has not taken.

        What it has taken finishes first: the newer connection must find the receipts. Asks change
        nothing and are not waited for.
        """
        # The writer thread no longer reads and all that it has read is in the lane: what is dropped
        # below is everything that it has not taken, and nothing can follow (G3).
        self._reader.stop_lending()
        self.outbox.close()
        self._scope.cancel()
        for job in self._mailbox.drop(self.client_id):
            job.give_up(Closed("superseded by a newer connection"))
        if not self.requests.is_settled:
            settled = trio.Event()
            self.requests.when_settled(partial(self._run_in_loop, settled.set))
            await settled.wait()
