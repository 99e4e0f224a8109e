"""The actor as a process: environment, log, ownership, and the report to its starter."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING

from hermes_actor import exit_codes, limits
from hermes_actor.actor.handoff.receiver import PredecessorLink, check_file
from hermes_actor.actor.listener import ask_for_socket, place_of, record_place
from hermes_actor.actor.readiness import Readiness
from hermes_actor.actor.sd_notify import ServiceManager
from hermes_actor.actor.server import Server
from hermes_actor.actor.socket_activation import (
    passed_listener,
    path_is_kept,
    reject_pending,
    verify_listener,
)
from hermes_actor.build import build_id
from hermes_actor.engine.ownership import OwnerLock

# Imported now: after an update of the files on disk a running actor must not import a mixture.
from hermes_actor.engine.startup import migrations  # noqa: F401
from hermes_actor.errors import AlreadyOwned, HermesActorError, cannot_use
from hermes_actor.paths import check_ownership
from hermes_protocol.features import SESSIONS

if TYPE_CHECKING:
    from hermes_actor.actor.readiness import ReadyListener
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import PhaseReport, Status

__all__ = ["ReadyPipe", "Settings", "serve", "succeed"]

_log = logging.getLogger("hermes_actor.actor")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of an actor, which it passes to its successor."""

    idle_exit: float | None = None
    """Seconds without connections after which it ends; ``None``: never."""
    drain_seconds: float = limits.DRAIN_SECONDS
    private_sql: bool = True
    rescue: bool = True
    """Save the store when its home is deleted. A successor reads this setting for itself."""
    kind: str = SESSIONS
    """The kind of a file that does not say its own."""

    def options(self) -> Sequence[str]:
        """Return the same as options of a command line."""
        return (
            "--idle-exit", str(self.idle_exit or 0),
            "--drain-seconds", str(self.drain_seconds),
            *(() if self.private_sql else ("--no-private-sql",)),
            # Left out where an earlier build, which does not know the option, may take over.
            *(() if self.kind == SESSIONS else ("--kind", self.kind)),
        )  # fmt: skip


def serve(
    paths: StorePaths,
    settings: Settings,
    *,
    ready_fd: int | None = None,
    to_log: bool = True,
    starter: ReadyListener | None = None,
    on_status: Callable[[Status], None] | None = None,
) -> int:
    """Own *paths* and serve it until a drain or a hand-off; return the exit code.

    *starter* hears once that the actor serves, or why it does not; by default it is the process at
    the other end of *ready_fd*. *on_status* gets the status every half a second, in a thread of its
    own.
    """
    starter = starter or ReadyPipe(ready_fd)
    manager, listener = ServiceManager.from_environment(), passed_listener()
    # Private from the first moment: narrowing the mode later would leave a time in between.
    paths.db.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        check_ownership(paths)
        lock = _acquire(paths, manager, listener)
        # After the lock: a second actor that finds it taken must not rotate the log of the first.
        if to_log:
            _open_log_of_owner(paths, lock)
    except AlreadyOwned as error:
        # The starter connects once more: the other actor may just have begun. If it has not, it is
        # out of reach for the starter.
        if ready_fd is not None:
            ask_for_socket(paths)
        starter.report_failed(error)
        return exit_codes.ALREADY_RUNNING
    except HermesActorError as error:
        starter.report_failed(error)
        return exit_codes.REFUSED
    return _run(
        paths,
        lock,
        settings,
        starter,
        manager,
        listener=verify_listener(listener, paths),
        on_status=on_status,
    )


def _acquire(
    paths: StorePaths, manager: ServiceManager, listener: socket.socket | None
) -> OwnerLock:
    """Take the owner lock. Under a service manager wait for it: a manager would only start the
    actor again and again, and give up. After a while clients at *listener* learn who holds it.

    Raises :class:`AlreadyOwned` at once if there is no manager.
    """
    began, is_recorded = time.monotonic(), False
    while True:
        try:
            return OwnerLock.acquire(paths)
        except AlreadyOwned as error:
            if not manager.is_there:
                raise
            manager.phase(f"waiting: {error}")
            if listener is not None and not is_recorded:
                # Clients go to the manager's from now on. The owner notices, and drains.
                with contextlib.suppress(OSError):
                    record_place(paths, place_of(listener, paths))
                    is_recorded = True
            if listener is not None and time.monotonic() - began > limits.OWNED_SECONDS:
                reject_pending(listener, error)
        # Tried again and not waited for: a flock that blocks has no time limit, and the clients at
        # the listener would get no answer meanwhile.
        time.sleep(limits.RECONNECT_MAX_SECONDS)


