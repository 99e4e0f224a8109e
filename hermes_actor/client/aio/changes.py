"""The changes that an actor tells, for a task; see :mod:`hermes_actor.client.changes`."""

from __future__ import annotations

import os
import socket
import time
import weakref
from typing import TYPE_CHECKING, Self

import anyio

from hermes_actor import limits
from hermes_actor.client.aio.connect import close_socket, reach
from hermes_actor.client.connect import Attempts, program_name
from hermes_actor.client.protocol import subscription_protocol
from hermes_actor.errors import Closed, HermesActorError, SpawnFailed
from hermes_protocol.framing import FrameError

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths
    from hermes_protocol.subscription import Change

__all__ = ["AsyncActorChanges"]


class AsyncActorChanges:
    """Follows one actor, and the next one when it is gone. Get it with :meth:`open`."""

    def __init__(self, paths: StorePaths, after: int | None, timeout: float) -> None:
        self._paths = paths
        self._timeout = timeout
        self._protocol = subscription_protocol(program_name(), after)
        self._sock: socket.socket | None = None
        self._attempts: Attempts | None = None
        self._step: anyio.CancelScope | None = None
        self._closed = False
        _alive.add(self)

    @classmethod
    async def open(cls, paths: StorePaths, after: int | None, timeout: float) -> Self:
        """Connected: from here on no change is missed."""
        changes = cls(paths, after, timeout)
        while changes._sock is None:
            await changes.wait(None)
        return changes

    def take(self) -> Change | None:
        if self._closed:
            raise Closed("this subscription is closed")
        return self._protocol.next_change()

    async def wait(self, seconds: float | None) -> None:
        """One step: read what is there, or try once to connect."""
        with anyio.move_on_after(seconds) as self._step:
            if self._sock is None:
                await self._connect()
            else:
                await self._read(self._sock)

    def close(self) -> None:
        self._closed = True
        if self._step is not None:
            self._step.cancel()
        if self._sock is not None:
            self._lost(self._sock)

    async def _read(self, sock: socket.socket) -> None:
        try:
            await anyio.wait_readable(sock)
            data = sock.recv(limits.RECEIVE_BYTES)
            if data:
                self._protocol.receive(data)
                return
        except BlockingIOError:
            return
        except anyio.ClosedResourceError:
            return
        except (OSError, FrameError):
            pass
        self._lost(sock)

    async def _connect(self) -> None:
        attempts = self._attempts = self._attempts or Attempts(
            self._paths, time.monotonic() + self._timeout
        )
        try:
            self._sock = await reach(self._paths, self._protocol, attempts.deadline)
            self._sock.send(self._protocol.resend())
            self._attempts = None
        except (SpawnFailed, OSError) as error:
            if self._sock is not None:
                self._lost(self._sock)
            # Kept only while there is hope: once the caller was told, timeout begins anew.
            self._attempts = None
            pause = attempts.failed(error)
            self._attempts = attempts
            await anyio.sleep(pause)
        except HermesActorError:
            self._attempts = None
            raise

    def _lost(self, sock: socket.socket) -> None:
        if self._sock is sock:
            self._sock = None
            close_socket(sock)

    def _after_fork(self) -> None:
        """In a child: go on from the same place, on a connection of its own."""
        sock, self._sock, self._step = self._sock, None, None
        self._protocol = self._protocol.forked()
        if sock is not None:
            # Our copy only. The loop is not told: its selector is shared with the parent.
            sock.close()


_alive: weakref.WeakSet[AsyncActorChanges] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    for changes in list(_alive):
        changes._after_fork()


os.register_at_fork(after_in_child=_leave_to_the_parent)
