"""Control of the actor of a store: status, stop, hand-off, and other asks on a short connection.

No call here starts an actor, and none waits for one to come up.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.connect import dial, is_not_listening, silent_actor, wait_readable
from hermes_actor.client.protocol import client_protocol
from hermes_actor.errors import (
    DeadlineExceeded,
    HermesActorError,
    NotRunning,
    OutcomeUnknown,
    Unsupported,
)
from hermes_actor.paths import StorePaths
from hermes_actor.system.lock_inspection import already_owned, lock_holder, lock_owner
from hermes_actor.system.processes import ProcessEnd
from hermes_protocol.client import decode_result
from hermes_protocol.framing import FrameError
from hermes_protocol.status import Status

__all__ = [
    "ControlConnection", "StatusWatch", "ask_status", "call", "has_owner", "look",
    "request_handoff", "running_actor", "stop_actor",
]  # fmt: skip

_STATUS_SECONDS = 5.0
"""Longest wait for a status: the event loop of the actor answers it, whatever the writer does."""

_WELCOME_SECONDS = limits.DEFAULT_TIMEOUT_SECONDS
"""Longest wait for Welcome, however long the ask itself may take: the event loop of the actor says
it in every phase, also while the writer is busy with an hour of work."""

_HANDOFF_SECONDS = limits.SUCCESSOR_READY_SECONDS + 3 * limits.SUCCESSOR_SERVING_SECONDS
"""Longest wait for a hand-off: the successor starts, serves, or the old actor takes back."""

_EXIT_SECONDS = 1.0
"""Longest wait for a process that has closed its listener and has not exited yet."""


class ControlConnection:
    """A connection for asks, on which the actor has said Welcome.

    Nothing is asked before: an ask that waits in the socket of a stopped actor would be answered,
    and carried out, after its caller has given up.
    """

    def __init__(self, paths: StorePaths, deadline: float, *, name: str) -> None:
        """Connect as *name*.

        Raises :class:`NotRunning` if no actor listens, :class:`DeadlineExceeded` if it says nothing
        by *deadline* or in 30 seconds, or the error with which it rejects clients.
        """
        self._paths = paths
        self._protocol = client_protocol(name)
        self._began = time.monotonic()
        deadline = min(deadline, self._began + _WELCOME_SECONDS)
        with self._typed_errors():
            self._sock = dial(paths, deadline)
        try:
            with self._typed_errors():
                # On a socket that does not block: Hello and one ask are far smaller than its
                # buffer.
                self._sock.sendall(self._protocol.hello())
                # Any Welcome will do, ready or not: status and stop must work while the file is
                # being opened.
                while not self._protocol.phase:
                    self._receive(deadline)
        except BaseException:
            self.close()
            raise

    def call(self, make: Callable[[int], msgspec.Struct], deadline: float) -> bytes:
        """Send the ask ``make(number)`` and return the result of its reply.

        Raises the error of the reply. Without a reply the ask may have been carried out:
        :class:`OutcomeUnknown`, caused by :class:`NotRunning` if the actor closed the connection.
        """
        reply, data = self._protocol.ask(make)
        try:
            with self._typed_errors():
                self._sock.sendall(data)
                while not reply.done:
                    self._receive(deadline)
        except (NotRunning, DeadlineExceeded) as error:
            raise OutcomeUnknown(f"{error}; what it was asked for may have been done") from error
        if reply.error is not None:
            raise reply.error
        return reply.result or b""

    def close(self) -> None:
        """Close the connection. Without Bye: this client has no receipts to forget."""
        self._sock.close()

    def _receive(self, deadline: float) -> None:
        wait_readable(self._sock, deadline)
        data = self._sock.recv(limits.RECEIVE_BYTES, socket.MSG_DONTWAIT)
        if not data:
            raise NotRunning(f"the actor of {self._paths.db} has just exited")
        self._protocol.receive(data)

    @contextlib.contextmanager
    def _typed_errors(self) -> Iterator[None]:
        paths = self._paths
        try:
            yield
        # First: some typed errors are OSErrors or TimeoutErrors too.
        except HermesActorError:
            raise
        except TimeoutError as error:
            raise DeadlineExceeded(silent_actor(paths, None, self._began, str(error))) from error
        except FrameError as error:
            raise NotRunning(
                f"the process listening for {paths.db} does not speak the hermes-actor protocol:"
                f" {error}"
            ) from error
        except OSError as error:
            if is_not_listening(error) or isinstance(error, ConnectionError):
                raise NotRunning(f"no actor serves {paths.db}") from error
            raise


def call(
    paths: StorePaths, make: Callable[[int], msgspec.Struct], timeout: float, *, name: str
) -> bytes:
    """Return the result of one ask, on a connection of its own.

    *name* is how the actor's status shows the caller. Raises as :class:`ControlConnection` and its
    :meth:`~ControlConnection.call`.
    """
    deadline = time.monotonic() + timeout
    with contextlib.closing(ControlConnection(paths, deadline, name=name)) as connection:
        return connection.call(make, deadline)


def ask_status(paths: StorePaths, timeout: float = _STATUS_SECONDS) -> Status | None:
    """Return the status of the actor; ``None`` if there is no actor.

    Raises :class:`DeadlineExceeded` if it does not answer, and :class:`Unsupported` if its document
    cannot be read by this build.
    """
    try:
        data = call(paths, _status_request, timeout, name="status")
    except NotRunning:
        return None
    except OutcomeUnknown as error:
        # A status request changes nothing, so no outcome is unknown.
        if isinstance(error.__cause__, DeadlineExceeded):
            raise error.__cause__ from None
        return None
    return _status_of(paths, data)


def _status_request(number: int) -> wire.StatusRequest:
    return wire.StatusRequest(ask=number)


def _status_of(paths: StorePaths, data: bytes) -> Status:
    try:
        # Not msgspec's: older actors quote a path that is not UTF-8 as half a surrogate pair.
        return Status.from_document(json.loads(data))
    except ValueError as error:
        raise Unsupported(
            f"the status of the actor of {paths.db} cannot be read by this build: {error}"
        ) from error


def look(paths: StorePaths) -> Status | str:
    """Return the status of the actor, or in words why there is none. Starts none, raises nothing.

    For a view that looks once; see :class:`StatusWatch` for one that looks again and again.
    """
    return _looked(paths, lambda: ask_status(paths) or "not running")


def _looked(paths: StorePaths, ask: Callable[[], Status | str]) -> Status | str:
    if lock_holder(paths) is None:
        # To connect could start one: a service manager may hold the socket.
        return "not running"
    try:
        return ask()
    except (DeadlineExceeded, OSError):
        return "not answering"
    except HermesActorError as error:
        return str(error)


class StatusWatch:
    """Looks at the actor of a store again and again, over a connection that is kept.

    A look over a connection of its own costs the actor five times as much: it is the loop that
    answers writers, too, which takes in a client and says Welcome. For one thread at a time.
    """

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._connection: ControlConnection | None = None

    def look(self) -> Status | str:
        """Return what :func:`look` does."""
        seen = _looked(self._paths, self._ask)
        if isinstance(seen, str):
            # Late answers and half-read frames go with their connection.
            self.close()
        return seen

    def close(self) -> None:
        """Close the connection; a later look opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self) -> Status | str:
        deadline = time.monotonic() + _STATUS_SECONDS
        while True:
            is_kept = self._connection is not None
            try:
                if self._connection is None:
                    self._connection = ControlConnection(self._paths, deadline, name="status")
                data = self._connection.call(_status_request, deadline)
                return _status_of(self._paths, data)
            except (NotRunning, OutcomeUnknown) as error:
                self.close()
                if isinstance(error.__cause__, DeadlineExceeded):
                    raise error.__cause__ from None
                # The connection may be that of an actor that has handed over since the last look.
                if not is_kept:
                    return "not running"


