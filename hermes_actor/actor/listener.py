"""The socket of an actor: created under the owner lock, outside of the home, and written down.

See :mod:`hermes_actor.system.sockets` for how clients find it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.errors import HermesActorError, cannot_use
from hermes_actor.system.sockets import connect_to, fits, reach, record_text, recorded_socket

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = [
    "SocketFile", "ask_for_socket", "bind", "bind_beside", "is_recorded_elsewhere", "place_of",
    "record_place",
]  # fmt: skip

_NEW = ".new"
"""Ends the name of a socket that does not listen yet."""

_LEFTOVER_SECONDS = 3600.0
"""Age of a socket file that may be a leftover: no program takes so long from bind to listen."""

_LOOKED_AT = 200
"""Most files that a start looks at."""

_BUSY_SECONDS = 1.0
"""Longest wait for one that removes leftovers; it may be stopped."""

_BOUND = Path("/proc/net/unix")
"""Sockets of this network namespace, by the path that they were bound to."""

_LOGINS = Path("/run/user")

_log = logging.getLogger("hermes_actor.actor")


class SocketFile:
    """The file of a socket, known again by its identity."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._id = self._identity()

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.place.lstat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def is_in_place(self) -> bool:
        """True while it was not removed or replaced."""
        return self._identity() == self._id

    def remove(self) -> None:
        """Remove it, unless it is another one by now."""
        if self.is_in_place:
            self.place.unlink(missing_ok=True)


def bind(paths: StorePaths) -> socket.socket:
    """Listen, and write down where. The caller holds the owner lock, so what is there is stale.

    In the folder for sockets of this user; beside the file where there is none that can be trusted,
    and where no record can be written: on a full disk a socket often still has room.

    Raises :class:`DiskFull`, or another typed error of the folder, if it has none.
    """
    try:
        # A client that has asked for a socket beside the file meets another owner, and asks again.
        paths.sock_wanted.unlink(missing_ok=True)
        return _bind_outside(paths) or _bind_in_home(paths)
    except HermesActorError:
        raise
    except OSError as error:
        raise cannot_use(paths.db, paths.folder, error) from error


def _bind_outside(paths: StorePaths) -> socket.socket | None:
    """Return a listener in the folder for sockets; ``None`` if no client would find it."""
    name = _name(paths)
    if (folder := _runtime_folder(name)) is None:
        return None
    place = folder / name
    try:
        with _kept_by_others(folder):
            listener = _bind_at(place)
    except OSError:
        return None
    if not _is_recorded(paths, place):
        listener.close()
        place.unlink(missing_ok=True)
        return None
    # A leftover of an earlier build, or of one that was asked to listen there.
    paths.sock.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        _remove_leftovers(folder)
    return listener


def _bind_in_home(paths: StorePaths) -> socket.socket:
    listener = _bind_at(paths.sock)
    if not _is_recorded(paths, paths.sock) and recorded_socket(paths) is not None:
        # Without a record clients look here. That of the last owner would lead them elsewhere.
        paths.address.unlink(missing_ok=True)
    return listener


def _is_recorded(paths: StorePaths, place: Path) -> bool:
    """Write down where the owner listens; False if that cannot be written."""
    try:
        record_place(paths, place)
    except OSError as error:
        _log.warning("%s cannot be written (%s)", paths.address, error.strerror)
        return False
    return True


def bind_beside(paths: StorePaths) -> socket.socket:
    """Listen beside the file as well, while the writer thread runs."""
    # No mask: it is of the whole process. The folder is private, so the mode may come later.
    return _listen(paths.sock, with_mask=False)


def _bind_at(place: Path) -> socket.socket:
    return _listen(place, with_mask=True)


def _listen(place: Path, *, with_mask: bool) -> socket.socket:
    """Listen at *place*. It appears under its name when it listens: between bind and listen a
    client would be refused, and would take that as proof that no actor serves."""
    unborn = place.with_name(place.name + _NEW)
    unborn.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        # The socket gets its mode from the mask; a chmod afterwards would leave a time in between.
        mask = os.umask(0o177) if with_mask else None
        try:
            with reach(unborn) as address:
                listener.bind(address)
        finally:
            if mask is not None:
                os.umask(mask)
        if not with_mask:
            unborn.chmod(0o600)
        listener.listen(limits.LISTEN_BACKLOG)
        # Replaces a stale socket in one step: there is no moment without a file at the path.
        unborn.replace(place)
    except BaseException:
        listener.close()
        raise
    return listener


