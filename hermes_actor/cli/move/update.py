"""``hermes-actor update``: run an update without interrupting writers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import db_option, keep_option
from hermes_actor.cli.output.console import now_serving, print_error
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.safety.backup import copy_store
from hermes_actor.cli.store import creatable_paths, fail_no_store
from hermes_actor.client.control import ask_status, request_handoff
from hermes_actor.errors import HandoffFailed, NotRunning
from hermes_actor.recovery.restore import has_content
from hermes_protocol.features import PLAIN

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
    the new actor serves. If COMMAND or the hand-off fails, the old actor continues. Put options of
    this command before COMMAND.

    Exit codes: 0 the new build is serving (or no actor was running), 1 the hand-off failed,
    otherwise the exit code of COMMAND.

    \b
    Examples:
      hermes-actor update -- pip install --upgrade .
      hermes-actor update --python ~/new/bin/python -- ~/new/bin/pip install .
    """
    paths = creatable_paths(db, PLAIN)
    if db is not None and not paths.db.exists():
        fail_no_store(db, paths)
    if has_content(paths):
        # Flushed now: COMMAND writes to the same stream.
        print(f"backed up the store to {copy_store(paths, keep)}", flush=True)
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        print_error(f"cannot run {command[0]}: {error.strerror}; the actor was not touched")
        # As a shell does.
        return 127 if isinstance(error, FileNotFoundError) else 126
    if code:
        print_error(f"the update command failed with exit code {code}; the actor was not touched")
        return code if code > 0 else exit_codes.REFUSED
    try:
        result = request_handoff(paths, python or sys.executable)
    except NotRunning:
        print("no actor was running; the next client starts the new build")
        return exit_codes.OK
    except HandoffFailed as error:
        fail(
            f"the new build could not take over, so the old actor continues: {error}; fix the"
            " installation, then run: hermes-actor handoff"
        )
    status = ask_status(paths)
    if status is None or status.build != result["build"]:
        fail(f"the new build {result['build']} does not answer; see: hermes-actor logs")
    print(f"updated: {now_serving(paths, status.pid, status.build)}")
    return exit_codes.OK
