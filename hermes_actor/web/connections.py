"""Connections of browsers: a request arrives in time, and idle ones make room for others.

A program that reaches the port can hold connections open without the token. So a request has ten
seconds from its first byte to its last, a new connection as long for its first request; and when
there are too many, the one that has waited longest without a request goes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["MOST_CONNECTIONS", "TimedProtocol"]

MOST_CONNECTIONS = 256
"""Connections at one time, those of live pages included."""

_REQUEST_SECONDS = 10.0
"""Longest time in which a request arrives: its body has 64 KiB at most."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 on one connection."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection, in place of an idle one if there are too many."""
        super().connection_made(transport)
        self._late = self.loop.call_later(_REQUEST_SECONDS, transport.close)
        there = [one for one in self.connections if not one.transport.is_closing()]
        if len(there) > MOST_CONNECTIONS:
            idle = [one for one in there if isinstance(one, TimedProtocol) and one._is_idle]
            # The timer that ends first is that of the oldest; without any, this one is idle.
            min(idle, key=_end).transport.close()

    @property
    def _is_idle(self) -> bool:
        """True if there was no whole request yet."""
        cycle: Any = self.cycle  # None before the first request, whatever its type says
        return cycle is None and self._late is not None

    def data_received(self, data: bytes) -> None:
        """Take bytes; the time runs from the first one of a request to its last."""
        super().data_received(data)
        # The states of h11 by their names: it is a package of uvicorn's, and no dependency of ours.
        if repr(self.conn.their_state) in ("IDLE", "SEND_BODY"):
            if self._late is None:
                self._late = self.loop.call_later(_REQUEST_SECONDS, self.transport.close)
        else:
            self._in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection that has ended."""
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            late.cancel()


def _end(connection: TimedProtocol) -> float:
    assert connection._late is not None
    return connection._late.when()
