"""``hermes-actor update`` and ``hermes-actor backup``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from hermes_actor import exits
from hermes_actor.backup import back_up, backup_path, weed
from hermes_actor.cli.handoff import hand_over
from hermes_actor.client.asking import ask_status
from hermes_actor.errors import HandoffFailed, NotRunning
from hermes_actor.paths import Place, default_db_path, place_of

__all__ = ["backup", "update"]

_KEPT = 5

_db = click.option(
    "--db", type=click.Path(path_type=Path), help="The file; default HERMES_HOME/state.db."
)
_keep = click.option(
    "--keep", type=click.IntRange(min=1), metavar="N", default=_KEPT, show_default=True,
    help="How many copies are kept.",
)  # fmt: skip


@click.command()
@_db
@_keep
@click.option("--to", type=click.Path(path_type=Path), help="Copy to this file; removes no other.")
def backup(db: Path | None, keep: int, to: Path | None) -> int:
    """Copy the store while it is in use, verify the copy, and keep the newest few.

    Nobody is stopped or slowed down. The copy is one file with everything that was acknowledged
    before it began.

    \b
    Examples:
      hermes-actor backup
      hermes-actor backup --to /mnt/usb/state.db
    """
    place = place_of(db or default_db_path())
    if not place.db.exists():
        print(f"Error: there is no store at {place.db}")
        return exits.REFUSED
    print(_copy(place, keep, to))
    return exits.OK


@click.command(context_settings={"ignore_unknown_options": True})
@_db
@_keep
@click.option(
    "--python", metavar="PATH", help="The interpreter that has the new build; default: this one."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def update(db: Path | None, keep: int, python: str | None, command: Sequence[str]) -> int:
    """Run an update command so that nobody who writes the store notices.

    Copies the store, runs COMMAND, hands the running actor over to the new code and asks the new
    one over its socket whether it serves. If COMMAND or the hand-off fails, the old actor serves
    on.

    Exit codes: 0 the new build serves (or none was running), 1 the hand-off failed, otherwise the
    exit code of COMMAND.

    \b
    Examples:
      hermes-actor update -- pip install --upgrade hermes-actor
      hermes-actor update --python ~/new/bin/python -- ~/new/bin/pip install hermes-actor
    """
    place = place_of(db or default_db_path())
    if place.db.exists():
        # Now, and not when we end: COMMAND writes to the same place.
        print(f"copied the store to {_copy(place, keep, None)}", flush=True)
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        print(f"Error: {error}; nothing was handed over")
        # As a shell says it.
        return 127 if isinstance(error, FileNotFoundError) else 126
    if code:
        print(f"Error: the update ended with {code}; nothing was handed over")
        return code if code > 0 else exits.REFUSED
    try:
        result = hand_over(place, python or sys.executable)
    except NotRunning:
        print("no actor was running; the next client starts the new build")
        return exits.OK
    except HandoffFailed as error:
        print(f"Error: the new build could not take over: {error}")
        print("the old actor serves on; mend the installation and run: hermes-actor handoff")
        return exits.REFUSED
    found = ask_status(place)
    if found is None or found["build"] != result["build"]:
        print(f"Error: the new build {result['build']} does not answer; see the log")
        return exits.REFUSED
    print(f"pid {found['pid']} serves {place.db} with build {found['build']}")
    return exits.OK


def _copy(place: Place, keep: int, to: Path | None) -> Path:
    target = to or backup_path(place.db)
    with _progress(f"copying {place.db.name}") as progress:
        back_up(place.db, target, progress)
    if to is None:
        weed(place.db, keep)
    return target


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
