"""``gateway watch``: end expired sessions, and keep derived files current."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_actor.cli.gateway._store import folder_option, opened
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.formatting import count

__all__ = ["watch"]


@click.command()
@click.option("--once", is_flag=True, help="Look once, and exit.")
@click.option(
    "--every", type=click.FloatRange(min=1), default=300.0, show_default=True, metavar="SECONDS",
    help="Time between two looks.",
)  # fmt: skip
@folder_option
@json_option
@db_option
def watch(once: bool, every: float, folder: Path | None, as_json: bool, db: Path | None) -> None:
    """End expired sessions and keep derived files current.

    Runs until Ctrl-C, beside a gateway or in its place. Sessions end by the reset policy of the
    settings; the hooks of installed packages are called first.

    Exit codes: 0 done, 130 interrupted.

    \b
    Examples:
      hermes-actor gateway watch
      hermes-actor gateway watch --once --json
    """
    from hermes_actor.gateway.watcher import Watcher

    with opened(db, folder) as store:
        watcher = Watcher(store, every=every, first=0.0)
        if not once:
            watcher.run()
            return
        finished = watcher.round()
    text = f"Ended {count(len(finished), 'expired session')}."
    print_result({"finished": finished}, text, as_json)
