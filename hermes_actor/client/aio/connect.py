"""Reaching the actor from an event loop; see :mod:`hermes_actor.client.connect`."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from hermes_actor import limits
from hermes_actor.client.connect import (
    MIN_WELCOME_SECONDS,
    Handshake,
    connect_once,
    ensure_actor_running,
    feed_handshake,
    is_not_listening,
)

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["close_socket", "handshake"]


async def handshake(paths: StorePaths, protocol: Handshake, deadline: float) -> socket.socket:
    """Try once: return a non-blocking connection on which the actor has said Welcome.

    Connecting to a local socket does not wait. Starting an actor does, in a worker thread; when
    the caller is cancelled that thread is left alone, and what it has started serves the next.
    """
    try:
        sock = connect_once(paths)
    except OSError as error:
        if not is_not_listening(error):
            raise
        await anyio.to_thread.run_sync(
            ensure_actor_running,
            paths,
            deadline,
            protocol.kind,
            abandon_on_cancel=True,
            # Of its own: a start may take half a minute, and the shared limiter of worker threads
            # belongs to the program.
            limiter=anyio.CapacityLimiter(1),
        )
        sock = connect_once(paths)
    try:
        # The buffer of a new socket is larger than a Hello.
        sock.send(protocol.hello())
        while protocol.welcome is None:
            left = max(deadline - time.monotonic(), MIN_WELCOME_SECONDS)
            with anyio.fail_after(left):
                await anyio.wait_readable(sock)
            feed_handshake(protocol, sock.recv(limits.RECEIVE_BYTES))
    except BaseException:
        sock.close()
        raise
    return sock


def close_socket(sock: socket.socket) -> None:
    """Close a socket that another task may wait for; that task is woken."""
    # Before the close: the number may be another file the next moment, and the loop would wait for
    # that one.
    anyio.notify_closing(sock)
    sock.close()
