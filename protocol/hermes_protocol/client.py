"""The client's end of a connection: a state machine without input or output.

It numbers requests, keeps each until its reply arrives, and after every reconnection sends all
that have no reply again, in order and with the same numbers. Crash, drain and hand-off of the actor
are one path.

Rule 1: a signal handler may raise at any instruction, so every step leaves the tables consistent. A
number is taken in one step, a reply is complete before its request leaves the table, and what is
acknowledged is derived from what is open.

Rule 2: only a reply, or :meth:`ClientProtocol.abandon`, removes a request.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

import hermes_protocol.messages as wire
from hermes_protocol.decoders import decoder
from hermes_protocol.features import INTERRUPT, LAST_WITH_COMMIT, PLAIN, needed_features
from hermes_protocol.framing import (
    HEADER_BYTES,
    REPLY_MAX_BYTES,
    FrameBuffer,
    FrameError,
    decode_server,
    frame,
)
from hermes_protocol.operations import Staged, StagePart

if TYPE_CHECKING:
    from hermes_protocol.operations import Operation

__all__ = ["ClientProtocol", "PeerError", "PendingReply", "decode_result"]

_DEFAULT_WINDOW = wire.Limits().window

_encode = msgspec.msgpack.Encoder().encode
_own = decoder(wire.Request | wire.LeaseCommit)


def decode_result(result: bytes, kind: Any) -> Any:
    """Decode the result of a reply as *kind*, the result type of its operation."""
    return decoder(kind).decode(result)


class PeerError(Exception):
    """A Failed or Reject of the actor, for users that bring no error classes of their own."""

    def __init__(self, message: wire.Failed | wire.Reject) -> None:
        super().__init__(f"{message.code}: {message.message}")
        self.message = message


class PendingReply:
    """The reply to one request or ask, filled in when it arrives.

    ``done`` is set last, so a thread that sees it set sees the rest as well. ``left`` is true once
    a byte of the request may have left for an actor. ``deadline`` is when the caller stops waiting.
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
        """Return True if the reply has arrived, or the ask has failed. Safe in any thread."""
        return self.done


