"""The subscriber's end of a connection: a state machine without input or output.

It remembers the last change it has seen, so that a new connection, to the same actor or to the
next one, continues behind it: no change twice, and none missing without a :class:`Gap` for it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import hermes_protocol.messages as wire
from hermes_protocol.client import PeerError
from hermes_protocol.features import PLAIN, needed_features
from hermes_protocol.framing import (
    REPLY_MAX_BYTES,
    FrameBuffer,
    FrameError,
    decode_server,
    frame,
)
from hermes_protocol.messages import Changed, Gap

__all__ = ["Change", "SubscriptionProtocol"]

Change: TypeAlias = Changed | Gap


class SubscriptionProtocol:
    """The changes after ``commit_no`` *after*, or after the first Welcome.

    *error_from* turns the actor's Reject into the exception that the caller gets.
    """

    def __init__(
        self,
        name: str = "",
        after: int | None = None,
        *,
        build: str = "",
        kind: str = PLAIN,
        error_from: Callable[[wire.Reject], Exception] = PeerError,
    ) -> None:
        # An id of its own: under that of a client that writes, it would supersede its connection.
        self.client_id = os.urandom(16)
        self.welcome: wire.Welcome | None = None
        self.phase = ""
        self._name = name
        self._build = build
        self.kind = kind
        """As of :class:`~hermes_protocol.client.ClientProtocol`."""
        self._error_from = error_from
        self._after = after
        self._last_welcome: wire.Welcome | None = None
        self._changes: deque[Change] = deque()
        self._buffer = FrameBuffer(REPLY_MAX_BYTES)

    def hello(self) -> bytes:
        """Return the first bytes of a new connection. Forgets the Welcome of the last one."""
        self.welcome, self.phase = None, ""
        # Changes that were not taken yet stay: they have been seen, and are not sent again.
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
        """Return what follows Welcome: the request for what came after the last change seen."""
        return frame(wire.Subscribe(after=self._after))

    def receive(self, data: bytes) -> None:
        """Take bytes of the actor.

        Raises :class:`FrameError` for bytes that are not of this protocol, and the error of a
        Reject.
        """
        self._buffer.feed(data)
        while (body := self._buffer.next_body()) is not None:
            self._message(decode_server(body))

    def next_change(self) -> Change | None:
        """Return the next change that has arrived and was not taken yet."""
        return self._changes.popleft() if self._changes else None

    def forked(self) -> SubscriptionProtocol:
        """Return a copy at the same position under a new client id, for a child process."""
        # The new id comes from the constructor: parent and child would supersede each other in
        # turn.
        copy = SubscriptionProtocol(
            self._name,
            self._after,
            build=self._build,
            kind=self.kind,
            error_from=self._error_from,
        )
        copy._last_welcome = self._last_welcome
        copy._changes = self._changes.copy()
        return copy

    def _message(self, message: wire.ServerMessage) -> None:
        if isinstance(message, Changed):
            self._changed(message)
        elif isinstance(message, Gap):
            self._after = message.through
            self._changes.append(message)
        elif isinstance(message, wire.Welcome):
            # One that is not ready has no number yet from which to continue.
            if message.ready:
                self._welcomed(message)
        elif isinstance(message, wire.Reject):
            raise self._error_from(message)
        elif not isinstance(message, wire.GoAway):
            raise FrameError(f"unexpected {type(message).__name__}")

    def _changed(self, change: Changed) -> None:
        number, after = change.commit_no, self._after
        if number is not None and after is not None:
            # Seen before the reconnection: each change is delivered once.
            if number <= after:
                return
            # Numbers have no holes, so something is missing: it is never passed over in silence.
            if number > after + 1:
                self._changes.append(Gap(after=after, through=number - 1))
        # A change of a foreign program has no number, and moves nothing.
        self._after = number or after
        self._changes.append(change)

    def _welcomed(self, welcome: wire.Welcome) -> None:
        self.phase = welcome.phase
        last, self._last_welcome = self._last_welcome, welcome
        self.welcome = welcome
        if self._after is None:
            # From here on, and not from the actor's next change: it may be replaced before that.
            self._after = welcome.commit_no
        elif last is not None and _is_replaced(last, welcome):
            # The numbers of another file, or of an older copy, do not continue these.
            self._changes.append(Gap(after=self._after, through=welcome.commit_no))
            self._after = welcome.commit_no


def _is_replaced(last: wire.Welcome, now: wire.Welcome) -> bool:
    # The epoch of one file only grows: a lower one is an older copy of it that was put in its
    # place.
    return now.file_id != last.file_id or now.epoch < last.epoch
