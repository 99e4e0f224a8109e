"""The actor as a process: environment, log, ownership, and the pipe on which it says ready."""

from __future__ import annotations

import json
import logging
import os
import resource
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor._version import __version__
from hermes_actor.actor.server import Server

# Imported now: after an update of the files on disk a running actor must not import a mixture.
from hermes_actor.engine import migrations  # noqa: F401
from hermes_actor.engine.ownership import OwnerLock
from hermes_actor.errors import HermesActorError, Owned

if TYPE_CHECKING:
    from hermes_actor.paths import Place

__all__ = ["ALREADY_RUNNING", "serve"]

ALREADY_RUNNING = 4
"""Exit code of an actor that finds another owner."""

_log = logging.getLogger("hermes_actor.actor")


def serve(
    place: Place,
    *,
    ready_fd: int | None = None,
    idle_exit: float | None = None,
    to_log: bool = True,
    announce: Callable[[BaseException | None], None] | None = None,
) -> int:
    """Own *place* and serve it until told to end. Returns the exit code.

    *announce* is told once that we serve, or why not; *ready_fd* is the same for another process.
    """
    tell = announce or (lambda error: _say(ready_fd, error))
    place.db.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = OwnerLock.acquire(place)
    except Owned as error:
        # Whoever started us finds the other one by connecting again.
        tell(error if announce else None)
        return ALREADY_RUNNING
    except HermesActorError as error:
        tell(error)
        return 1
    if to_log:
        _open_log(place)
    _raise_limits()
    _log.info("hermes-actor %s pid %d owns %s", __version__, os.getpid(), place.db)
    server = Server(place, lock, idle_exit=idle_exit, on_ready=tell)
    code = server.run()
    _log.info("ended with %d", code)
    return code


def _open_log(place: Place) -> None:
    handler = RotatingFileHandler(
        place.log, maxBytes=limits.LOG_MAX_BYTES, backupCount=3, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def _raise_limits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _say(ready_fd: int | None, error: BaseException | None) -> None:
    """Tell whoever started us that we serve, or why not."""
    if ready_fd is None:
        return
    answer: dict[str, object] = {"pid": os.getpid()}
    if error is not None:
        answer["error"] = str(error)
        answer["code"] = getattr(error, "code", "error")
        answer["words"] = getattr(error, "words", None)
    os.write(ready_fd, json.dumps(answer).encode())
    os.close(ready_fd)
