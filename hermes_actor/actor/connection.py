"""One client: reads its frames, admits its requests, answers what needs no writer.

Whatever bytes arrive, at most this connection ends (R4). Reading stops while the client has a
full window or the budget is used up; answers go on leaving through the outbox.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.actor.outbox import Outbox
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Outcome, Request, lease_over
from hermes_actor.engine.receipts import Ticket
from hermes_actor.errors import Closed, HermesActorError, Unsupported
from hermes_protocol.framing import (
    FrameBuffer,
    FrameError,
    OperationError,
    decode_client,
    decode_operation,
    frame,
)
from hermes_protocol.operations import SqlLease, SqlStatement

if TYPE_CHECKING:
    from hermes_actor.actor.server import Server

__all__ = ["Connection", "peer_credentials"]

_log = logging.getLogger("hermes_actor.actor")

_encode = msgspec.msgpack.Encoder().encode


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


class _WireCall(jobs.Call):
    """A request whose operation is decoded when the writer takes it, in the writer's thread."""

    __slots__ = ("raw", "ticket")

    def __init__(
        self, finish: jobs.Finish, deadline: float, ticket: Ticket, raw: msgspec.Raw
    ) -> None:
        jobs.Job.__init__(self, finish, deadline)
        self.ticket = ticket
        self.raw = raw

    def take(self) -> bool:
        if not super().take():
            return False
        try:
            operation = decode_operation(self.raw)
        except OperationError as error:
            self.finish(
                Outcome(error=Unsupported(f"this actor cannot read the operation: {error}"))
            )
            return False
        self.request = Request(operation, self.deadline, self.ticket)
        return True