def succeed(paths: StorePaths, settings: Settings, channel: int) -> int:
    """Take over from the actor at the other end of *channel*; return the exit code."""
    predecessor = PredecessorLink(channel)
    try:
        _open_log(paths)
        # Before receive(), which reports ready: the old actor closes the file for this build only
        # after the check has passed (G12).
        check_file(paths)
        received = predecessor.receive()
    except (HermesActorError, OSError) as error:
        _log.error("hand-off: this build cannot take over %s: %s", paths.db, error)
        predecessor.report_failed(error)
        return exit_codes.REFUSED
    return _run(
        paths,
        # Not acquired: the flock belongs to the open file description that both processes share.
        OwnerLock.adopt(received.lock),
        settings,
        predecessor,
        ServiceManager.from_environment(),
        listener=received.listener,
        predecessor=predecessor,
        pinned=received.message.pinned,
    )


def _run(
    paths: StorePaths,
    lock: OwnerLock,
    settings: Settings,
    starter: ReadyListener,
    manager: ServiceManager,
    *,
    listener: socket.socket | None = None,
    predecessor: PredecessorLink | None = None,
    pinned: bool = False,
    on_status: Callable[[Status], None] | None = None,
) -> int:
    _raise_limits()
    _log.info("hermes-actor %s pid %d owns %s", build_id(), os.getpid(), paths.db)
    server = Server(
        paths,
        lock,
        listener=listener,
        keep_socket=path_is_kept(),
        predecessor=predecessor,
        pinned=pinned,
        manager=manager,
        readiness=Readiness(manager, starter),
        successor_options=settings.options(),
        idle_exit=settings.idle_exit,
        drain_seconds=settings.drain_seconds,
        private_sql=settings.private_sql,
        rescue=settings.rescue,
        kind=settings.kind,
        on_status=on_status,
    )
    code = server.run()
    _log.info("ended with %d", code)
    return code


class PrivateLogHandler(RotatingFileHandler):
    """A rotating log that only this user can read, and never a symbolic link of another user."""

    def _open(self) -> TextIOWrapper:
        # The mode is given to open() and not set afterwards: the log names clients and their paths.
        # O_APPEND: in a hand-off two processes write it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.baseFilename, flags, 0o600)
        # Paths need not be UTF-8, and one that is not must not cost its line.
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")


def _open_log_of_owner(paths: StorePaths, lock: OwnerLock) -> None:
    try:
        _open_log(paths)
    except HermesActorError:
        lock.release()  # before the report: the next attempt must not meet this process
        raise


def _open_log(paths: StorePaths) -> None:
    try:
        handler = PrivateLogHandler(paths.log, maxBytes=limits.LOG_MAX_BYTES, backupCount=3)
    except OSError as error:
        raise cannot_use(paths.db, paths.log, error) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _raise_limits() -> None:
    # Every client costs a descriptor, and the usual soft limit of 1024 is meant for programs that
    # use select().
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # A core file would hold the messages of every client.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class ReadyPipe:
    """The process that started this actor, at the other end of a pipe.

    After the outcome the descriptor is closed and its number forgotten: the next file that is
    opened may get it, and that can be the database.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def report_phase(self, phase: PhaseReport) -> None:
        """Report a phase of an opening that takes a while. May be called any number of times."""
        self._send({"phase": phase.text})

    def report_serving(self) -> None:
        """Report that the actor serves. The last report."""
        self._finish({"pid": os.getpid()})

    def report_failed(self, error: BaseException) -> None:
        """Report that the actor will not serve, and why. The last report."""
        code, words = getattr(error, "code", "error"), getattr(error, "sqlite_message", None)
        self._finish({"pid": os.getpid(), "error": str(error), "code": code, "words": words})

    def _finish(self, outcome: dict[str, object]) -> None:
        self._send(outcome)
        # Forgotten before it is closed: a report that came in between would go to another file.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _send(self, message: dict[str, object]) -> None:
        if self._descriptor is not None:
            # A starter that has given up is no reason not to serve.
            with contextlib.suppress(OSError):
                os.write(self._descriptor, json.dumps(message).encode() + b"\n")
