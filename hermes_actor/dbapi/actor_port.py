"""The client through which the connections of this process reach an actor."""

from __future__ import annotations

import contextlib
import queue
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.client.actor_client import ActorClient, acquire
from hermes_actor.dbapi.errors import as_sqlite3
from hermes_actor.errors import HermesActorError

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["abandon", "end_abandoned", "open_port"]

_abandoned: queue.SimpleQueue[ActorClient] = queue.SimpleQueue()
"""Uses of clients whose connection was collected: ended later, because a collection can strike a
thread that holds the locks of the client. Their leases end by themselves."""


def open_port(paths: StorePaths, timeout: float) -> ActorClient:
    """Return the client of the actor of *paths*, which is started if there is none.

    A file that has no kind yet becomes a plain one. A start may take longer than *timeout*, which
    is about the locks of others. Raises classes of ``sqlite3``.
    """
    with as_sqlite3():
        return acquire(paths, max(timeout, limits.DEFAULT_TIMEOUT_SECONDS), kind="plain")


def abandon(client: ActorClient) -> None:
    """End a use at the next opportunity. Takes no lock."""
    _abandoned.put(client)


def end_abandoned() -> None:
    """End what was abandoned."""
    if _abandoned.empty():
        return
    with contextlib.suppress(queue.Empty):
        while True:
            client = _abandoned.get_nowait()
            with contextlib.suppress(HermesActorError, OSError):
                client.release()
