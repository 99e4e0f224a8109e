"""The gate before the mailbox: closed while there is no writer to take requests.

What a client sends meanwhile stays in its connection. It reaches the next writer of this actor, or
the client sends it to the next actor: never both (G2).
"""

from __future__ import annotations

import trio

__all__ = ["Gate"]


class Gate:
    """Open at first. Event loop only."""

    def __init__(self) -> None:
        self.is_open = True
        self._opened = trio.Event()

    def shut(self) -> None:
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self._opened.set()
        self._opened = trio.Event()

    async def passed(self) -> None:
        """Wait until the gate is open."""
        while not self.is_open:
            await self._opened.wait()
