"""A listener that a service manager has created and passes on (``LISTEN_FDS``).

Then the path belongs to the manager: it listens there also while no actor runs, and starts one for
the first client that connects. Neither the actor nor its successors ever unlink such a path. A
manager that begins to listen binds over the socket of an actor that runs already; that one drains.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.actor.listener import (
    SocketFile,
    is_recorded_elsewhere,
    place_of,
    record_place,
)
from hermes_actor.actor.replies import reject
from hermes_actor.system.sockets import connect_to

if TYPE_CHECKING:
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.paths import StorePaths

__all__ = [
    "verify_listener",
    "drain_if_socket_replaced",
    "passed_listener",
    "path_is_kept",
    "reject_pending",
]

_FIRST_DESCRIPTOR = 3

_KEPT = "_HERMES_ACTOR_KEEP_SOCKET"
"""Set in the environment of this process, and so in that of its successors, when the path belongs
to the manager."""

_HELLO_SECONDS = 0.1

_log = logging.getLogger("hermes_actor.actor")


def passed_listener() -> socket.socket | None:
    """Return the listener that a manager has passed to this process, and to no other.

    Removes the variables that name it. Anything but one listening Unix socket is not used, with a
    warning: the actor can create its own.
    """
    # It may be left over from the process that started this one. Only a successor may believe it,
    # and a successor does not come this way.
    os.environ.pop(_KEPT, None)
    # Removed: in a child the numbers would name other files.
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return None
    try:
        for descriptor in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(count)):
            os.set_inheritable(descriptor, False)
        # All of them were marked first: whichever is used, no successor inherits one by accident.
        if count != "1":
            raise OSError("there must be one")
        listener = socket.socket(fileno=_FIRST_DESCRIPTOR)
    except OSError as error:
        _log.warning("the service manager has passed %s sockets: %s", count, error)
        return None
    is_stream = (listener.family, listener.type) == (socket.AF_UNIX, socket.SOCK_STREAM)
    # With Accept=yes in its unit, systemd passes the connection of one client instead.
    if is_stream and listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.setblocking(False)
        return listener
    _log.warning("the service manager has passed a socket that is no Unix listener: %s", listener)
    listener.close()
    return None


def verify_listener(listener: socket.socket | None, paths: StorePaths) -> socket.socket | None:
    """Return *listener* if clients of *paths* reach it, else ``None``. The caller holds the owner
    lock.

    Its file may have been removed or replaced, and then no client would ever find this actor. Under
    the owner lock, a process that listens at the path can only be this one.
    """
    if listener is None:
        return None
    try:
        # By connecting, not by comparing inodes: the file of a socket and its listener have
        # different ones. The probe ends at once; the actor will accept it and find it closed.
        connect_to(place_of(listener, paths)).close()
    except BlockingIOError:
        pass  # so many clients wait already
    except OSError as error:
        _log.warning(
            "no client reaches the service manager's socket at %s: %s; the actor creates its own",
            place_of(listener, paths),
            error,
        )
        listener.close()
        return None
    os.environ[_KEPT] = "1"
    return listener


def path_is_kept() -> bool:
    """Return True if the path of the socket belongs to the manager."""
    return _KEPT in os.environ


def reject_pending(listener: socket.socket, error: BaseException) -> None:
    """Reject the clients that wait at *listener* with *error*. Never waits for long."""
    # The listener does not block: without clients accept() raises, which ends the loop.
    with contextlib.suppress(OSError):
        while True:
            sock, _ = listener.accept()
            with sock, contextlib.suppress(OSError):
                # What is not read would reach the client as a lost connection.
                sock.settimeout(_HELLO_SECONDS)
                sock.recv(limits.RECEIVE_BYTES)
                sock.sendall(reject(error))


async def drain_if_socket_replaced(
    paths: StorePaths, lock: OwnerLock, file: SocketFile, drain: Callable[[str], None]
) -> float:
    """Drain when the actor's socket is no longer where clients look: new ones would not find it.

    If the lock file is gone as well, the writer decides (R3).
    """
    with contextlib.suppress(OSError):
        held, found = os.fstat(lock.fileno()), paths.owner_lock.stat()
        # The lock file first: while it is in place, the home is, and only the socket was replaced.
        if os.path.samestat(held, found):
            if not file.is_in_place or is_recorded_elsewhere(paths, file.place):
                drain("its socket was replaced")
            else:
                record_place(paths, file.place)  # the record alone may have been removed
    return limits.HOME_CHECK_SECONDS
