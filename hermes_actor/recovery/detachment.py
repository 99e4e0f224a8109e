"""Detachment of a file: everything that its owners have added is removed again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hermes_actor import limits
from hermes_actor.client.control import ask_status, has_owner, stop_actor
from hermes_actor.client.spawn import start_lock
from hermes_actor.paths import StorePaths
from hermes_actor.recovery.store_owner import index_fully, owned_writer

__all__ = ["connected_clients", "detach_file"]


def connected_clients(paths: StorePaths) -> list[str]:
    """Return the programs that are connected to the actor of *paths*, for people."""
    status = ask_status(paths) if has_owner(paths) else None
    if status is None:
        return []
    return [f"pid {one.pid} ({one.name})" for one in status.clients(except_pid=os.getpid())]


def detach_file(
    paths: StorePaths,
    indexed: Callable[[int, int], None] = lambda _done, _total: None,
    on_step: Callable[[str], None] = lambda _step: None,
) -> list[str]:
    """Stop the actor of *paths* and remove its tables and indexes; return their names.

    *indexed* gets the progress of the full-text indexes while the file is still served; *on_step*
    gets what the call waits for. No client can start the next actor before the file is detached.
    """
    from hermes_actor.engine.admin_tasks import detach as remove

    if has_owner(paths) and (status := ask_status(paths)) is not None:
        # While it is still served: a large backlog may take long.
        index_fully(paths, status.index.newest, indexed)
    with start_lock(paths, time.monotonic() + limits.DEFAULT_TIMEOUT_SECONDS):
        on_step(f"the actor of {paths.db} is stopping")
        if has_owner(paths):
            stop_actor(paths, limits.DEFAULT_TIMEOUT_SECONDS)
        on_step("indexing the remaining messages")
        with owned_writer(paths) as writer:
            return remove(writer)
