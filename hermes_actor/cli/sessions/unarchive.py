"""``sessions unarchive``: show archived sessions in lists again."""

from __future__ import annotations

from typing import Any

import click

from hermes_actor.cli.options import (
    db_option,
    dry_run_option,
    json_option,
    session_ids_argument,
    yes_option,
)
from hermes_actor.cli.sessions._bulk import mark_sessions
from hermes_actor.cli.sessions._filters import filter_options

__all__ = ["unarchive"]


@click.command()
@session_ids_argument
@filter_options
@dry_run_option
@yes_option
@json_option
@db_option
def unarchive(ids: tuple[str, ...], **given: Any) -> None:
    """Show archived sessions in lists again.

    Give ids, or at least one filter. All parts of a compressed conversation come back together.

    Exit codes: 0 done, or nothing matched; 1 declined, not found, no filter, or an invalid one.

    \b
    Examples:
      hermes-actor sessions unarchive 20260301_101010_aaaaaa
      hermes-actor sessions unarchive --title importer --yes
      hermes-actor sessions list --archived
    """
    mark_sessions(ids, given, archived=False)
