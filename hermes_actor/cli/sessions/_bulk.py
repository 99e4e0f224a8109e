"""Preview and confirmation of commands that change many sessions."""

from __future__ import annotations

import sys
from typing import Any

from hermes_actor.cli.formatting import clock_time, cut, fit, plain, print_json
from hermes_actor.cli.output import confirm
from hermes_actor.cli.sessions._filters import summary
from hermes_actor.store.rows import Row

__all__ = ["confirm_bulk", "preview"]


_SHOWN = 15


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
    confirm(f"{verb} {len(rows)} session(s), {_span(rows)}?", yes)
    return True


def preview(rows: list[Row], asked: dict[str, Any], shown: int) -> list[str]:
    """Return lines with the matching sessions, oldest first, each with its delegates."""
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
