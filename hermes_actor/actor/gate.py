"""Between what clients send and the mailbox: shut while no writer is there to take anything.

What a client sends meanwhile stays with it. It reaches the next writer of this actor, or the client
sends it to the next actor: never both (G2).
"""

from __future__ import annotations

import trio

__all__ = ["Gate"]


class Gate:
    """Lives in the event loop. Open at first."""

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
