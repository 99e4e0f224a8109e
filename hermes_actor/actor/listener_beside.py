"""A second listener, beside the file, for clients that do not reach the first one."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from hermes_actor import limits
from hermes_actor.actor.listener import SocketFile, bind_beside

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["ListenerBeside"]

Accept = Callable[[socket.socket, trio.Nursery], Awaitable[None]]

_log = logging.getLogger("hermes_actor.actor")


class ListenerBeside:
    """A second listener, beside the file, once a client has asked for it.

    It does not go to a successor, which finds what was left by who asked.
    """

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._file: SocketFile | None = None
        self._listeners: list[socket.socket] = []
        self._changed = trio.Event()

    async def check(self) -> float:
        """Listen, if that was asked for and the socket is not there; return the seconds until the
        next time."""
        is_there = self._file is not None and self._file.is_in_place
        if not is_there and self._paths.sock_wanted.exists():
            self._listeners.append(bind_beside(self._paths))
            self._file = SocketFile(self._paths.sock)
            _log.info("listening at %s as well: a client asks there", self._paths.sock)
            self._changed.set()
        return limits.HOME_CHECK_SECONDS

    async def accept_with(self, accept: Accept, nursery: trio.Nursery) -> None:
        """Accept clients until cancelled, at the last listener."""
        while True:
            self._changed = changed = trio.Event()
            async with trio.open_nursery() as accepting:
                if self._listeners:
                    accepting.start_soon(accept, self._listeners[-1], nursery)
                await changed.wait()
                accepting.cancel_scope.cancel()

    def close(self) -> None:
        """Stop to listen. The file of another listener stays."""
        if self._file is not None:
            self._file.remove()
        for listener in self._listeners:
            listener.close()
