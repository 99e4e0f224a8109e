"""``hermes-actor update``: run an update without interrupting writers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import db_option, keep_option
from hermes_actor.cli.output.console import now_serving, print_error, waiting
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.safety.backup import copy_store
from hermes_actor.cli.store import creatable_paths, fail_no_store
from hermes_actor.client.control import ask_status, request_handoff
from hermes_actor.errors import AttachFailed, HandoffFailed, NotRunning
from hermes_actor.paths import StorePaths
from hermes_actor.recovery.restore import has_content
from hermes_protocol.features import PLAIN

if TYPE_CHECKING:
    from hermes_actor.attach.record import Record

__all__ = ["update"]


@click.command(context_settings={"allow_interspersed_args": False})
@db_option
@keep_option
@click.option(
    "--python", metavar="PATH", help="Python interpreter of the new build. Default: this one."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def update(db: Path | None, keep: int | None, python: str | None, command: Sequence[str]) -> int:
    """Run an update without interrupting writers.

    Backs up the store, runs COMMAND, hands the running actor off to the new code, and checks that
    the new actor serves. If COMMAND or the hand-off fails, the old actor continues. In a home that
    is attached, this is done for every database of the home, and the attachment is proved again
    with the hermes-agent that is installed then. Put options of this command before COMMAND.

    Exit codes: 0 the new build is serving (or no actor was running), 1 the hand-off or the proof
    failed, otherwise the exit code of COMMAND.

    \b
    Examples:
      hermes-actor update -- pip install --upgrade .
      hermes-actor update -- hermes update
      hermes-actor update --python ~/new/bin/python -- ~/new/bin/pip install .
    """
    paths = creatable_paths(db, PLAIN)
    if db is not None and not paths.db.exists():
        fail_no_store(db, paths)
    from hermes_actor.attach.record import record_of

    record = record_of(paths.db)
    stores = _stores(paths, record)
    for one in stores:
        if has_content(one):
            # Flushed now: COMMAND writes to the same stream.
            what = "the store" if one == paths else str(one.db)
            print(f"backed up {what} to {copy_store(one, keep)}", flush=True)
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        print_error(f"cannot run {command[0]}: {error.strerror}; the actor was not touched")
        # As a shell does.
        return 127 if isinstance(error, FileNotFoundError) else 126
    if code:
        print_error(f"the update command failed with exit code {code}; the actor was not touched")
        return code if code > 0 else exit_codes.REFUSED
    updated = [_hand_over(one, python or sys.executable) for one in stores]
    if not any(updated):
        print("no actor was running; the next client starts the new build")
    if record is not None:
        _renew(record)
    return exit_codes.OK


def _stores(paths: StorePaths, record: Record | None) -> list[StorePaths]:
    """Return the store, and the others of its home if that is attached."""
    from hermes_actor.attach.databases import databases_of

    others = databases_of(Path(record.home)) if record is not None else []
    return [paths, *(one for one in others if one != paths)]


def _hand_over(paths: StorePaths, python: str) -> bool:
    """Hand over to the new build; return False if no actor was running. Exits if it fails."""
    try:
        result = request_handoff(paths, python)
    except NotRunning:
        return False
    except HandoffFailed as error:
        fail(
            f"the new build could not take over {paths.db}, so the old actor continues: {error};"
            " fix the installation, then run: hermes-actor handoff"
        )
    status = ask_status(paths)
    if status is None or status.build != result["build"]:
        fail(f"the new build {result['build']} does not answer; see: hermes-actor logs")
    print(f"updated: {now_serving(paths, status.pid, status.build)}")
    return True


def _renew(record: Record) -> None:
    from hermes_actor.attach.attachment import renew

    with waiting(lambda: "proving that hermes stores through the actor"):
        try:
            renewed = renew(record)
        except AttachFailed as error:
            fail(f"{record.home} is no longer attached as it was: {error}")
    print(f"attached: hermes-agent {renewed.release} stores {renewed.home} through the actor")
