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

    Every admitted request is committed and answered before the actor exits. Clients that are still
    connected start a new actor with their next call. "hermes-actor stop" does the same and takes a
    timeout.

    Exit codes: 0 stopped, 1 not stopped in time, 3 not running.

    \b
    Example:
      hermes-actor drain
    """
    return end_actor(paths_for(db), limits.DEFAULT_TIMEOUT_SECONDS, force=False, as_json=as_json)