def has_owner(paths: StorePaths) -> bool:
    """Return True if a process owns *paths* now. Starts none, not even by socket activation."""
    return lock_holder(paths) is not None


def running_actor(paths: StorePaths, timeout: float = _STATUS_SECONDS) -> int:
    """Return the pid of the actor. Starts none, not even by socket activation.

    Raises :class:`NotRunning` if there is none, :class:`AlreadyOwned` if a process owns the store
    without serving it, and :class:`DeadlineExceeded` if the actor does not answer.
    """
    # The lock first: connecting to a socket of systemd would start an actor.
    owner = lock_owner(paths)
    if owner is None or owner.pid is None:
        raise NotRunning(f"no actor serves {paths.db}")
    status = ask_status(paths, min(timeout, _STATUS_SECONDS))
    if status is None:
        # Between the end of a listener and the exit of its process, or a program in embedded mode.
        with ProcessEnd(owner.pid) as end:
            # Two proofs: the process has exited, or another one holds the lock by now.
            if end.wait(_EXIT_SECONDS) or lock_holder(paths) != owner.pid:
                raise NotRunning(f"no actor serves {paths.db}")
        raise already_owned(paths, owner)
    return status.pid


def stop_actor(
    paths: StorePaths, timeout: float, *, on_pid: Callable[[int], None] = lambda _pid: None
) -> int:
    """Have the actor drain, wait until its process has exited, and return its pid.

    *on_pid* is called with the pid before the wait. Raises as :func:`running_actor`, and
    :class:`DeadlineExceeded` if the process is still there after *timeout* seconds.
    """
    deadline = time.monotonic() + timeout
    # Half of the time: one that does not answer is signalled by the caller, in the other half.
    pid = running_actor(paths, timeout / 2)
    on_pid(pid)
    # Opened before the drain is asked for: afterwards the pid may belong to another process.
    with ProcessEnd(pid) as end:
        # A request that was lost, or an actor that was about to exit: its exit tells.
        with contextlib.suppress(NotRunning, OutcomeUnknown):
            call(paths, lambda n: wire.Drain(ask=n), timeout, name="drain")
        if not end.wait(deadline - time.monotonic()):
            raise DeadlineExceeded(
                f"the actor of {paths.db} (pid {pid}) has not exited within {timeout:g} s;"
                f" to end it at once: hermes-actor stop --force"
            )
    return pid


def request_handoff(paths: StorePaths, python: str, *, allow_older: bool = False) -> dict[str, Any]:
    """Have the actor hand over to the code of *python*; return ``pid`` and ``build`` of the
    successor that serves now.

    *python* is the path of an interpreter, or a name on ``PATH``. Raises :class:`HandoffFailed`,
    after which the old actor continues to serve, :class:`NotRunning`, or :class:`OutcomeUnknown` if
    the actor exited meanwhile.
    """
    # Here, in the folder of the caller: the actor runs in another one, with another PATH.
    chosen = _absolute(python)
    result = call(
        paths,
        lambda n: wire.Handoff(ask=n, python=chosen, allow_older=allow_older),
        _HANDOFF_SECONDS,
        name="handoff",
    )
    successor: dict[str, Any] = decode_result(result, dict[str, Any])
    return successor


def _absolute(python: str) -> str:
    """Return the path of an interpreter for a process with another working directory.

    Links stay: a virtual environment is known by the path of its interpreter.
    """
    if os.sep not in python:
        python = shutil.which(python) or python
    return os.path.abspath(os.path.expanduser(python))
