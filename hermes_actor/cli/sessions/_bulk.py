"""Commands that change many sessions: preview, confirmation, and the archive mark."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hermes_actor.cli.command_store import CommandStore, open_store
from hermes_actor.cli.output.console import confirm, print_result, progress
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import clock_time, count, plain, print_json
from hermes_actor.cli.output.table import Column, table
from hermes_actor.cli.sessions._filters import filters_of, find, headline, summary
from hermes_actor.store.rows import Row

__all__ = ["confirm_bulk", "mark_sessions"]


_SHOWN = 15


def _title(row: Row) -> str:
    return f"delegate of {row['delegate_of']}" if "delegate_of" in row else row["title"] or ""


_COLUMNS = (
    Column("ID", lambda row: row["id"], 12, 1),
    Column("Started", lambda row: clock_time(row["started_at"]), 10, 2),
    Column("Src", lambda row: row["source"], 4, 3),
    Column("Model", lambda row: str(row["model"] or "—").rpartition("/")[2], 8, 5, optional=True),
    Column("Msgs", lambda row: row["message_count"] or 0, right=True),
    Column("Title", _title, 8, 4),
)


def confirm_bulk(
    rows: list[Row],
    asked: dict[str, Any],
    verb: str,
    done: str,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> bool:
    """Return True if the change is to be made; print everything else."""
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
    confirm(f"{verb} {count(len(rows), 'session')}, {_span(rows)}?", yes)
    return True


def mark_sessions(ids: Sequence[str], given: dict[str, Any], *, archived: bool) -> None:
    """Archive sessions, or show them again: those of *ids*, or those that filters select."""
    dry_run, yes, as_json = (given.pop(name) for name in ("dry_run", "yes", "as_json"))
    db, asked = given.pop("db"), filters_of(given)
    verb, done = ("Archive", "archived") if archived else ("Unarchive", "unarchived")
    if bool(ids) == bool(asked):
        fail(f"{verb.lower()} needs ids, or at least one filter, such as --older-than 30")
    with open_store(db) as store:
        if ids:
            found = [store.find_session(one) for one in ids]
        else:
            rows = find(store, asked, archived=not archived)
            if not confirm_bulk(rows, asked, verb, done, dry_run=dry_run, yes=yes, as_json=as_json):
                return
            found = [row["id"] for row in rows]
        if dry_run:
            print_result({"matched": found, "dry_run": True}, "\n".join(map(plain, found)), as_json)
            return
        marked = _mark(store, found, archived)
    print_result({done: marked}, f"{done.capitalize()} {count(len(marked), 'session')}.", as_json)


def _mark(store: CommandStore, ids: list[str], archived: bool) -> list[str]:
    marked: list[str] = []
    with progress("marking") as tell:
        for session_id in ids:
            marked += store.archive_session(session_id, archived)
            tell(len(marked), len(ids))
    return marked


def preview(rows: list[Row], asked: dict[str, Any], shown: int) -> list[str]:
    """Return lines with the matching sessions, oldest first, each with its delegates."""
    lines = [headline(rows, asked, f"; {_span(rows)}"), *table(_COLUMNS, rows[:shown])]
    if len(rows) > shown:
        lines.append(f"  … and {len(rows) - shown} more")
    return lines


def _span(rows: list[Row]) -> str:
    times = [row["started_at"] for row in rows]
    return f"oldest {clock_time(min(times))}, newest {clock_time(max(times))}"
