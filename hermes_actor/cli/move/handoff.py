"""``hermes-actor handoff``: give the store to the code that is on disk now."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.console import now_serving, print_result, waiting_for
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.store import paths_for
from hermes_actor.client.control import request_handoff
from hermes_actor.errors import HandoffFailed, NotRunning

__all__ = ["handoff"]


@click.command()
@db_option
@click.option("--python", metavar="PATH", help="Python interpreter of the new build.")
@click.option(
    "--allow-older", metavar="PATH", help="Go back to the older build of this Python interpreter."
)
@json_option
def handoff(db: Path | None, python: str | None, allow_older: str | None, as_json: bool) -> int:
    """Switch the actor to new code without interrupting writers.

    Clients notice nothing. If the new build cannot take over, the old actor continues and this
    command says why. If no actor is running there is nothing to hand off: the next client starts
    the new code. "restart" applies new settings, "update" runs an update command as well.

    Exit codes: 0 the successor is serving, 1 it failed and the old actor continues, 3 not running.

    \b
    Examples:
      hermes-actor handoff
      hermes-actor handoff --python ~/new-env/bin/python
      hermes-actor handoff --allow-older ~/old-env/bin/python
    """
    paths = paths_for(db)
    chosen = allow_older or python or sys.executable
    try:
        with waiting_for(paths):
            result = request_handoff(paths, chosen, allow_older=allow_older is not None)
    except NotRunning as error:
        print_result(
            {"error": str(error)}, f"not running: {error}; the next client starts one", as_json
        )
        return exit_codes.NOT_RUNNING
    except HandoffFailed as error:
        fail(f"the hand-off failed and nothing has changed: {error}")
    serving = now_serving(paths, result["pid"], result["build"])
    print_result(result, f"handed off: {serving}", as_json)
    return exit_codes.OK
