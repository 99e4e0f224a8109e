"""The client's half of the conversation, without any input or output.

It numbers requests, keeps them until they are answered, and sends all that are not again, in
order and with the same numbers, after every reconnection. Crash, drain and hand-off are one path.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor._version import __version__
from hermes_actor.errors import (
    HermesActorError,
    IncompatibleProtocol,
    IndexBehind,
    TooBig,
    by_code,
)
from hermes_protocol.framing import FrameBuffer, FrameError, decode_server, frame
from hermes_protocol.operations import Staged, StagePart

if TYPE_CHECKING:
    from hermes_protocol.operations import Operation

__all__ = ["ClientCore", "Reply", "decode_result", "error_from", "rejection"]

_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def decode_result(result: bytes, kind: Any) -> Any:
    """The result of an answer, as the type that its operation names."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode(result)


class Reply:
    """The place of one answer. ``done`` is the last thing that is set."""

    __slots__ = ("commit_no", "done", "error", "number", "result")

    def __init__(self, number: int) -> None:
        self.number = number
        self.result: bytes | None = None
        self.error: BaseException | None = None
        self.commit_no: int | None = None
        self.done = False


def error_from(message: wire.Failed | wire.Reject) -> HermesActorError:
    """The typed error that a code stands for."""
    kind = by_code.get(message.code, HermesActorError)
    error: HermesActorError = kind(message.message)
    error.words = message.words or message.message
    if isinstance(error, IndexBehind) and isinstance(message, wire.Failed):
        error.done, error.total = message.done, message.total
    if isinstance(message, wire.Failed):
        error.executed = message.executed
    return error


def rejection(message: wire.Reject) -> HermesActorError:
    """Why the actor does not take a client."""
    if message.code == "protocol":
        return IncompatibleProtocol(
            f"{message.message}: this client speaks {wire.PROTOCOL},"
            f" the actor {message.oldest} to {message.newest}"
        )
    return error_from(message)