class Connection:
    """The actor's end of one connection."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self._server = server
        self._sock = sock
        self.pid, self.uid = peer_credentials(sock)
        self.client_id = b""
        self.name = ""
        self.build = ""
        self.since = time.time()
        self.floor = 0
        self.highest_seq = 0
        self.requests = 0
        self._in_flight = 0
        self._in_flight_lock = threading.Lock()
        self._superseded = False
        self._leases: dict[int, jobs.Lease] = {}
        self._buffer = FrameBuffer(limits.FRAME_MAX_BYTES)
        self._more_to_send = trio.Event()
        self._room = trio.Event()
        self._scope = trio.CancelScope()
        self._reading = trio.CancelScope()
        self.outbox = Outbox(sock, lambda: server.in_loop(lambda: self._more_to_send.set()))

    # --- life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until it leaves, misbehaves, or is sent away."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._finish_sending)
                    with self._reading:
                        await self._converse()
                    await self._answer_the_rest()
                    nursery.cancel_scope.cancel()
        except* FrameError as errors:
            _log.warning("client pid %d sent bad bytes: %s", self.pid, errors.exceptions[0])
        except* (OSError, trio.TooSlowError, trio.BrokenResourceError) as errors:
            _log.debug("client pid %d is gone: %r", self.pid, errors.exceptions[0])
        finally:
            self._leave()

    def _leave(self) -> None:
        self._abandon_leases()
        self._server.left(self)
        self.outbox.flush()
        self.outbox.close()
        self._sock.close()

    async def _converse(self) -> None:
        with trio.fail_after(limits.HELLO_SECONDS):
            hello = await self._next_message()
        if not isinstance(hello, wire.Hello) or hello.magic != wire.MAGIC:
            raise FrameError("the first frame is not a Hello")
        if len(hello.client_id) != 16:
            raise FrameError("a client id has 16 bytes")
        if not await self._server.welcome(self, hello):
            return
        while True:
            while self._in_flight >= limits.WINDOW_REQUESTS:
                self._room = trio.Event()
                await self._room.wait()
            await self._handle(await self._next_message())

    async def _next_message(self) -> wire.ClientMessage:
        while (length := self._buffer.needed()) is None:
            await self._receive()
        self._amount = limits.CREDIT_FACTOR * length
        await self._server.credit.take(self._amount, self.client_id)
        try:
            body = self._buffer.next_body()
            if body is None:
                with trio.fail_after(limits.BODY_SECONDS):
                    while (body := self._buffer.next_body()) is None:
                        await self._receive()
            message = decode_client(body)
        except BaseException:
            self._server.credit.give_back(self._amount, self.client_id)
            raise
        if not isinstance(message, wire.Request):
            self._server.credit.give_back(self._amount, self.client_id)
        return message

    async def _receive(self) -> None:
        while True:
            try:
                data = self._sock.recv(limits.RECEIVE_BYTES)
                break
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._sock)
        if not data:
            raise ConnectionResetError("end of stream")
        self._buffer.feed(data)

    async def _finish_sending(self) -> None:
        """Send what the kernel did not take at once; cut off a client that takes nothing."""
        while True:
            await self._more_to_send.wait()
            self._more_to_send = trio.Event()
            while not self.outbox.flush():
                with trio.fail_after(limits.WRITE_STALL_SECONDS):
                    await trio.lowlevel.wait_writable(self._sock)
            if self.outbox.closed:
                raise ConnectionResetError("the client does not take its answers")

    def send(self, message: msgspec.Struct) -> None:
        """Send from the event loop."""
        self.outbox.add(frame(message))
        self.outbox.flush()

    def go_away(self, reason: str) -> None:
        """Take nothing more from this client; what was admitted is still answered."""
        self.send(wire.GoAway(last_seq=self.highest_seq, reason=reason))
        self._abandon_leases()
        self._reading.cancel()

    async def _answer_the_rest(self) -> None:
        """What was admitted is answered, and the answers are sent, before the connection ends."""
        with trio.move_on_after(limits.DRAIN_SECONDS):
            while self._in_flight or not self.outbox.flush():  # noqa: ASYNC110 - other thread
                await trio.sleep(0.001)

    def _abandon_leases(self) -> None:
        for lease in self._leases.values():
            lease.abandon()

    async def supersede(self) -> None:
        """A newer connection of the same client takes over: forget what was not taken."""
        self._superseded = True
        self._scope.cancel()
        for job in self._server.mailbox.drop(self.client_id):
            if job.take():
                job.finish(Outcome(error=Closed("superseded by a newer connection")))
        while self._in_flight:  # noqa: ASYNC110 - the writer's thread counts, and soon
            await trio.sleep(0.0005)

    # --- messages ----------------------------------------------------------------------------

    async def _handle(self, message: wire.ClientMessage) -> None:
        if isinstance(message, wire.Request):
            self._admit(message)
        elif isinstance(message, wire.Bye):
            self._server.mailbox.put(
                self.client_id, jobs.Forget(lambda _outcome: None, self.client_id)
            )
            raise ConnectionResetError("good-bye")
        elif isinstance(message, wire.StatusRequest):
            self.send(wire.StatusReply(ask=message.ask, status=self._server.status_json()))
        elif isinstance(message, wire.CatchUp):
            done = self._answer_to(message.ask)
            self._put(jobs.CatchUp(done, _deadline(message.patience), message.through))
        elif isinstance(message, wire.Drain):
            self.send(wire.Done(ask=message.ask))
            self._server.drain("asked to")
        elif isinstance(message, wire.Subscribe):
            await self._server.changes.feed(self, message.after)
        elif isinstance(message, wire.Hello):
            raise FrameError("a second Hello")
        else:
            self._handle_lease(message)

    def _put(self, job: jobs.Job) -> None:
        with self._in_flight_lock:
            self._in_flight += 1
        self._server.mailbox.put(self.client_id, job)

    def _admit(self, message: wire.Request) -> None:
        self.requests += 1
        self.highest_seq = max(self.highest_seq, message.seq)
        digest = hashlib.blake2b(message.operation, digest_size=8).digest()
        ticket = Ticket(self.client_id, message.seq, digest, message.after, message.acked_through)
        arrived, amount = time.monotonic(), self._amount

        def finish(outcome: Outcome) -> None:
            self._reply(message.seq, outcome)
            self._server.finished(self, outcome, time.monotonic() - arrived)
            self._server.credit.give_back(amount, self.client_id)
            self._landed()

        deadline = _deadline(message.patience)
        self._put(_WireCall(finish, deadline, ticket, message.operation))

    def _landed(self) -> None:
        """In the writer's thread: one request less is open."""
        with self._in_flight_lock:
            self._in_flight -= 1
            was_full = self._in_flight == limits.WINDOW_REQUESTS - 1
        if was_full:
            self._server.in_loop(lambda: self._room.set())

    def _reply(self, seq: int, outcome: Outcome) -> None:
        if self._superseded:
            return
        if outcome.error is not None:
            self.outbox.add(frame(_failed(seq, outcome.error)))
        elif outcome.commit_no is None:
            # Upkeep has no place in the order of changes.
            self.outbox.add(frame(wire.Ok(seq=seq, commit_no=0)))
        else:
            self.outbox.add(
                frame(wire.Ok(seq=seq, commit_no=outcome.commit_no, result=outcome.result))
            )
        self._server.dirty(self.outbox)

    def _answer_to(self, ask: int, *, in_flight: bool = True) -> Callable[[Outcome], None]:
        def done(outcome: Outcome) -> None:
            if outcome.error is not None:
                self.outbox.add(frame(_failed(ask, outcome.error)))
            else:
                self.outbox.add(
                    frame(wire.Done(ask=ask, result=msgspec.Raw(_encode(outcome.result))))
                )
            self._server.dirty(self.outbox)
            if in_flight:
                self._landed()

        return done

    def _handle_lease(
        self, message: wire.LeaseOpen | wire.LeaseRun | wire.LeaseCommit | wire.LeaseRollback
    ) -> None:
        if isinstance(message, wire.LeaseOpen):
            self._open_lease(message)
            return
        lease = self._leases.get(message.lease)
        if lease is not None and lease.ended:
            del self._leases[message.lease]
            lease = None
        if isinstance(message, wire.LeaseCommit):
            self._commit_lease(message, lease)
        elif lease is None:
            self.send(_failed(message.ask, lease_over()))
        else:
            statement = None
            if isinstance(message, wire.LeaseRun):
                self._server.metrics.statements += 1
                statement = _statement(message.statement)
            done = self._answer_to(message.ask, in_flight=False)
            lease.put(jobs.Command(statement, None, done))

    def _open_lease(self, message: wire.LeaseOpen) -> None:
        if not self._server.private_sql:
            self.send(_failed(message.ask, Unsupported("actor.private_sql is switched off")))
            return
        self._server.metrics.leases += 1
        self._leases = {n: lease for n, lease in self._leases.items() if not lease.ended}
        lease = jobs.Lease(self._answer_to(message.ask), _deadline(message.patience))
        self._leases[message.lease] = lease
        self._put(lease)

    def _commit_lease(self, message: wire.LeaseCommit, lease: jobs.Lease | None) -> None:
        operation = SqlLease(lease=message.lease)
        ticket = Ticket(
            self.client_id,
            message.seq,
            hashlib.blake2b(b"lease %d" % message.lease, digest_size=8).digest(),
            message.after,
            message.acked_through,
            self.floor,
        )
        self.highest_seq = max(self.highest_seq, message.seq)
        request = Request(operation, _deadline(None), ticket)

        def finish(outcome: Outcome) -> None:
            self._reply(message.seq, outcome)
            self._landed()

        with self._in_flight_lock:
            self._in_flight += 1
        if lease is not None:
            lease.put(jobs.Command(None, request, finish))
        else:
            # The lease is over or was another connection's: only its receipt can answer.
            self._server.mailbox.put(self.client_id, jobs.Call(finish, request))


def _statement(raw: msgspec.Raw) -> SqlStatement:
    try:
        operation = decode_operation(raw)
    except OperationError as error:
        raise FrameError(str(error)) from error
    if not isinstance(operation, SqlStatement):
        raise FrameError("a lease runs statements only")
    return operation


def _deadline(patience: float | None) -> float:
    return time.monotonic() + (limits.PATIENCE_SECONDS if patience is None else patience)


def _failed(seq: int, error: BaseException) -> wire.Failed:
    if isinstance(error, HermesActorError):
        return wire.Failed(
            seq=seq, code=error.code, message=str(error), executed=error.executed, words=error.words
        )
    code = "bad-value" if isinstance(error, ValueError | TypeError | OverflowError) else "error"
    return wire.Failed(seq=seq, code=code, message=f"{type(error).__name__}: {error}")
