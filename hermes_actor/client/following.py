"""The follower's half of a subscription, without any input or output.

It remembers the last change it has seen, so that a new connection, to the same actor or to the
next one, goes on behind it: no change twice, none left out without a :class:`Gap` that says so.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TypeAlias

import hermes_protocol.messages as wire
from hermes_actor._version import __version__
from hermes_actor.client.core import rejection
from hermes_protocol.framing import FrameBuffer, FrameError, decode_server, frame
from hermes_protocol.messages import Changed, Gap

__all__ = ["Change", "Follower"]

Change: TypeAlias = Changed | Gap


class Follower:
    """What has changed since ``commit_no`` *after*, or since the first Welcome."""

    def __init__(self, name: str = "", after: int | None = None) -> None:
        self.client_id = os.urandom(16)
        self.welcome: wire.Welcome | None = None
        self.phase = ""
        self._name = name
        self._after = after
        self._known: wire.Welcome | None = None
        self._news: deque[Change] = deque()
        self._buffer = FrameBuffer(1 << 30)

    def hello(self) -> bytes:
        """The first bytes of a new connection."""
        self.welcome, self.phase = None, ""
        self._buffer = FrameBuffer(1 << 30)
        return frame(
            wire.Hello(
                client_id=self.client_id, name=self._name, pid=os.getpid(), build=__version__
            )
        )

    def resend(self) -> bytes:
        """After Welcome: ask for what came after the last change seen."""
        return frame(wire.Subscribe(after=self._after))

    def receive(self, data: bytes) -> None:
        """Take bytes of the actor.

        Raises :class:`FrameError` for bytes that are not of this protocol, and the typed error of
        a Reject.
        """
        self._buffer.feed(data)
        while (body := self._buffer.next_body()) is not None:
            self._message(decode_server(body))

    def next_change(self) -> Change | None:
        """The next change that has arrived and was not taken yet."""
        return self._news.popleft() if self._news else None

    def forked(self) -> Follower:
        """The same place under another name: a child must not use its parent's."""
        twin = Follower(self._name, self._after)
        twin._known = self._known
        twin._news = self._news.copy()
        return twin

    def _message(self, message: wire.ServerMessage) -> None:
        if isinstance(message, Changed):
            self._changed(message)
        elif isinstance(message, Gap):
            self._after = message.through
            self._news.append(message)
        elif isinstance(message, wire.Welcome):
            if message.ready:
                self._welcomed(message)
        elif isinstance(message, wire.Reject):
            raise rejection(message)
        elif not isinstance(message, wire.GoAway):
            raise FrameError(f"unexpected {type(message).__name__}")

    def _changed(self, change: Changed) -> None:
        number, after = change.commit_no, self._after
        if number is not None and after is not None:
            if number <= after:
                return
            if number > after + 1:
                self._news.append(Gap(after=after, through=number - 1))
        self._after = number or after
        self._news.append(change)

    def _welcomed(self, welcome: wire.Welcome) -> None:
        self.phase = welcome.phase
        if not welcome.ready:
            return
        known, self._known = self._known, welcome
        self.welcome = welcome
        if self._after is None:
            # From here on, and not from the actor's next change: it may be replaced before that.
            self._after = welcome.commit_no
        elif known is not None and _replaced(known, welcome):
            # The numbers of another file, or of an older copy, say nothing about ours.
            self._news.append(Gap(after=self._after, through=welcome.commit_no))
            self._after = welcome.commit_no


def _replaced(known: wire.Welcome, now: wire.Welcome) -> bool:
    return now.file_id != known.file_id or now.epoch < known.epoch
