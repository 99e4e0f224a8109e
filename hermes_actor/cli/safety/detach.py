"""``hermes-actor detach``: remove everything that hermes-actor added to the file."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_actor.cli.options import db_option, json_option, yes_option
from hermes_actor.cli.output.console import confirm, print_result, progress, waiting
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import existing_paths
from hermes_actor.recovery.detachment import connected_clients, detach_file
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
    if clients := connected_clients(paths):
        fail(f"stop the programs that are still connected first: {', '.join(clients)}")
    confirm(f"Remove everything that hermes-actor added to {paths.db}?", yes)
    step = ""

    def note(text: str) -> None:
        nonlocal step
        step = text

    with progress("indexing messages") as tell, waiting(lambda: step):
        gone = detach_file(paths, tell, note)
    print_result(
        {"database": str(paths.db), "removed": gone},
        f"removed everything that hermes-actor added to {paths.db};"
        f" you can delete the folder {paths.folder}",
        as_json,
    )
