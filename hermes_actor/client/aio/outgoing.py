"""What goes to the actor and has not left yet."""

from __future__ import annotations

import socket
from collections import deque
from itertools import islice

__all__ = ["Outgoing"]

_BUFFERS = 64
"""Frames in one call of the kernel, which takes at most 1024."""


class Outgoing:
    """Frames in their order. Knows of each number whether any byte of it may have left."""

    def __init__(self) -> None:
        self._frames: deque[tuple[int, memoryview]] = deque()
        self._fresh: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._frames)

    def number(self, number: int) -> None:
        """A new number: nothing of it has left."""
        self._fresh.add(number)

    def put(self, number: int, data: bytes) -> None:
        if data:
            self._frames.append((number, memoryview(data)))

    def begin(self, data: bytes) -> None:
        """On a new connection *data*, everything unanswered, goes first."""
        self._frames.clear()
        self._fresh.clear()
        self.put(0, data)

    def clear(self) -> None:
        """The connection is lost, and with it what was half sent."""
        self._frames.clear()

    def take_back(self, number: int) -> bool:
        """Drop a frame of which no byte has left; false if it may have."""
        if number not in self._fresh:
            return False
        self._fresh.discard(number)
        self._frames = deque(entry for entry in self._frames if entry[0] != number)
        return True

    def send(self, sock: socket.socket) -> None:
        """Give the kernel what it takes now. Raises ``OSError`` when the connection is lost."""
        while self._frames:
            try:
                sent = sock.sendmsg([data for _, data in islice(self._frames, _BUFFERS)])
            except BlockingIOError:
                return
            while sent:
                number, data = self._frames.popleft()
                self._fresh.discard(number)
                if sent < len(data):
                    self._frames.appendleft((number, data[sent:]))
                sent -= min(sent, len(data))
