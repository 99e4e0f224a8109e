"""Requests on their way to the actor and answers on their way back, over one socket at a time.

Never waits: the shells, blocking and asynchronous, wait and call. It knows what has left and what
has not, and so which error a caller gets:

* A request of which no byte has ever left can be taken back. It was not executed and never will be.
* Of any other request only a reply says. Given up without one, its outcome is unknown; it is
  not sent again, and of what has not left of it nothing leaves: half a frame ends the connection.

A signal handler may raise between a call of the kernel and the note of what it did. Then the
stream cannot be trusted any more. The mark for that is set before the kernel is called and removed
after the note, so an exception leaves it set, and the next use ends the connection. The next one
sends again what has no answer, and receipts see to it that nothing is applied twice.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from hermes_actor import limits
from hermes_actor.client.connect import silent_actor
from hermes_actor.errors import DeadlineExceeded, HermesActorError, OutcomeUnknown
from hermes_protocol.client import ClientProtocol, PendingReply
from hermes_protocol.framing import FrameError

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["Exchange", "Sending", "actor_timeout"]

_BUFFERS = 64
"""Frames in one call of the kernel, which takes at most 1024."""

_ANSWER_SECONDS = 1.0
"""Of the caller's time at most this, and at most a quarter, is kept for the actor's refusal of
what it could not begin in time: a refusal that arrives is better than an unknown outcome."""


_SENT = "the change was sent; it may have been made, or be made yet"


_LEAST_ANSWER_SECONDS = 0.2
"""A refusal gets at least this long: the actor checks for overdue requests ten times a second.
So a time-out below 0.8 s can take up to 0.2 s longer."""


def actor_timeout(seconds: float) -> float:
    """Return the timeout for the actor from a caller with *seconds* left."""
    return max(0.0, seconds - min(_ANSWER_SECONDS, seconds / 4))


def _reply(deadline: float) -> PendingReply:
    """Return the pending reply of a caller that waits until *deadline*."""
    now = time.monotonic()
    # The caller waits a little longer than the actor may take: the refusal of a request that was
    # not begun in time must be able to arrive.
    return PendingReply(
        now, max(deadline, now + actor_timeout(deadline - now) + _LEAST_ANSWER_SECONDS)
    )


class Sending:
    """One operation of several that are sent together: its steps, or why it was not sent."""

    __slots__ = ("error", "is_whole", "steps")

    def __init__(self) -> None:
        self.steps: list[PendingReply] = []
        self.is_whole = False
        self.error: BaseException | None = None

    def done(self) -> bool:
        """Return True if its answer is there, or if it was not sent."""
        return self.error is not None or all(reply.done for reply in self.steps)


class Exchange:
    """The queue of one client in front of its socket. Not thread-safe: its shell serialises.

    ``frames`` are what the kernel has not taken yet. ``torn``: the stream was left in the middle of
    a frame, so the connection must end.
    """

    def __init__(self, place: StorePaths, protocol: ClientProtocol) -> None:
        self.protocol = protocol
        self.sock: socket.socket | None = None
        self._place = place
        self._pid: int | None = None
        # A frame that has begun to leave is a memoryview of its rest.
        self.frames: deque[tuple[PendingReply, bytes | memoryview]] = deque()
        self.torn = False

    # --- the connection --------------------------------------------------------------------------

    def begin(self, sock: socket.socket) -> None:
        """Use a socket on which the actor has said Welcome.

        Requests without a reply go first, in order. Those past their deadline are abandoned.
        """
        assert self.protocol.welcome is not None
        now, frames = time.monotonic(), deque[tuple[PendingReply, bytes | memoryview]]()
        self.protocol.end_asks()
        for reply, data in self.protocol.unanswered():
            # A late one is not sent: its caller has been given an error that says so.
            if reply.deadline > now:
                frames.append((reply, data if reply.left else self.protocol.renew(reply)))
            else:
                self.protocol.abandon(reply)
        if more := self.protocol.after_welcome():
            frames.append((PendingReply(), more))
        self._pid = self.protocol.welcome.pid
        # Last, and the socket after its frames: whatever is raised above leaves no connection, and
        # the caller closes the socket.
        self.frames, self.torn, self.sock = frames, False, sock

    def end(self) -> socket.socket | None:
        """Forget the connection, and return its socket, to be closed; ``None`` if there is none."""
        sock, self.sock = self.sock, None
        self.frames, self.torn = deque(), False
        return sock

    # --- going out -------------------------------------------------------------------------------

    def request(self, steps: list[PendingReply], operation: bytes, deadline: float) -> None:
        """Number an encoded operation and queue it, as the next of *steps*."""
        reply = _reply(deadline)
        steps.append(reply)  # before it has a number: whatever is raised, its caller can undo it
        _, data = self.protocol.request(operation, actor_timeout(deadline - reply.began), reply)
        self._queue(reply, data)

    def commit_lease(
        self, number: int, deadline: float, sent: list[PendingReply], last: bytes | None
    ) -> None:
        """Queue the commit of a lease, whose reply is appended to *sent* first."""
        sent.append(reply := _reply(deadline))
        _, data = self.protocol.commit_lease(number, reply, last)
        self._queue(reply, data)

    def ask(self, make: Any, deadline: float) -> PendingReply:
        """Queue an ask: ``make(number)`` gives its message."""
        reply, data = self.protocol.ask(make, _reply(deadline))
        self._queue(reply, data)
        return reply

    def interrupt(self, steps: Sequence[PendingReply]) -> None:
        """Queue what ends the statement that one of *steps* has running."""
        for reply in steps:
            if not reply.done and (data := self.protocol.interrupt(reply.number)):
                self._queue(PendingReply(), data)

    def _queue(self, reply: PendingReply, data: bytes) -> None:
        if self.sock is not None:  # else it goes out with the next connection
            self.frames.append((reply, data))

    def has_room(self) -> bool:
        """Return True if one more request may be open. Drops those long past their deadline."""
        if self.protocol.has_room:
            return True
        # Their callers were cancelled or interrupted, and a silent actor would keep the window full
        # of them. Some time after the deadline: a caller that does wait gives up by itself first.
        long_ago = time.monotonic() - _ANSWER_SECONDS
        left = [reply for reply, _ in self.protocol.unanswered() if reply.deadline < long_ago]
        self._take_off(left)
        return bool(left)

    def holds(self, steps: Sequence[PendingReply]) -> bool:
        """Return True if something of *steps* has still to leave."""
        return bool(self.frames) and any(reply in steps for reply, _ in self.frames)

    def send(self) -> None:
        """Give the kernel what it takes now. Raises ``OSError`` when the connection is lost."""
        sock, frames = self._sound(), self.frames
        while frames:
            batch = list(islice(frames, _BUFFERS)) if len(frames) > 1 else [frames[0]]
            fresh = [reply for reply, _ in batch if not reply.left]
            # Both before the kernel is called: an exception in between must find a request that
            # may have left, never one that seems not to have.
            self.torn = True
            for reply in fresh:
                reply.left = True
            try:
                sent = sock.sendmsg([data for _, data in batch])
            except BlockingIOError:
                sent = 0
            except OSError:
                for reply in fresh:
                    reply.left = False  # the kernel takes something, or fails
                raise
            for reply, data in batch:
                if sent >= len(data):
                    frames.popleft()
                elif sent > 0:
                    frames[0] = (reply, memoryview(data)[sent:])
                elif reply in fresh:
                    reply.left = False
                sent -= len(data)
            self.torn = False
            if sent < 0:
                return  # the kernel is full

    # --- coming back -----------------------------------------------------------------------------

    def receive(self) -> list[PendingReply]:
        """Take what the kernel has; the answers that are now complete.

        Raises ``OSError`` when the connection is lost.
        """
        sock = self._sound()
        # Until the bytes are in the protocol: bytes that were read and lost would shift all that
        # follow.
        self.torn = True
        try:
            data = sock.recv(limits.RECEIVE_BYTES)
        except BlockingIOError:
            self.torn = False
            return []
        if not data:
            raise ConnectionResetError("the actor closed the connection")
        try:
            answered = self.protocol.receive(data)
        except (FrameError, HermesActorError) as error:
            raise ConnectionResetError(f"the actor broke off: {error}") from error
        self.torn = False
        return answered

    def _sound(self) -> socket.socket:
        if self.sock is None or self.torn:
            raise ConnectionResetError("the connection was left in the middle of a frame")
        return self.sock

    # --- giving up -------------------------------------------------------------------------------

    def withdraw(self, steps: Sequence[PendingReply]) -> bool:
        """Take back the last of *steps*, from the first on of which nothing has left.

        The others stay until they are answered, or until their time is over; between them nothing
        is missing. True if something was taken back: then the operation is not executed.
        """
        fresh = list(takewhile(lambda reply: not reply.left, reversed(steps)))
        self._take_off(fresh)
        return bool(fresh)

    def break_off(self, sendings: Sequence[Sending], error: BaseException) -> bool:
        """Stop sending several operations half-way because of *error*.

        Those that have not left whole carry the error, and are not executed. True if there are
        others: their answers can be waited for.
        """
        for sending in sendings:
            if self.withdraw(sending.steps) or not sending.is_whole:
                sending.error = error
        return any(sending.error is None for sending in sendings)

    def give_up(
        self, steps: Sequence[PendingReply], cause: HermesActorError | None = None
    ) -> HermesActorError:
        """Stop waiting for the answers to *steps*: the error that says what is known.

        *cause* is why there is no connection. Nothing more of the steps leaves. Afterwards see
        :attr:`torn`.
        """
        self._take_off(steps)
        # Asks, with negative numbers, change nothing; and of a change that goes in parts the last
        # one executes it, so the last one decides.
        is_safe = steps[-1].number < 0 or not steps[-1].left
        if cause is None or isinstance(cause, DeadlineExceeded):
            since = steps[0].began
            return self._silent(since) if is_safe else OutcomeUnknown(self._silence(since, _SENT))
        if is_safe:
            return cause
        return OutcomeUnknown(
            f"the connection to the actor of {self._place.db} was lost after the change was sent;"
            f" it may have been made. Then: {cause}"
        )

    def no_room(self, began: float) -> DeadlineExceeded:
        """Return the error of a caller that has waited since *began* for room in the window."""
        return self._silent(began)

    def _silent(self, since: float) -> DeadlineExceeded:
        return DeadlineExceeded(self._silence(since, "nothing was changed"))

    def _silence(self, since: float, effect: str) -> str:
        return silent_actor(self._place, self._pid, since, effect)

    def _take_off(self, steps: Sequence[PendingReply]) -> None:
        """Forget *steps*, and let nothing more of them leave."""
        for reply in steps:
            self.protocol.abandon(reply)
        if self.holds(steps):
            first, rest = self.frames[0]
            if first in steps and isinstance(rest, memoryview):
                self.torn = True
            self.frames = deque(entry for entry in self.frames if entry[0] not in steps)