class ClientProtocol:
    """Numbers, window and resending of one client. Not thread-safe: its user serialises all calls.

    *error_from* turns the actor's Failed and Reject into the exceptions that callers get.
    *after_welcome* returns what is sent behind everything that is sent again.
    """

    def __init__(
        self,
        name: str = "",
        *,
        build: str = "",
        kind: str = PLAIN,
        error_from: Callable[[wire.Failed | wire.Reject], Exception] = PeerError,
        after_welcome: Callable[[ClientProtocol], bytes] = lambda _protocol: b"",
    ) -> None:
        # Random, so that no registry is needed: receipts are kept under it, and an id that came
        # twice would answer one client with the results of another.
        self.client_id = os.urandom(16)
        self.welcome: wire.Welcome | None = None
        self.phase = ""
        self.going_away = False
        self._name = name
        self._build = build
        self.kind = kind
        """The kind whose operations are used; of a file that does not exist yet, what it becomes.

        Whatever runs on a plain file runs on any other, so ``plain`` needs nothing."""
        self._error_from = error_from
        self._after_welcome = after_welcome
        self._numbers = count(1)
        self._ask_numbers = count(-1, -1)
        self._stage_keys = count(1)
        self._commit_no = 0
        self._open: dict[int, tuple[PendingReply, bytes]] = {}
        # Numbers of leases, until their commit is answered or they end without one.
        self._reserved: set[int] = set()
        self._asks: dict[int, PendingReply] = {}
        self._buffer = FrameBuffer(REPLY_MAX_BYTES)

    @property
    def in_flight(self) -> int:
        """Requests without a reply."""
        return len(self._open)

    @property
    def is_idle(self) -> bool:
        """True if nothing waits for a reply and no lease is open."""
        return not (self._open or self._asks or self._reserved)

    @property
    def has_room(self) -> bool:
        """True if the window of the actor has room for one more request."""
        window = self.welcome.limits.window if self.welcome else _DEFAULT_WINDOW
        # One place stays free: the commit of a lease must pass what waits behind the lease.
        return len(self._open) < window - 1

    # --- a new connection ------------------------------------------------------------------------

    def hello(self) -> bytes:
        """Return the first bytes of a new connection. Forgets the Welcome of the last one."""
        self.welcome, self.phase, self.going_away = None, "", False
        # Half a frame of the old connection must not be completed by bytes of the new one.
        self._buffer = FrameBuffer(REPLY_MAX_BYTES)
        return frame(
            wire.Hello(
                client_id=self.client_id,
                name=self._name,
                pid=os.getpid(),
                build=self._build,
                features=needed_features(self.kind),
            )
        )

    def resend(self) -> bytes:
        """Return what follows Welcome: all requests without a reply, then :meth:`after_welcome`."""
        self.end_asks()
        return b"".join(data for _, data in self.unanswered()) + self.after_welcome()

    def unanswered(self) -> list[tuple[PendingReply, bytes]]:
        """Return the requests without a reply, as they were first sent, in order."""
        # Sorted: the commit of a lease is opened late, under a number that was taken early.
        return [pending for _, pending in sorted(self._open.items())]

    def renew(self, reply: PendingReply) -> bytes:
        """Encode a request that has never left once more, with the current ``commit_no``.

        ``after`` says what the client knew when the request was first sent. With an old number, a
        request that is sent for the first time would pass for one whose receipt was swept.
        """
        data = self._open[reply.number][1]
        message = msgspec.structs.replace(_own.decode(data[HEADER_BYTES:]), after=self._commit_no)
        return self._register(reply, message)

    def end_asks(self) -> None:
        """Fail all asks: they end with their connection and are never sent again."""
        for ask in list(self._asks.values()):
            ask.error = ConnectionResetError("the connection was lost")
            ask.done = True
        self._asks.clear()

    def after_welcome(self) -> bytes:
        """Return what is sent behind everything that is sent again."""
        return self._after_welcome(self)

    # --- sending ---------------------------------------------------------------------------------

    def stages(self, operation: Operation[Any], part_bytes: int) -> list[bytes]:
        """Split a large operation into encoded ones of *part_bytes*; the last one applies it."""
        encoded, key = _encode(operation), next(self._stage_keys)
        starts = range(0, len(encoded), part_bytes)
        parts = [encoded[start : start + part_bytes] for start in starts]
        steps = [_encode(StagePart(key=key, part=n, data=part)) for n, part in enumerate(parts)]
        return [*steps, _encode(Staged(key=key, parts=len(parts)))]

    def request(
        self, operation: bytes, timeout: float, reply: PendingReply | None = None
    ) -> tuple[PendingReply, bytes]:
        """Number an encoded operation. Returns its pending reply and the bytes to send."""
        reply = reply or PendingReply()
        # Taken before the message is made: a number that is lost to an exception leaves a gap,
        # which is allowed; one that is used twice would be refused.
        number = reply.number = next(self._numbers)
        message = wire.Request(
            seq=number,
            operation=msgspec.Raw(operation),
            after=self._commit_no,
            acked_through=self._acked_before(number),
            timeout=timeout,
        )
        return reply, self._register(reply, message)

    def reserve(self, taken: list[int] | None = None) -> int:
        """Take a number for the commit of a lease, before any request that comes after it.

        It is appended to *taken* first: whatever is raised, the caller can give it back.
        """
        number = next(self._numbers)
        if taken is not None:
            taken.append(number)
        self._reserved.add(number)
        return number

    def commit_lease(
        self, number: int, reply: PendingReply | None = None, last: bytes | None = None
    ) -> tuple[PendingReply, bytes]:
        """Return the commit of a lease, under the number that was reserved for it.

        *last* is an encoded run that goes with it, where :attr:`takes_last`.
        """
        reply = reply or PendingReply()
        reply.number = number
        message = wire.LeaseCommit(
            seq=number,
            lease=number,
            after=self._commit_no,
            acked_through=self._acked_before(number),
            last=wire.NIL if last is None else msgspec.Raw(last),
        )
        return reply, self._register(reply, message)

    @property
    def takes_last(self) -> bool:
        """True if the actor runs what comes with the commit of a lease."""
        return self.welcome is not None and LAST_WITH_COMMIT in self.welcome.features

    def interrupt(self, number: int) -> bytes:
        """Return what ends the statement of request or ask *number*; nothing for an actor that does
        not know it."""
        if self.welcome is None or INTERRUPT not in self.welcome.features:
            return b""
        return frame(wire.Interrupt(number=number))

    def unreserve(self, number: int) -> None:
        """Give back the number of a lease that ended without a commit, or is committed."""
        self._reserved.discard(number)

    def ask(
        self, make: Callable[[int], msgspec.Struct], reply: PendingReply | None = None
    ) -> tuple[PendingReply, bytes]:
        """Number an ask; ``make(number)`` returns its message."""
        reply = reply or PendingReply()
        reply.number = next(self._ask_numbers)
        # Encoded before it is noted: a message that cannot be encoded leaves nothing to wait for.
        data = frame(make(reply.number))
        self._asks[reply.number] = reply
        return reply, data

    def abandon(self, reply: PendingReply) -> None:
        """Forget a request or an ask: no caller waits for it, and it is not sent again."""
        self._open.pop(reply.number, None)
        self._reserved.discard(reply.number)
        self._asks.pop(reply.number, None)

    def _register(self, reply: PendingReply, message: wire.Request | wire.LeaseCommit) -> bytes:
        data = frame(message)
        self._open[reply.number] = (reply, data)
        return data

    def _acked_before(self, number: int) -> int:
        """Return the highest number below *number* up to which no reply is awaited."""
        # Requests are opened in the order of their numbers; only commits of leases come late.
        first = next(iter(self._open), number)
        return (min(first, number, *self._reserved) if self._reserved else first) - 1

    # --- receiving -------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[PendingReply]:
        """Take bytes of the actor; return the replies that are now complete.

        Raises :class:`FrameError` for bytes that are not of this protocol, and the error of a
        Reject.
        """
        buffer = self._buffer
        if not buffer and len(data) == HEADER_BYTES + int.from_bytes(data[:HEADER_BYTES], "big"):
            # One whole frame, as nearly always when one thread writes: no copy into the buffer.
            reply = self._message(decode_server(data[HEADER_BYTES:]))
            return [] if reply is None else [reply]
        finished = []
        buffer.feed(data)
        while (body := buffer.next_body()) is not None:
            reply = self._message(decode_server(body))
            if reply is not None:
                finished.append(reply)
        return finished

    def _message(self, message: wire.ServerMessage) -> PendingReply | None:
        if isinstance(message, wire.Ok | wire.Failed) and message.seq > 0:
            pending = self._open.get(message.seq)
            # Its caller has given it up, and the answer comes late.
            if pending is None:
                return None
            reply = pending[0]
            if isinstance(message, wire.Ok):
                # Never lower: maintenance is answered with 0, and replies to repeated requests have
                # old numbers.
                self._commit_no = max(self._commit_no, message.commit_no)
                # A copy: the Raw is a view that would keep the whole frame in memory.
                reply.commit_no, reply.result = message.commit_no, bytes(message.result)
            else:
                reply.error = self._error_from(message)
            # Before it leaves the table: an exception in between leaves an answered request, which
            # is harmless, and never a request that waits for ever.
            reply.done = True
            self._open.pop(message.seq, None)
            self._reserved.discard(message.seq)
            return reply
        if isinstance(message, wire.Done | wire.StatusReply | wire.Failed):
            return self._answer_ask(message)
        if isinstance(message, wire.Welcome):
            self.phase = message.phase
            if not message.ready:
                return None
            self.welcome = message
            self._commit_no = max(self._commit_no, message.commit_no)
        elif isinstance(message, wire.Reject):
            raise self._error_from(message)
        elif isinstance(message, wire.GoAway):
            self.going_away = True
        else:
            raise FrameError(f"unexpected {type(message).__name__}")
        return None

    def _answer_ask(
        self, message: wire.Done | wire.StatusReply | wire.Failed
    ) -> PendingReply | None:
        number = message.seq if isinstance(message, wire.Failed) else message.ask
        reply = self._asks.get(number)
        if reply is None:
            return None
        if isinstance(message, wire.Failed):
            reply.error = self._error_from(message)
        elif isinstance(message, wire.StatusReply):
            reply.result = message.status.encode()
        else:
            reply.result = bytes(message.result)
        reply.done = True
        self._asks.pop(number, None)
        return reply
