"""``sessions list``: the newest sessions as a table."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import click

from hermes_actor.cli.errors import fail
from hermes_actor.cli.formatting import fit, page, print_json, relative_time, styled
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.store import ReadOnlyStore, open_read_only
from hermes_actor.sqlite import Connection
from hermes_actor.store import listing
from hermes_actor.store.inspection import has_column
from hermes_actor.store.rows import Row

__all__ = ["HIDDEN", "list_", "rows_of", "table"]

HIDDEN = ("tool",)
"""Sources that lists leave out unless they are asked for by name."""

_NONE = "—"


@click.command("list")
@click.option("--source", help="Show only sessions of this source, even a hidden one.")
@click.option(
    "--limit", type=int, default=20, show_default=True, help="Show at most this many sessions."
)
@click.option("--workspace", help="Show only sessions whose repository or folder contains this.")
@json_option
@db_option
def list_(
    source: str | None, limit: int, workspace: str | None, as_json: bool, db: Path | None
) -> None:
    """List the newest sessions.

    A compressed conversation is one row, with the id and the title of its latest part. Archived
    sessions and those of source `tool` are left out.

    Exit codes: 0, even if there is none; 1 the store cannot be read.

    \b
    Examples:
      hermes-actor sessions list
      hermes-actor sessions list --source telegram --limit 50
      hermes-actor sessions list --json | jq -r '.[].id'
    """
    with open_read_only(db) as store:
        rows = rows_of(store, source, limit, workspace)
    if as_json:
        print_json(rows)
    elif not rows:
        print(f"No sessions found in {store.path}.")
    else:
        page("\n".join(table(rows, by_workspace=workspace is not None)))


def rows_of(
    store: ReadOnlyStore, source: str | None, limit: int, workspace: str | None = None
) -> list[Row]:
    """The rows that a list of sessions shows."""

    def read(conn: Connection) -> list[Row]:
        if workspace is not None and not has_column(conn, "sessions", "git_repo_root"):
            fail(
                f"{store.path} does not record workspaces (it has no column git_repo_root);"
                " list without --workspace"
            )
        shown = listing.Page(source, None if source else HIDDEN, limit, 0, include_children=False)
        return listing.list_rich(conn, shown, True, False, workspace)

    return store.read(read)


def table(rows: list[Row], *, by_workspace: bool = False) -> list[str]:
    """Header, rule and rows; which columns there are depends on what the rows have."""
    titled = any(row["title"] for row in rows)
    by_workspace = by_workspace or any(_workspace(row) for row in rows)
    columns, rule = _layout(titled, by_workspace)
    header = " ".join(fit(name, pad) for name, pad, _, _ in columns)
    lines = [styled(header.rstrip(), bold=True), styled("─" * rule, dim=True)]
    now = time.time()
    for row in rows:
        cells = (fit(value(row, now), pad, cut) for _, pad, cut, value in columns)
        lines.append(" ".join(cells).rstrip())
    return lines


_Column = tuple[str, int, int | None, Callable[[dict[str, Any], float], object]]

_ACTIVE: _Column = ("Last Active", 13, None, lambda row, at: relative_time(row["last_active"], at))
_SOURCE: _Column = ("Src", 6, None, lambda row, _: row["source"])
_IDENTITY: _Column = ("ID", 0, None, lambda row, _: row["id"])
_PLACE: _Column = ("Workspace", 18, 16, lambda row, _: _workspace(row) or _NONE)


def _layout(titled: bool, by_workspace: bool) -> tuple[list[_Column], int]:
    def title(pad: int) -> _Column:
        return ("Title", pad, pad - 2, lambda row, _: row["title"] or _NONE)

    def preview(pad: int) -> _Column:
        return ("Preview", pad, pad - 2, lambda row, _: row["preview"])

    if by_workspace:
        if titled:
            return [title(28), _PLACE, _ACTIVE, _IDENTITY], 110
        return [preview(38), _PLACE, _ACTIVE, _SOURCE, _IDENTITY], 100
    if titled:
        return [title(32), preview(40), _ACTIVE, _IDENTITY], 110
    return [preview(50), _ACTIVE, _SOURCE, _IDENTITY], 95


def _workspace(row: Row) -> str:
    path = row.get("git_repo_root") or row.get("cwd")
    return PurePath(path).name or str(path) if path else ""
