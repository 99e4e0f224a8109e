"""A listener that a service manager has made and passes on (``LISTEN_FDS``).

Then the path is the manager's: it listens there also while no actor runs, and starts one for the
first client that connects. Neither we nor a successor of ours ever unlink such a path. A manager
that begins to listen binds over the socket of an actor that runs already; that one must leave.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.actor.replies import reject
from hermes_actor.paths import socket_address, socket_path

if TYPE_CHECKING:
    from hermes_actor.actor.server import Server
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.paths import StorePaths

__all__ = [
    "keep_if_reachable",
    "leave_if_replaced",
    "passed_listener",
    "path_is_kept",
    "socket_id",
    "turn_away",
]

_FIRST_DESCRIPTOR = 3

_KEPT = "_HERMES_ACTOR_KEEP_SOCKET"
"""Set in our own environment, and so in that of our successors, when the path is the manager's."""

_HELLO_SECONDS = 0.1

_log = logging.getLogger("hermes_actor.actor")


def passed_listener() -> socket.socket | None:
    """The listener that a manager has passed to this process, and to no other.

    The variables that tell of it are removed. What is not one listening Unix socket is not used,
    with a warning: we can make our own.
    """
    os.environ.pop(_KEPT, None)
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return None
    try:
        for descriptor in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)):
            os.set_inheritable(descriptor, False)
        if count != "1":
            raise OSError("there must be one")
        listener = socket.socket(fileno=_FIRST_DESCRIPTOR)
    except OSError as error:
        _log.warning("the service manager has passed %s sockets: %s", count, error)
        return None
    is_stream = (listener.family, listener.type) == (socket.AF_UNIX, socket.SOCK_STREAM)
    if is_stream and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.setblocking(False)
        return listener
    _log.warning("the service manager has passed a socket that is no Unix listener: %s", listener)
    listener.close()
    return None


def keep_if_reachable(listener: socket.socket | None, paths: StorePaths) -> socket.socket | None:
    """*listener* if clients of *place* reach it, else ``None``. The caller holds the owner lock.

    Its file may have been removed or replaced, and then nobody would ever find us. Under the owner
    lock, whoever listens at the path is this one.
    """
    if listener is None:
        return None
    try:
        with socket_address(paths) as address, socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            probe.connect(address)
    except BlockingIOError:
        pass  # so many clients wait already
    except OSError as error:
        _log.warning("nobody reaches the service manager's socket at %s: %s", paths.sock, error)
        listener.close()
        return None
    os.environ[_KEPT] = "1"
    return listener


def path_is_kept() -> bool:
    """Whether the path of our socket is the manager's."""
    return _KEPT in os.environ


def turn_away(listener: socket.socket, error: BaseException) -> None:
    """Tell everybody who waits at *listener* why nobody serves. Never waits for long."""
    with contextlib.suppress(OSError):
        while True:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(OSError):
                # What is not read would reach the client as a lost connection.
                sock.settimeout(_HELLO_SECONDS)
                sock.recv(limits.RECEIVE_BYTES)
                sock.sendall(reject(error))


def socket_id(paths: StorePaths) -> tuple[int, int] | None:
    """Which socket file lies at the path; ``None``: none. A socket that is open keeps its own."""
    try:
        found = socket_path(paths).lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


async def leave_if_replaced(
    server: Server, lock: OwnerLock, at_path: tuple[int, int] | None
) -> float:
    """Drain when our socket is no longer at its path: nobody new finds us there.

    If the lock file has gone with it, that is for the writer to judge (R3).
    """
    with contextlib.suppress(OSError):
        held, found = os.fstat(lock.fileno()), server.paths.owner_lock.stat()
        if os.path.samestat(held, found) and socket_id(server.paths) != at_path:
            server.drain("its socket was replaced")
    return limits.HOME_CHECK_SECONDS
