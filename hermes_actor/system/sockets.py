"""The place of the socket of an actor: outside of the home, and how clients find it.

A socket in the home would get in the way of programs that copy the home as a folder. So it is in a
folder of this user that ends with the login or with the machine. Not every program that sees the
file sees that folder, or would look for it in the same place: the environment may say otherwise, a
service may have temporary files of its own, a container its own everything. So the owner writes
down beside the file where it listens, and one that is not reached there is asked to listen beside
the file as well, where earlier builds do.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hermes_actor.errors import PermissionDenied

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.paths import StorePaths

__all__ = ["connect_to", "fits", "reach", "record_text", "recorded_socket"]

_MAX_PATH_BYTES = 100
"""The kernel allows a few more; macOS has 104."""

_RECORD_MAX_BYTES = 8192

_DESCRIPTORS = "/proc/self/fd"


def recorded_socket(paths: StorePaths) -> Path | None:
    """Return the socket that an owner of *paths* has written down; ``None`` if that says nothing.

    A record that came with a copy of the folder is about another store: it names the path of the
    file and the identity of the folder, and one of them differs.
    """
    try:
        folder = os.open(paths.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        # A link, or closed to this user: the socket beside the file leads to the same error.
        return None
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(paths.address.name, flags, dir_fd=folder)
        try:
            text = os.read(file, _RECORD_MAX_BYTES)
        finally:
            os.close(file)
        found = os.fstat(folder)
        address, _, about = text.partition(b"\n")
        if about != _about(paths, found) or not address.startswith(b"/"):
            return None
        place = type(paths.db)(os.fsdecode(address))
        there = place.lstat()
    except OSError:
        return None
    finally:
        os.close(folder)
    # Only the user of the folder can have made it: else it is a leftover whose name was reused.
    is_of_owner = stat.S_ISSOCK(there.st_mode) and there.st_uid == found.st_uid
    return place if is_of_owner else None


def _about(paths: StorePaths, folder: os.stat_result) -> bytes:
    # Not the device: its number may change when the machine starts, the record of a service stays.
    return b"%d %s\n" % (folder.st_ino, os.fsencode(paths.db))


def record_text(paths: StorePaths, place: Path) -> bytes:
    """Return what is written down about *place*, for :func:`recorded_socket`."""
    return os.fsencode(place) + b"\n" + _about(paths, paths.folder.stat())


def fits(place: Path) -> bool:
    """Return True if *place* is short enough for the address of a socket."""
    return len(os.fsencode(place)) <= _MAX_PATH_BYTES


@contextlib.contextmanager
def reach(place: Path) -> Iterator[str]:
    """An address for ``bind`` or ``connect`` that is valid inside the block, however long *place*
    is. Raises :class:`PermissionDenied` for a symbolic link."""
    if place.is_symlink():
        raise PermissionDenied(f"{place} is a symbolic link; it is not followed")
    if fits(place):
        yield str(place)
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    folder = os.open(place.parent, flags)
    try:
        # Linux reaches any folder through a descriptor. Elsewhere the error says that it cannot.
        yield f"{_DESCRIPTORS}/{folder}/{place.name}"
    finally:
        os.close(folder)


def connect_to(place: Path) -> socket.socket:
    """Return a connected, non-blocking socket, or raise the ``OSError`` of the try. Never waits."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A full backlog would make a blocking connect wait; a non-blocking one fails with EAGAIN.
        sock.setblocking(False)
        with reach(place) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock
