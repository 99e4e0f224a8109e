"""``sessions archive``: hide sessions from lists."""

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

__all__ = ["archive"]


@click.command()
@session_ids_argument
@filter_options
@dry_run_option
@yes_option
@json_option
@db_option
def archive(ids: tuple[str, ...], **given: Any) -> None:
    """Hide sessions from lists.

    Give ids, or at least one filter, which selects ended sessions only. All parts of a compressed
    conversation are archived together. Archived sessions are still found by id, by search and by
    export, `sessions list --archived` lists them, prune leaves them alone, and `sessions unarchive`
    shows them again.

    Exit codes: 0 done, or nothing matched; 1 declined, not found, no filter, or an invalid one.

    \b
    Examples:
      hermes-actor sessions archive 20260301_101010_aaaaaa
      hermes-actor sessions archive --older-than 30
      hermes-actor sessions archive --title importer --yes
    """
    mark_sessions(ids, given, archived=True)
