"""Connecting to the actor: connect, start one if none listens, send Hello, wait for Welcome.

The meaning of a failed try is decided here, once for all clients: which errors are transient, how
long to wait before the next try, and which error the caller gets in the end.
"""

from __future__ import annotations

import errno
import select
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hermes_actor import limits
from hermes_actor.client.spawn import start_actor
from hermes_actor.errors import (
    AlreadyOwned,
    DeadlineExceeded,
    HermesActorError,
    NotRunning,
    SpawnFailed,
    cannot_use,
)
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.system.sockets import connect_to, recorded_socket
from hermes_protocol.features import SESSIONS
from hermes_protocol.framing import FrameError

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths
    from hermes_protocol.messages import Welcome

__all__ = [
    "MIN_WELCOME_SECONDS",
    "RetryPolicy",
    "Handshake",
    "connect",
    "connect_once",
    "dial",
    "ensure_actor_running",
    "feed_handshake",
    "is_not_listening",
    "program_name",
    "handshake",
    "silent_actor",
    "wait_readable",
]

_NOT_LISTENING = frozenset({errno.ENOENT, errno.ECONNREFUSED})

# None: the errors that this package raises itself, such as TimeoutError("..."), have no errno.
_TRANSIENT = frozenset({
    *_NOT_LISTENING, errno.EAGAIN, errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EINTR,
    errno.ENOTCONN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, None,
})  # fmt: skip
"""Errors of connecting after which another try can succeed. Any other one is about the folder or
the user, and stays."""

_LONGEST_SECONDS = 3600.0
"""Longest wait in one call of the kernel, which counts milliseconds in 31 bits."""

MIN_WELCOME_SECONDS = 0.05
"""Shortest wait for a Welcome, even when the timeout is over: an actor that is there answers within
a millisecond, and a caller with a timeout of 0 is to find it."""


class Handshake(Protocol):
    """The part of a state machine that a handshake needs."""

    @property
    def welcome(self) -> Welcome | None:
        """The Welcome of the present connection, once the actor is ready."""
        ...

    @property
    def phase(self) -> str:
        """The phase that the actor has reported."""
        ...

    @property
    def kind(self) -> str:
        """The kind of a file that does not say its own."""
        ...

    def hello(self) -> bytes:
        """Return the first bytes of a new connection. Forgets the Welcome of the last one."""
        ...

    def receive(self, data: bytes) -> object:
        """Take bytes of the actor. Raises :class:`FrameError`, and the error of a Reject."""
        ...


class RetryPolicy:
    """Pauses between the tries of one caller, until one succeeds or its timeout ends."""

    def __init__(self, paths: StorePaths, deadline: float) -> None:
        self.deadline = deadline
        self._paths = paths
        self._pause = limits.RECONNECT_FIRST_SECONDS
        self._failed_starts = 0
        self._owned: AlreadyOwned | None = None
        self._began = time.monotonic()

    def failed(self, error: OSError | SpawnFailed) -> float:
        """Return the seconds to wait before the next try; raise the error of the caller if there is
        none: the time is over, or *error* does not go away."""
        pause = self._pause_after(error)
        return max(0.0, min(pause, self.deadline - time.monotonic()))

    def _pause_after(self, error: OSError | SpawnFailed) -> float:
        over = time.monotonic() >= self.deadline
        if isinstance(error.__cause__, AlreadyOwned):
            # The owner may be about to serve, or about to end; one that is neither stays.
            self._owned = error.__cause__
            if time.monotonic() - self._began > limits.OWNED_SECONDS or over:
                raise error.__cause__
            return limits.RECONNECT_MAX_SECONDS
        if isinstance(error, SpawnFailed):
            # It may have been killed while it came up; one that cannot come up fails again.
            # Counted apart from the time: an actor that exits at once would be started some hundred
            # times within one timeout.
            self._failed_starts += 1
            if self._failed_starts == limits.SPAWN_TRIES or over:
                raise error
            # No pause: a start takes its time by itself.
            return 0.0
        # Some typed errors are OSErrors too (PermissionDenied): they are about the file, and final.
        if isinstance(error, HermesActorError):
            raise error
        if error.errno not in _TRANSIENT:
            raise cannot_use(self._paths.db, self._paths.folder, error) from error
        if over:
            # A start that was still under way would have found the same owner.
            raise self._owned or self.deadline_exceeded(str(error)) from error
        # Short at first: after a hand-off the next actor often serves within milliseconds.
        pause, self._pause = self._pause, min(2 * self._pause, limits.RECONNECT_MAX_SECONDS)
        return pause

    def deadline_exceeded(self, why: str) -> DeadlineExceeded:
        """Return the error of a caller whose time is over before there is a connection."""
        return DeadlineExceeded(
            silent_actor(self._paths, None, self._began, f"nothing was changed ({why})")
        )


def program_name() -> str:
    """Return the name of this program in the status of the actor."""
    return Path(sys.argv[0] or "python").name


