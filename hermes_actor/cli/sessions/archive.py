"""``sessions archive``: hide ended sessions from lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.errors import fail
from hermes_actor.cli.options import db_option, dry_run_option, json_option, yes_option
from hermes_actor.cli.output import print_result, progress
from hermes_actor.cli.sessions._bulk import confirm_bulk
from hermes_actor.cli.sessions._filters import filter_options, filters_of, find

__all__ = ["archive"]


@click.command()
@filter_options
@dry_run_option
@yes_option
@json_option
@db_option
def archive(dry_run: bool, yes: bool, as_json: bool, db: Path | None, **given: Any) -> None:
    """Hide ended sessions from lists.

    At least one filter is required. All parts of a compressed conversation are archived together.
    Archived sessions are still found by id, by search and by export, and prune leaves them alone.

    Exit codes: 0 done, or nothing matched; 1 declined, no filter, or an invalid one.

    \b
    Examples:
      hermes-actor sessions archive --older-than 30
      hermes-actor sessions archive --title importer --yes
    """
    asked = filters_of(given)
    if not asked:
        fail("archive needs at least one filter, such as --older-than 30")
    with open_store(db) as store:
        rows = find(store, asked, archived=False)
        if not confirm_bulk(
            rows, asked, "Archive", "archived", dry_run=dry_run, yes=yes, as_json=as_json
        ):
            return
        marked: list[str] = []
        with progress("archiving") as tell:
            for row in rows:
                marked += store.archive_session(row["id"])
                tell(len(marked), len(rows))
    print_result({"archived": marked}, f"Archived {len(marked)} session(s).", as_json)