def place_of(listener: socket.socket, paths: StorePaths) -> Path:
    """Return the path of the socket file of *listener*, which may be that of another build."""
    address = listener.getsockname()
    text = os.fsdecode(address)
    # The kernel knows the name that it was bound to.
    if text.startswith("/proc/"):
        return paths.sock
    return Path(text.removesuffix(_NEW))


def record_place(paths: StorePaths, place: Path) -> None:
    """Write down where the owner listens."""
    if recorded_socket(paths) == place:
        return
    part = paths.address.with_name("address.new")
    part.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(part, flags, 0o600), "wb") as file:
            file.write(record_text(paths, place))
        part.replace(paths.address)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def is_recorded_elsewhere(paths: StorePaths, place: Path) -> bool:
    """Return True if a service manager listens for this store at another place by now."""
    recorded = recorded_socket(paths)
    return recorded is not None and recorded != place


def ask_for_socket(paths: StorePaths) -> None:
    """Ask the owner to listen beside the file: the client that has started this process does not
    reach it.

    It is a build that looks there only, or runs where the folder for sockets is another one.
    """
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(paths.sock_wanted, flags, 0o600))


# --- the folder for sockets ----------------------------------------------------------------------


def _name(paths: StorePaths) -> str:
    """Return a name that no other store of this machine has at the same time."""
    found = paths.folder.stat()
    return f"{found.st_dev:x}-{found.st_ino:x}-{zlib.crc32(os.fsencode(paths.db)):08x}"


def _runtime_folder(name: str) -> Path | None:
    """Return the folder for a socket *name* of this user, made if it is missing; ``None`` if none
    can be used."""
    for folder in _candidates():
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(folder):
                _log.warning("%s is not a private folder of uid %d; not used", folder, os.getuid())
            elif fits(folder / f"{name}{_NEW}"):
                return folder
        except OSError:
            continue  # read-only, full, or not ours
    return None


def _candidates() -> Iterator[Path]:
    # Where the login keeps such files; also for a program that does not have the variable, a job
    # of cron for example.
    for text in (os.environ.get("XDG_RUNTIME_DIR", ""), f"{_LOGINS}/{os.getuid()}"):
        base = Path(text)
        if base.is_absolute():
            with contextlib.suppress(OSError):
                found = base.lstat()
                is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
                if is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    yield base / "hermes-actor"
    with contextlib.suppress(OSError):
        yield Path(tempfile.gettempdir()) / f"hermes-actor-{os.getuid()}"


def _is_private(folder: Path) -> bool:
    # Any user may have made it in a folder for all.
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        return False
    if found.st_mode & 0o077:
        folder.chmod(0o700)  # no other user could put anything into it
    return True


@contextlib.contextmanager
def _kept_by_others(folder: Path) -> Iterator[None]:
    """Keep others from removing leftovers in *folder* while a socket is created there."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _lock(descriptor, fcntl.LOCK_SH, _BUSY_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(limits.RECONNECT_FIRST_SECONDS)


def _remove_leftovers(folder: Path) -> None:
    """Remove old sockets without a listener: those of killed actors whose home is gone.

    The next actor of a store replaces its own, so without this they would stay until a restart.
    """
    old = [
        one for one in _sockets(folder) if time.time() - one.lstat().st_mtime > _LEFTOVER_SECONDS
    ]
    if not old:
        return
    bound = set()
    with contextlib.suppress(OSError):
        for line in _BOUND.read_bytes().splitlines():
            bound.add(os.fsdecode(line.rpartition(b" ")[2]).removesuffix(_NEW))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # Alone: one that is replaced between the look and the removal would be lost.
        for place in old:
            # One that a manager keeps is not tried: that would start its service.
            if str(place) not in bound and _lock(descriptor, fcntl.LOCK_EX, 0.0):
                with contextlib.suppress(OSError):
                    _remove_if_deaf(place)
    finally:
        os.close(descriptor)


def _sockets(folder: Path) -> list[Path]:
    found: list[Path] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if len(found) < _LOOKED_AT and stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                found.append(Path(entry.path))
    return found


def _remove_if_deaf(place: Path) -> None:
    try:
        connect_to(place).close()  # it listens for others, in a container for example
    except ConnectionRefusedError:
        place.unlink()
