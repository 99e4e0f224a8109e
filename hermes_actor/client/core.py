"""The client's half of the conversation, without any input or output.

It numbers requests, keeps them until they are answered, and sends all that are not again, in
order and with the same numbers, after every reconnection. Crash, drain and hand-off are one path.

A signal handler may raise at any instruction. So every step here leaves the tables consistent: a
number is taken in one step, an answer is complete before its request leaves the table, and what
is acknowledged is derived from what is open.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor._version import __version__
from hermes_actor.errors import (
    HermesActorError,
    IncompatibleProtocol,
    IndexBehind,
    ValueTooLarge,
    by_code,
)
from hermes_protocol.framing import HEADER_BYTES, FrameBuffer, FrameError, decode_server, frame
from hermes_protocol.operations import Staged, StagePart

if TYPE_CHECKING:
    from hermes_protocol.operations import Operation

__all__ = ["ClientCore", "Reply", "decode_result", "error_from", "rejection"]

_encode = msgspec.msgpack.Encoder().encode
_decode_own = msgspec.msgpack.Decoder(wire.Request | wire.LeaseCommit)
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def decode_result(result: bytes, kind: Any) -> Any:
    """The result of an answer, as the type that its operation names."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return decoder.decode(result)


class Reply:
    """The place of one answer. ``done`` is the last thing that is set.

    ``left`` says whether a byte of its request may ever have left for an actor; ``deadline`` is
    when its caller stops waiting.
    """

    __slots__ = ("began", "commit_no", "deadline", "done", "error", "left", "number", "result")

    def __init__(self, began: float = 0.0, deadline: float = math.inf) -> None:
        self.number = 0
        self.began = began
        self.deadline = deadline
        self.left = False
        self.result: bytes | None = None
        self.error: BaseException | None = None
        self.commit_no: int | None = None
        self.done = False

    def is_done(self) -> bool:
        return self.done


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
        self._numbers = count(1)
        self._ask_numbers = count(-1, -1)
        self._stage_keys = count(1)
        self._commit_no = 0
        self._open: dict[int, tuple[Reply, bytes]] = {}
        self._reserved: set[int] = set()  # also those whose commit is open
        self._asks: dict[int, Reply] = {}
        self._buffer = FrameBuffer(1 << 30)

    @property
    def in_flight(self) -> int:
        return len(self._open)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for an answer and no lease is open."""
        return not (self._open or self._asks or self._reserved)

    @property
    def has_room(self) -> bool:
        window = self.welcome.limits.window if self.welcome else limits.WINDOW_REQUESTS
        # One place stays free: the commit of a lease must pass what waits behind the lease.
        return len(self._open) < window - 1

    def hello(self) -> bytes:
        """The first bytes of a new connection."""
        self.welcome, self.phase, self.going_away = None, "", False
        self._buffer = FrameBuffer(1 << 30)
        return frame(
            wire.Hello(
                client_id=self.client_id, name=self._name, pid=os.getpid(), build=__version__
            )
        )

    def resend(self) -> bytes:
        """After Welcome, in one piece: everything that has no answer, and what follows it."""
        self.end_asks()
        return b"".join(data for _, data in self.unanswered()) + self.after_welcome()

    def unanswered(self) -> list[tuple[Reply, bytes]]:
        """The requests without an answer, as they were first sent, in order."""
        return [opened for _, opened in sorted(self._open.items())]

    def renew(self, reply: Reply) -> bytes:
        """The frame of a request that has never left, with what is known now.

        ``after`` says what its client knew when it was first sent. A number from long ago would let
        a request that is sent for the first time pass for one whose receipt was swept.
        """
        data = self._open[reply.number][1]
        message = msgspec.structs.replace(
            _decode_own.decode(data[HEADER_BYTES:]), after=self._commit_no
        )
        data = frame(message)
        self._open[reply.number] = (reply, data)
        return data

    def end_asks(self) -> None:
        """Asks end with their connection."""
        for ask in list(self._asks.values()):
            ask.error = ConnectionResetError("the connection was lost")
            ask.done = True
        self._asks.clear()

    def after_welcome(self) -> bytes:
        """What goes out behind everything that is sent again."""
        return self._after_welcome(self)

    def encode(self, operation: Operation[Any]) -> bytes | None:
        """The bytes of an operation; ``None`` if it must be staged (see :meth:`stages`).

        Raises :class:`ValueTooLarge` for one that no actor takes.
        """
        encoded = _encode(operation)
        if len(encoded) > limits.STAGED_MAX_BYTES:
            raise ValueTooLarge(
                f"an operation may have {limits.STAGED_MAX_BYTES} bytes, and this one has"
                f" {len(encoded)}; send several smaller ones"
            )
        return encoded if len(encoded) <= 2 * limits.STAGE_PART_BYTES else None

    def stages(self, operation: Operation[Any]) -> list[bytes]:
        """The operations, in order, that bring a large operation in parts; the last applies it."""
        encoded, size = _encode(operation), limits.STAGE_PART_BYTES
        key = next(self._stage_keys)
        parts = [encoded[start : start + size] for start in range(0, len(encoded), size)]
        steps = [_encode(StagePart(key=key, part=n, data=part)) for n, part in enumerate(parts)]
        return [*steps, _encode(Staged(key=key, parts=len(parts)))]

    def request(
        self, operation: bytes, timeout: float, reply: Reply | None = None
    ) -> tuple[Reply, bytes]:
        """Number an encoded operation. Returns where its answer will be, and what to send."""
        reply = reply or Reply()
        number = reply.number = next(self._numbers)
        data = frame(
            wire.Request(
                seq=number,
                operation=msgspec.Raw(operation),
                after=self._commit_no,
                acked_through=self._acked_before(number),
                timeout=timeout,
            )
        )
        self._open[number] = (reply, data)
        return reply, data

    def reserve(self, taken: list[int] | None = None) -> int:
        """Take a number for the commit of a lease, before anything that comes after it.

        It is noted in *taken* first: whatever is raised, its caller can give it back.
        """
        number = next(self._numbers)
        if taken is not None:
            taken.append(number)
        self._reserved.add(number)
        return number

    def commit_lease(self, number: int, reply: Reply | None = None) -> tuple[Reply, bytes]:
        """The commit of a lease, under the number that was reserved for it."""
        reply = reply or Reply()
        reply.number = number
        message = wire.LeaseCommit(
            seq=number,
            lease=number,
            after=self._commit_no,
            acked_through=self._acked_before(number),
        )
        data = frame(message)
        self._open[number] = (reply, data)
        return reply, data

    def unreserve(self, number: int) -> None:
        """The lease ended without a commit, or its commit is answered."""
        self._reserved.discard(number)

    def _acked_before(self, number: int) -> int:
        """The number up to which no answer is awaited, for a message with *number*."""
        # Requests are opened in the order of their numbers; only commits of leases come late.
        first = next(iter(self._open), number)
        return (min(first, number, *self._reserved) if self._reserved else first) - 1

    def ask(self, make: Any, reply: Reply | None = None) -> tuple[Reply, bytes]:
        """An ask: ``make(number)`` gives its message."""
        reply = reply or Reply()
        reply.number = next(self._ask_numbers)
        data = frame(make(reply.number))
        self._asks[reply.number] = reply
        return reply, data

    def give_up(self, reply: Reply) -> None:
        """Nobody waits for this answer any more; it is not sent again."""
        self._open.pop(reply.number, None)
        self._reserved.discard(reply.number)
        self._asks.pop(reply.number, None)

    def receive(self, data: bytes) -> list[Reply]:
        """Take bytes of the actor; the answers that are now complete.

        Raises :class:`FrameError` for bytes that are not of this protocol, and the typed error of
        a Reject.
        """
        buffer = self._buffer
        if not buffer and len(data) == HEADER_BYTES + int.from_bytes(data[:HEADER_BYTES], "big"):
            # One whole frame, as nearly always when one thread writes.
            reply = self._message(decode_server(data[HEADER_BYTES:]))
            return [] if reply is None else [reply]
        finished = []
        buffer.feed(data)
        while (body := buffer.next_body()) is not None:
            reply = self._message(decode_server(body))
            if reply is not None:
                finished.append(reply)
        return finished

    def _message(self, message: wire.ServerMessage) -> Reply | None:
        if isinstance(message, wire.Ok | wire.Failed) and message.seq > 0:
            opened = self._open.get(message.seq)
            if opened is None:
                return None
            reply = opened[0]
            if isinstance(message, wire.Ok):
                self._commit_no = max(self._commit_no, message.commit_no)
                reply.commit_no, reply.result = message.commit_no, bytes(message.result)
            else:
                reply.error = error_from(message)
            reply.done = True
            self._open.pop(message.seq, None)
            self._reserved.discard(message.seq)
            return reply
        if isinstance(message, wire.Done | wire.StatusReply | wire.Failed):
            number = message.seq if isinstance(message, wire.Failed) else message.ask
            asked = self._asks.get(number)
            if asked is None:
                return None
            if isinstance(message, wire.Failed):
                asked.error = error_from(message)
            elif isinstance(message, wire.StatusReply):
                asked.result = message.status.encode()
            else:
                asked.result = bytes(message.result)
            asked.done = True
            self._asks.pop(number, None)
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
