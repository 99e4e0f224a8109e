"""The socket of an actor: made under the owner lock, reachable however long its path is."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.paths import address_of, socket_of

if TYPE_CHECKING:
    from hermes_actor.paths import Place

__all__ = ["bind", "remove_socket"]


def bind(place: Place) -> socket.socket:
    """Listen. The caller holds the owner lock, so a socket file that exists is stale."""
    remove_socket(place)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    mask = os.umask(0o177)
    try:
        with address_of(place) as address:
            listener.bind(address)
    finally:
        os.umask(mask)
    listener.listen(limits.LISTEN_BACKLOG)
    return listener


def remove_socket(place: Place) -> None:
    """Remove our socket file. Under the owner lock it is ours."""
    socket_of(place).unlink(missing_ok=True)
