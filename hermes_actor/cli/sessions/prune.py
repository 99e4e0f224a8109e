"""``sessions prune`` and ``sessions archive``: many ended sessions at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.errors import fail
from hermes_actor.cli.formatting import clock_time, cut, fit, plain, print_json
from hermes_actor.cli.opening import opened
from hermes_actor.cli.output import confirm, db_option, json_option, progress
from hermes_actor.cli.sessions.filters import TIME_FLAGS, filter_options, filters_of, find, summary
from hermes_actor.store.deletion import with_delegates

if TYPE_CHECKING:
    from hermes_actor.store.rows import Row

__all__ = ["archive", "preview", "prune"]

_DEFAULT_DAYS = 90
_SHOWN = 15


@click.command()
@filter_options
@click.option("--include-archived", is_flag=True, help="Archived sessions too.")
@click.option("--dry-run", is_flag=True, help="Show what would go; delete nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@db_option
def prune(
    include_archived: bool, dry_run: bool, yes: bool, as_json: bool, db: Path | None, **given: Any
) -> None:
    """Delete old ended sessions.

    Without a time flag only sessions that started more than 90 days ago are taken, whatever other
    filters there are. Filters are joined by AND. Sessions that have not ended are never touched.
    Delegates, which newer files mark, go with the session that they worked for, and are shown with
    it; while one of them is open, that session stays.

    \b
    T is a number of days, a span such as 36h or 2w, or a date such as 2026-03-01.

    Exit codes: 0 done, or nothing matched; 1 declined, or a filter is wrong.

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
    with opened(db) as store:
        rows = find(store, asked, archived=None if include_archived else False)
        rows = store.read(with_delegates, rows)
        if not _go_on(rows, asked, "Delete", "deleted", dry_run=dry_run, yes=yes, as_json=as_json):
            return
        with progress("deleting") as tell:
            ids = [row["id"] for row in rows if "delegate_of" not in row]
            removed = store.remove_sessions(
                ids, store.transcripts, lambda done: tell(done, len(rows))
            )
    if as_json:
        print_json({"pruned": removed})
    else:
        print(f"Pruned {len(removed)} session(s).")


@click.command()
@filter_options
@click.option("--dry-run", is_flag=True, help="Show what would be hidden; change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@db_option
def archive(dry_run: bool, yes: bool, as_json: bool, db: Path | None, **given: Any) -> None:
    """Hide ended sessions from lists.

    At least one filter is needed. Every part of a compressed conversation is hidden with it.
    Archived sessions are still found by id, by search and by export, and a prune leaves them alone.

    Exit codes: 0 done, or nothing matched; 1 declined, no filter, or a wrong one.

    \b
    Examples:
      hermes-actor sessions archive --older-than 30
      hermes-actor sessions archive --title importer --yes
    """
    asked = filters_of(given)
    if not asked:
        fail("archive needs at least one filter, such as --older-than 30")
    with opened(db) as store:
        rows = find(store, asked, archived=False)
        if not _go_on(
            rows, asked, "Archive", "archived", dry_run=dry_run, yes=yes, as_json=as_json
        ):
            return
        marked: list[str] = []
        with progress("archiving") as tell:
            for row in rows:
                marked += store.archive_session(row["id"])
                tell(len(marked), len(rows))
    if as_json:
        print_json({"archived": marked})
    else:
        print(f"Archived {len(marked)} session(s).")


def _go_on(
    rows: list[Row],
    asked: dict[str, Any],
    verb: str,
    done: str,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> bool:
    """Whether the change is to be made; everything else has been said then."""
    if as_json and (dry_run or not rows):
        print_json({"matched": [row["id"] for row in rows], "dry_run": dry_run})
        return False
    if not rows:
        print(f"No sessions match ({plain(summary(asked))}).")
        return False
    if dry_run:
        print("\n".join(preview(rows, asked, len(rows))))
        print(f"Dry run — nothing {done}.")
        return False
    if not yes:
        print("\n".join(preview(rows, asked, _SHOWN)), file=sys.stderr)
    confirm(f"{verb} {len(rows)} session(s), {_span(rows)}?", yes)
    return True


def preview(rows: list[Row], asked: dict[str, Any], shown: int) -> list[str]:
    """What matches, oldest first, each with the delegates that go with it."""
    lines = [f"{len(rows)} session(s) match ({plain(summary(asked))}; {_span(rows)}):"]
    for row in rows[:shown]:
        model = str(row["model"] or "-").rpartition("/")[2]
        count, title = row["message_count"] or 0, cut(plain(row["title"] or ""), 36)
        if "delegate_of" in row:
            title = f"delegate of {plain(row['delegate_of'])}"
        lines.append(
            f"  {plain(row['id'])}  {clock_time(row['started_at']):<17} {fit(row['source'], 10)}"
            f" {fit(model, 24, 24)} {count:>4} msgs  {title}"
        )
    if len(rows) > shown:
        lines.append(f"  … and {len(rows) - shown} more")
    return lines


def _span(rows: list[Row]) -> str:
    times = [row["started_at"] for row in rows]
    return f"oldest {clock_time(min(times))}, newest {clock_time(max(times))}"
