"""``hermes-actor drain``: stop the actor once everything admitted is committed."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_actor import limits
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.stop import end_actor
from hermes_actor.cli.store import paths_for

__all__ = ["drain"]


@click.command()
@db_option
@json_option
def drain(db: Path | None, as_json: bool) -> int:
    """Stop the actor after it has answered all admitted requests.

    Everything that was admitted is committed and answered. Clients that are still there start
    another actor with their next call.

    Exit codes: 0 it has ended, 1 it has not ended in time, 3 not running.

    \b
    Example:
      hermes-actor drain
    """
    return end_actor(paths_for(db), limits.DEFAULT_TIMEOUT_SECONDS, force=False, as_json=as_json)
