"""The actor as a process: environment, log, ownership, and telling whoever waits for it."""

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
from hermes_actor.actor.sd_notify import ServiceManager
from hermes_actor.actor.server import Server
from hermes_actor.actor.socket_activation import (
    keep_if_reachable,
    passed_listener,
    path_is_kept,
    turn_away,
)
from hermes_actor.build import build_id

# Imported now: after an update of the files on disk a running actor must not import a mixture.
from hermes_actor.engine import migrations  # noqa: F401
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.errors import AlreadyOwned, HermesActorError
from hermes_actor.paths import check_ownership

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import PhaseReport, Status

__all__ = ["Settings", "serve", "succeed"]

_log = logging.getLogger("hermes_actor.actor")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an actor is started with, and what it starts its successor with."""

    idle_exit: float | None = None
    """Seconds without connections after which it ends; ``None``: never."""
    drain_seconds: float = limits.DRAIN_SECONDS
    private_sql: bool = True
    rescue: bool = True
    """Whether the store is saved when its home is deleted. A successor reads it for itself."""

    def options(self) -> Sequence[str]:
        """The same, for a command line."""
        return (
            "--idle-exit", str(self.idle_exit or 0),
            "--drain-seconds", str(self.drain_seconds),
            *(() if self.private_sql else ("--no-private-sql",)),
        )  # fmt: skip


def serve(
    paths: StorePaths,
    settings: Settings,
    *,
    ready_fd: int | None = None,
    to_log: bool = True,
    announce: Callable[[BaseException | None], None] | None = None,
    on_status: Callable[[Status], None] | None = None,
) -> int:
    """Own *place* and serve it until told to end. Returns the exit code.

    *announce* is told once that we serve, or why not; *ready_fd* is the same for another process.
    *on_status* gets the status document every half a second, in a thread of its own.
    """
    starter = _Starter(ready_fd)
    tell = _once(announce or starter.tell)
    supervisor, listener = ServiceManager.from_environment(), passed_listener()
    paths.db.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        check_ownership(paths)
        lock = _acquire(paths, supervisor, listener)
    except AlreadyOwned as error:
        # Whoever started us tries to connect again: the other one may just have begun.
        tell(error)
        return exit_codes.ALREADY_RUNNING
    except HermesActorError as error:
        tell(error)
        return exit_codes.REFUSED
    if to_log:
        _open_log(paths)
    return _run(
        paths,
        lock,
        settings,
        tell=tell,
        on_phase=starter.tell_phase,
        listener=keep_if_reachable(listener, paths),
        supervisor=supervisor,
        on_status=on_status,
    )


def _acquire(
    paths: StorePaths, supervisor: ServiceManager, listener: socket.socket | None
) -> OwnerLock:
    """The owner lock. Under a service manager we wait for it, for a manager would only start us
    again and again, and give up; who waits at *listener* is told after a while who has it.

    Raises :class:`AlreadyOwned` at once if there is no manager.
    """
    began = time.monotonic()
    while True:
        try:
            return OwnerLock.acquire(paths)
        except AlreadyOwned as error:
            if not supervisor.is_there:
                raise
            supervisor.phase(f"waiting: {error}")
            if listener is not None and time.monotonic() - began > limits.OWNED_SECONDS:
                turn_away(listener, error)
        time.sleep(limits.RECONNECT_MAX_SECONDS)


def succeed(paths: StorePaths, settings: Settings, channel: int) -> int:
    """Take over from the actor at the other end of *channel*. Returns the exit code."""
    _open_log(paths)
    predecessor = PredecessorLink(channel)
    try:
        check_file(paths)
        inheritance = predecessor.inherit()
    except (HermesActorError, OSError) as error:
        _log.error("hand-off: not taking over: %s", error)
        predecessor.tell_failed(error)
        return exit_codes.REFUSED
    lock = OwnerLock.adopt(inheritance.lock)

    def tell(error: BaseException | None) -> None:
        if error is None:
            predecessor.tell_serving(inheritance.message.epoch + 1)
        else:
            predecessor.tell_failed(error)

    return _run(
        paths,
        lock,
        settings,
        tell=_once(tell),
        on_phase=predecessor.tell_phase,
        listener=inheritance.listener,
        predecessor=predecessor,
        pinned=inheritance.message.pinned,
        supervisor=ServiceManager.from_environment(),
    )


def _run(
    paths: StorePaths,
    lock: OwnerLock,
    settings: Settings,
    *,
    tell: Callable[[BaseException | None], None],
    on_phase: Callable[[PhaseReport], None],
    supervisor: ServiceManager,
    listener: socket.socket | None = None,
    predecessor: PredecessorLink | None = None,
    pinned: bool = False,
    on_status: Callable[[Status], None] | None = None,
) -> int:
    _raise_limits()
    _log.info("hermes-actor %s pid %d owns %s", build_id(), os.getpid(), paths.db)

    def now_in(phase: PhaseReport) -> None:
        supervisor.phase(phase.text)
        on_phase(phase)

    def serves(error: BaseException | None) -> None:
        # Before anybody else: who waits for a hand-off leaves `systemctl reload` with it.
        if error is None:
            supervisor.ready()
        else:
            supervisor.phase(f"cannot serve: {error}")
        tell(error)

    server = Server(
        paths,
        lock,
        listener=listener,
        keep_socket=path_is_kept(),
        predecessor=predecessor,
        pinned=pinned,
        supervisor=supervisor,
        successor_options=settings.options(),
        idle_exit=settings.idle_exit,
        drain_seconds=settings.drain_seconds,
        private_sql=settings.private_sql,
        rescue=settings.rescue,
        on_ready=serves,
        on_phase=now_in,
        on_status=on_status,
    )
    code = server.run()
    _log.info("ended with %d", code)
    return code


def _once(
    tell: Callable[[BaseException | None], None],
) -> Callable[[BaseException | None], None]:
    """Whoever waits is told the first time only: an actor may begin to serve more than once."""
    told = False

    def once(error: BaseException | None) -> None:
        nonlocal told
        if not told:
            told = True
            tell(error)

    return once


class _PrivateLog(RotatingFileHandler):
    """Rotates, is ours alone, and is never somebody's symbolic link."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.baseFilename, flags, 0o600)
        # Paths need not be UTF-8, and one that is not must not cost its line.
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")


def _open_log(paths: StorePaths) -> None:
    handler = _PrivateLog(paths.log, maxBytes=limits.LOG_MAX_BYTES, backupCount=3)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _raise_limits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # A core file would lie somewhere with the words of every client in it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class _Starter:
    """Whoever started us, at the other end of a pipe, until it has been told that we serve.

    Then the descriptor is closed and its number forgotten: the next file that is opened may get
    it, and that can be the database.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def tell_phase(self, phase: PhaseReport) -> None:
        self._say({"phase": phase.text})

    def tell(self, error: BaseException | None) -> None:
        answer: dict[str, object] = {"pid": os.getpid()}
        if error is not None:
            answer["error"] = str(error)
            answer["code"] = getattr(error, "code", "error")
            answer["words"] = getattr(error, "sqlite_message", None)
        self._say(answer)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _say(self, answer: dict[str, object]) -> None:
        if self._descriptor is not None:
            # Whoever started us may have had enough of waiting.
            with contextlib.suppress(OSError):
                os.write(self._descriptor, json.dumps(answer).encode() + b"\n")
