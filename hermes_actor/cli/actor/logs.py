"""``hermes-actor logs``: what the actor of a store has said."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import db_option
from hermes_actor.cli.output.console import print_error
from hermes_actor.cli.store import paths_for

__all__ = ["logs"]

_FOLLOW_SECONDS = 0.2
"""Between two looks at a log that is followed."""


@click.command()
@db_option
@click.option("--follow", "-f", is_flag=True, help="Keep printing new lines.")
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), metavar="N", default=50, show_default=True,
    help="Number of lines to show.",
)  # fmt: skip
def logs(db: Path | None, follow: bool, lines: int) -> int:
    """Show the log of the actor.

    The oldest line comes first. This is the log of actors that were started on demand, and of
    successors. An actor that a service manager runs logs to its manager: journalctl --user -u
    hermes-actor. The log never contains the text of a message.

    Exit codes: 0 shown, 1 there is no log.

    \b
    Examples:
      hermes-actor logs -n 200
      hermes-actor logs -f
    """
    paths = paths_for(db)
    try:
        file = paths.log.open("rb")
    except FileNotFoundError:
        print_error(f"there is no log at {paths.log}: no actor of {paths.db} was started on demand")
        return exit_codes.REFUSED
    for line in _newest(paths.log, file, lines):
        print(line, flush=follow)
    if not follow:
        file.close()
        return exit_codes.OK
    for text in _from_now_on(paths.log, file):
        print(text, end="", flush=True)
    return exit_codes.OK


def _newest(log: Path, file: BinaryIO, count: int) -> list[str]:
    """The newest *count* lines of *file*, which is at *log*, and of those rotated away before."""
    found = file.read().decode("utf-8", "replace").splitlines()
    for path in (log.with_name(f"{log.name}.{number}") for number in (1, 2, 3)):
        if len(found) >= count:
            break
        with contextlib.suppress(FileNotFoundError):
            found = [*path.read_text("utf-8", "replace").splitlines(), *found]
    return found[len(found) - min(count, len(found)) :]


def _from_now_on(log: Path, file: BinaryIO) -> Iterator[str]:
    """Yield what is added to *file*, opened from *log*, across rotations. Ends with Ctrl-C."""
    try:
        while True:
            text = file.read()
            if text:
                yield text.decode("utf-8", "replace")
                continue
            with contextlib.suppress(FileNotFoundError):
                if log.stat().st_ino != os.fstat(file.fileno()).st_ino:
                    file.close()
                    file = log.open("rb")
                    continue
            time.sleep(_FOLLOW_SECONDS)
    finally:
        file.close()
