"""``sessions prune``: delete old ended sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.options import db_option, dry_run_option, json_option, yes_option
from hermes_actor.cli.output.console import print_result, progress
from hermes_actor.cli.output.formatting import count
from hermes_actor.cli.sessions._bulk import confirm_bulk
from hermes_actor.cli.sessions._filters import TIME_FLAGS, filter_options, filters_of, find
from hermes_actor.store import queries

__all__ = ["prune"]

_DEFAULT_DAYS = 90


@click.command()
@filter_options
@click.option("--include-archived", is_flag=True, help="Delete archived sessions too.")
@dry_run_option
@yes_option
@json_option
@db_option
def prune(
    include_archived: bool, dry_run: bool, yes: bool, as_json: bool, db: Path | None, **given: Any
) -> None:
    """Delete old ended sessions.

    Without a time option, only sessions that started more than 90 days ago are deleted, whatever
    the other filters are. A session must match all filters. Sessions that have not ended are never
    deleted. Delegates, which newer files mark, are listed and deleted with the session that they
    worked for; while one of them is open, that session is kept.

    \b
    T is a number of days, a span such as 36h or 2w, or a date such as 2026-03-01.

    Exit codes: 0 done, or nothing matched; 1 declined, or a filter is invalid.

    \b
    Examples:
      hermes-actor sessions prune
      hermes-actor sessions prune --older-than 30 --source cron --dry-run
      hermes-actor sessions prune --before 2026-01-01 --max-messages 2 --yes
    """
    if all(given[flag] is None for flag in TIME_FLAGS):
        # Also beside other filters: a bare --source must not cost yesterday's conversations.
        given["older_than"] = str(_DEFAULT_DAYS)
    asked = filters_of(given)
    with open_store(db) as store:
        rows = find(store, asked, archived=None if include_archived else False)
        rows = store.query(queries.with_delegates, rows)
        if not confirm_bulk(
            rows, asked, "Delete", "deleted", dry_run=dry_run, yes=yes, as_json=as_json
        ):
            return
        with progress("deleting") as tell:
            ids = [row["id"] for row in rows if "delegate_of" not in row]
            removed = store.remove_sessions(
                ids, store.transcripts, lambda done: tell(done, len(rows))
            )
    print_result({"pruned": removed}, f"Pruned {count(len(removed), 'session')}.", as_json)
