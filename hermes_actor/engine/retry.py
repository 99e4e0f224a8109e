"""Waiting for a lock that a foreign program holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from hermes_actor import limits
from hermes_actor.sqlite import primary_code, sqlite3

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment

__all__ = ["is_busy", "retry_busy"]

R = TypeVar("R")

_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})


def is_busy(error: BaseException) -> bool:
    """Return True if a lock of another connection is the cause, which may pass."""
    return primary_code(error) in _BUSY


def retry_busy(
    call: Callable[[], R],
    env: Environment,
    deadline: float,
    leave_by: Callable[[], float] = lambda: float("inf"),
) -> R:
    """Run *call* until it meets no foreign lock; its own error after *deadline*.

    *leave_by* is asked each time: a drain may begin meanwhile, and ends the wait earlier.
    """
    # The loop is here, not in a busy timeout of SQLite: it ends early for a drain, and its sleep
    # goes through the environment, so that the simulation decides what happens meanwhile.
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or not env.monotonic() < min(deadline, leave_by()):
                raise
        env.sleep(limits.BUSY_RETRY_SECONDS)