def silent_actor(paths: StorePaths, pid: int | None, since: float, effect: str) -> str:
    """Return the text for an actor that does not answer: which, for how long, what to do."""
    # By the lock before the pid of the last Welcome: another actor may own the file by now.
    holder = lock_holder(paths) or pid
    who = f"pid {holder}" if holder is not None else "no process owns it"
    seconds = f"{time.monotonic() - since:.3g}"
    return (
        f"the actor of {paths.db} ({who}) has not answered for {seconds} s: {effect}."
        f" To see why: hermes-actor doctor; to end it: hermes-actor stop --force"
    )


def connect_once(paths: StorePaths) -> socket.socket:
    """Return a connected, non-blocking socket, or raise the ``OSError`` of the try. Never waits."""
    recorded = recorded_socket(paths)
    if recorded is not None:
        try:
            return connect_to(recorded)
        except BlockingIOError:
            raise  # its backlog is full: it is there
        except OSError:
            # A leftover, or a place that only others reach.
            if recorded == paths.sock:
                raise
    return connect_to(paths.sock)


def dial(paths: StorePaths, deadline: float) -> socket.socket:
    """Return a connected, non-blocking socket; retry while the backlog of the actor is full.

    Raises ``TimeoutError`` if it stays full until *deadline*, else the ``OSError`` of the last try.
    """
    while True:
        try:
            return connect_once(paths)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError("its backlog of new connections stayed full") from None
            time.sleep(limits.RECONNECT_FIRST_SECONDS)


def is_not_listening(error: OSError) -> bool:
    """Return True if *error* of connecting proves that there is no actor. No other error does."""
    return error.errno in _NOT_LISTENING


def ensure_actor_running(paths: StorePaths, deadline: float, kind: str = SESSIONS) -> None:
    """Start an actor, unless another process has meanwhile. Blocks until one serves.

    *kind* is that of a file that does not say its own.

    Raises the typed error of the file if the actor cannot open it, :class:`SpawnFailed` if it does
    not come up, :class:`DeadlineExceeded` and ``TimeoutError``.
    """

    def is_serving() -> bool:
        try:
            connect_once(paths).close()
        except OSError as error:
            # Any other error, such as a full backlog, means that a process listens.
            return not is_not_listening(error)
        return True

    try:
        start_actor(paths, deadline, is_serving, kind=kind)
    except AlreadyOwned as error:
        # As a failed start, which is tried again: the owner may be about to listen.
        raise SpawnFailed(str(error)) from error


Wait = Callable[[socket.socket, float], None]


def wait_readable(sock: socket.socket, deadline: float) -> None:
    """Wait until there is something to read. Raises ``TimeoutError``."""
    ready = select.poll()
    ready.register(sock, select.POLLIN)
    seconds = min(max(0.0, deadline - time.monotonic()), _LONGEST_SECONDS)
    if not ready.poll(seconds * 1000):
        raise TimeoutError("no answer in time")


def feed_handshake(protocol: Handshake, data: bytes) -> None:
    """Pass on what was read before Welcome; every bad end is a ``ConnectionResetError``."""
    if not data:
        raise ConnectionResetError("the actor closed the connection")
    try:
        protocol.receive(data)
    except FrameError as error:
        raise ConnectionResetError(f"not an actor of this protocol: {error}") from error


def handshake(
    paths: StorePaths,
    protocol: Handshake,
    deadline: float,
    wait: Wait = wait_readable,
    *,
    start: bool = True,
) -> socket.socket:
    """Try once: return a non-blocking connection on which the actor has said Welcome.

    Only Welcome proves that an actor serves: the socket of a stopped process, or of a service
    manager, takes connections too. An actor is started if there is none; without *start* that is
    :class:`NotRunning`.
    """
    try:
        # Tried before anything is checked or locked: nearly always there is an actor.
        sock = connect_once(paths)
    except OSError as error:
        if not is_not_listening(error):
            raise
        if not start:
            raise NotRunning(f"no actor serves {paths.db}") from error
        ensure_actor_running(paths, deadline, protocol.kind)
        sock = connect_once(paths)
    try:
        # Taken after connecting: a start may have used up the caller's time.
        until = max(deadline, time.monotonic() + MIN_WELCOME_SECONDS)
        # The buffer of a new socket is larger than a Hello.
        sock.send(protocol.hello())
        while protocol.welcome is None:
            try:
                wait(sock, until)
            except TimeoutError:
                raise TimeoutError(protocol.phase or "no answer in time") from None
            feed_handshake(protocol, sock.recv(limits.RECEIVE_BYTES))
    except BaseException:
        sock.close()
        raise
    return sock


def connect(paths: StorePaths, protocol: Handshake, retries: RetryPolicy) -> socket.socket:
    """Retry the handshake until it succeeds. Raises as :meth:`RetryPolicy.failed`."""
    while True:
        try:
            return handshake(paths, protocol, retries.deadline)
        except (SpawnFailed, OSError) as error:
            time.sleep(retries.failed(error))
