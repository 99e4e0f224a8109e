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
        """Admit nothing after this; messages that need a writer wait in their connections."""
        self.is_open = False

    def open(self) -> None:
        """Let messages pass again, those first that wait."""
        self.is_open = True
        self._opened.set()
        self._opened = trio.Event()

    async def passed(self) -> None:
        """Wait until the gate is open."""
        # Checked again: it may be shut once more before a task that was woken runs.
        while not self.is_open:
            await self._opened.wait()