class ClientCore:
    """Numbers, window, resending. Not thread-safe: its shell serialises all calls."""

    def __init__(
        self, name: str = "", after_welcome: Callable[[ClientCore], bytes] = lambda _core: b""
    ) -> None:
        """*after_welcome* gives what goes out behind everything that is sent again."""
        self.client_id = os.urandom(16)
        self.welcome: wire.Welcome | None = None
        self.phase = ""
        self.going_away = False
        self._name = name
        self._after_welcome = after_welcome
        self._next_seq = 1
        self._next_ask = -1
        self._next_stage = 1
        self._commit_no = 0
        self._acked_through = 0
        self._answered: set[int] = set()
        self._open: dict[int, tuple[Reply, bytes]] = {}
        self._asks: dict[int, Reply] = {}
        self._buffer = FrameBuffer(1 << 30)

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def has_room(self) -> bool:
        window = self.welcome.limits.window if self.welcome else limits.WINDOW_REQUESTS
        # One place stays free: the commit of a lease must pass what waits behind the lease.
        return len(self._open) < window - 1

    def hello(self) -> bytes:
        """The first bytes of a new connection."""
        self.welcome, self.going_away = None, False
        self._buffer = FrameBuffer(1 << 30)
        return frame(
            wire.Hello(
                client_id=self.client_id, name=self._name, pid=os.getpid(), build=__version__
            )
        )

    def resend(self) -> bytes:
        """After Welcome: everything that has no answer, in order. Asks end with a connection."""
        for ask in list(self._asks.values()):
            ask.error = ConnectionResetError("the connection was lost")
            ask.done = True
        self._asks.clear()
        again = b"".join(data for _, (_, data) in sorted(self._open.items()))
        return again + self._after_welcome(self)

    def encode(self, operation: Operation[Any]) -> bytes | None:
        """The bytes of an operation; ``None`` if it must be staged (see :meth:`stages`).

        Raises :class:`TooBig` for one that no actor takes.
        """
        encoded = _encode(operation)
        if len(encoded) > limits.STAGED_MAX_BYTES:
            raise TooBig(
                f"an operation may have {limits.STAGED_MAX_BYTES} bytes, and this one has"
                f" {len(encoded)}; send several smaller ones"
            )
        return encoded if len(encoded) <= 2 * limits.STAGE_PART_BYTES else None

    def stages(self, operation: Operation[Any]) -> list[bytes]:
        """The operations, in order, that bring a large operation in parts; the last applies it."""
        encoded, size = _encode(operation), limits.STAGE_PART_BYTES
        key, self._next_stage = self._next_stage, self._next_stage + 1
        parts = [encoded[start : start + size] for start in range(0, len(encoded), size)]
        steps = [_encode(StagePart(key=key, part=n, data=part)) for n, part in enumerate(parts)]
        return [*steps, _encode(Staged(key=key, parts=len(parts)))]

    def request(self, operation: bytes, patience: float) -> tuple[Reply, bytes]:
        """Number an encoded operation. Returns where its answer will be, and what to send."""
        reply = Reply(self._next_seq)
        data = frame(
            wire.Request(
                seq=reply.number,
                operation=msgspec.Raw(operation),
                after=self._commit_no,
                acked_through=self._acked_through,
                patience=patience,
            )
        )
        return self._opened(reply, data)

    def reserve(self) -> int:
        """Take a number for the commit of a lease, before anything that comes after it."""
        number, self._next_seq = self._next_seq, self._next_seq + 1
        return number

    def commit_lease(self, number: int) -> tuple[Reply, bytes]:
        """The commit of a lease, under the number that was reserved for it."""
        reply = Reply(number)
        message = wire.LeaseCommit(
            seq=number, lease=number, after=self._commit_no, acked_through=self._acked_through
        )
        data = frame(message)
        self._open[number] = (reply, data)
        return reply, data

    def unreserve(self, number: int) -> None:
        """The lease ended without a commit."""
        self._was_answered(number)

    def _opened(self, reply: Reply, data: bytes) -> tuple[Reply, bytes]:
        self._open[reply.number] = (reply, data)
        self._next_seq += 1
        return reply, data

    def ask(self, make: Any) -> tuple[Reply, bytes]:
        """An ask: ``make(number)`` gives its message."""
        reply = Reply(self._next_ask)
        self._next_ask -= 1
        self._asks[reply.number] = reply
        return reply, frame(make(reply.number))

    def give_up(self, reply: Reply) -> None:
        """Nobody waits for this answer any more; it is not sent again."""
        if self._open.pop(reply.number, None):
            self._was_answered(reply.number)
        self._asks.pop(reply.number, None)

    def receive(self, data: bytes) -> list[Reply]:
        """Take bytes of the actor; the answers that are now complete.

        Raises :class:`FrameError` for bytes that are not of this protocol, and the typed error of
        a Reject.
        """
        self._buffer.feed(data)
        finished = []
        while (body := self._buffer.next_body()) is not None:
            reply = self._message(decode_server(body))
            if reply is not None:
                reply.done = True
                finished.append(reply)
        return finished

    def _message(self, message: wire.ServerMessage) -> Reply | None:
        if isinstance(message, wire.Ok | wire.Failed) and message.seq > 0:
            opened = self._open.pop(message.seq, None)
            if opened is None:
                return None
            self._was_answered(message.seq)
            reply = opened[0]
            if isinstance(message, wire.Ok):
                self._commit_no = max(self._commit_no, message.commit_no)
                reply.commit_no, reply.result = message.commit_no, bytes(message.result)
            else:
                reply.error = error_from(message)
            return reply
        if isinstance(message, wire.Done | wire.StatusReply | wire.Failed):
            number = message.seq if isinstance(message, wire.Failed) else message.ask
            asked = self._asks.pop(number, None)
            if asked is None:
                return None
            if isinstance(message, wire.Failed):
                asked.error = error_from(message)
            elif isinstance(message, wire.StatusReply):
                asked.result = message.status.encode()
            else:
                asked.result = bytes(message.result)
            return asked
        if isinstance(message, wire.Welcome):
            self.phase = message.phase
            if not message.ready:
                return None
            self.welcome = message
            self._commit_no = max(self._commit_no, message.commit_no)
        elif isinstance(message, wire.Reject):
            raise rejection(message)
        elif isinstance(message, wire.GoAway):
            self.going_away = True
        else:
            raise FrameError(f"unexpected {type(message).__name__}")
        return None

    def _was_answered(self, seq: int) -> None:
        self._answered.add(seq)
        while self._acked_through + 1 in self._answered:
            self._acked_through += 1
            self._answered.discard(self._acked_through)
