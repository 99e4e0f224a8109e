"""``hermes-actor detach``: remove everything that hermes-actor added to the file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from hermes_actor import limits
from hermes_actor.cli.options import db_option, json_option, yes_option
from hermes_actor.cli.output.console import confirm, print_result, progress, waiting
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import existing_paths
from hermes_actor.client.control import ask_status, has_owner, stop_actor
from hermes_actor.client.spawn import start_lock
from hermes_actor.paths import StorePaths
from hermes_actor.recovery.store_owner import index_fully, owned_writer
from hermes_protocol.features import PLAIN

__all__ = ["detach"]


@click.command()
@db_option
@yes_option
@json_option
def detach(db: Path | None, yes: bool, as_json: bool) -> None:
    """Remove everything that hermes-actor added to the file.

    Use it to go back to a program that opens the file by itself. The full-text indexes are
    completed and the actor is stopped; then every table and index whose name begins with
    hermes_actor_ is removed. With them go the archive marks of a file of version 11, and titles
    that are queued for a session to come. No session and no message is changed. It is refused while
    programs are connected, and names them, because their next call would undo it.

    Exit codes: 0 detached, 1 refused or declined.

    \b
    Example:
      hermes-actor detach
    """
    paths = existing_paths(db, PLAIN)
    if clients := _clients(paths):
        fail(f"stop the programs that are still connected first: {', '.join(clients)}")
    confirm(f"Remove everything that hermes-actor added to {paths.db}?", yes)
    from hermes_actor.engine.admin_tasks import detach as remove

    if has_owner(paths) and (status := ask_status(paths)) is not None:
        # While it is still served: a large backlog may take long.
        with progress("indexing messages") as tell:
            index_fully(paths, status.index.newest, tell)
    # No client may start the next actor before the file is detached.
    with start_lock(paths, time.monotonic() + limits.DEFAULT_TIMEOUT_SECONDS):
        with waiting(lambda: f"the actor of {paths.db} is stopping"):
            if has_owner(paths):
                stop_actor(paths, limits.DEFAULT_TIMEOUT_SECONDS)
        with waiting(lambda: "indexing the remaining messages"), owned_writer(paths) as writer:
            gone = remove(writer)
    print_result(
        {"database": str(paths.db), "removed": gone},
        f"removed everything that hermes-actor added to {paths.db};"
        f" you can delete the folder {paths.folder}",
        as_json,
    )


def _clients(paths: StorePaths) -> list[str]:
    status = ask_status(paths) if has_owner(paths) else None
    if status is None:
        return []
    return [f"pid {one.pid} ({one.name})" for one in status.clients(except_pid=os.getpid())]
