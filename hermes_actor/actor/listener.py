"""The socket of an actor: created under the owner lock, reachable however long its path is."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.paths import socket_address, socket_path

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["bind", "remove_socket"]


def bind(paths: StorePaths) -> socket.socket:
    """Listen. The caller holds the owner lock, so a socket file that exists is stale.

    The socket appears under its name when it listens: between bind and listen a client would be
    refused, and would take that as proof that no actor serves.
    """
    path = socket_path(paths)
    unborn = path.with_name("sock.new")
    unborn.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    # The socket gets its mode from the mask; a chmod afterwards would leave a time in between. The
    # mask is of the whole process: the writer thread, which creates files, does not run yet.
    mask = os.umask(0o177)
    try:
        with socket_address(paths, unborn.name) as address:
            listener.bind(address)
    finally:
        os.umask(mask)
    listener.listen(limits.LISTEN_BACKLOG)
    # Replaces the stale socket in one step: there is no moment without a file at the path.
    unborn.replace(path)
    return listener


def remove_socket(paths: StorePaths) -> None:
    """Remove the socket file. Under the owner lock it belongs to this actor."""
    socket_path(paths).unlink(missing_ok=True)
