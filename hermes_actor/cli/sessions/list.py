"""``sessions list``: sessions as a table that fits the terminal."""

from __future__ import annotations

import time
from pathlib import Path, PurePath
from typing import get_args

import click

from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.formatting import (
    page,
    print_json,
    relative_time,
    styled,
    terminal_width,
)
from hermes_actor.cli.output.table import Column, table
from hermes_actor.cli.store import open_read_only
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions import listing
from hermes_actor.store.sessions.page import Order, Page

__all__ = ["HIDDEN", "list_", "listed_page"]

_ANSWERED_BY = listing  # imported for its answer

HIDDEN = ("tool",)
"""Sources that lists leave out unless they are asked for by name."""

_NONE = "—"
_WIDE = 100
_ID = 24
"""Cells of all ids but those of chats, which name the chat."""
"""Columns from which on title and preview have a place of their own."""


@click.command("list")
@click.option("--source", help="Show only sessions of this source, even a hidden one.")
@click.option(
    "--limit", type=int, default=20, show_default=True, help="Show at most this many sessions."
)
@click.option(
    "--sort", "order", type=click.Choice(get_args(Order)), default="active", show_default=True,
    help="Latest activity, latest start, or most messages first.",
)  # fmt: skip
@click.option("--archived", is_flag=True, help="Show archived sessions, and no others.")
@click.option("--workspace", help="Show only sessions whose repository or folder contains this.")
@json_option
@db_option
def list_(
    source: str | None,
    limit: int,
    order: Order,
    archived: bool,
    workspace: str | None,
    as_json: bool,
    db: Path | None,
) -> None:
    """List the newest sessions.

    A compressed conversation is one row, with the id and the title of its latest part. Archived
    sessions and those of source `tool` are left out. The table takes the width of the terminal.

    Exit codes: 0, even if there is none; 1 the store cannot be read.

    \b
    Examples:
      hermes-actor sessions list
      hermes-actor sessions list --source telegram --limit 50
      hermes-actor sessions list --sort messages
      hermes-actor sessions list --archived
      hermes-actor sessions list --json | jq -r '.[].id'
    """
    # One more than shown tells whether there are more.
    asked = listed_page(source, limit + 1 if limit >= 0 else limit, archived, workspace)
    with open_read_only(db) as store:
        rows = store.query(queries.list_sessions, asked, True, order)
        address = store.address
    shown = rows[:limit] if limit >= 0 else rows
    if as_json:
        print_json(shown)
    elif not shown:
        print(f"No {'archived ' if archived else ''}sessions found in {address}.")
    else:
        lines = table(_columns(shown, workspace is not None), shown)
        if len(rows) > len(shown):
            lines.append(styled(f"There are more: --limit {2 * limit} shows them.", dim=True))
        page("\n".join(lines))


def listed_page(
    source: str | None, limit: int, archived: bool = False, workspace: str | None = None
) -> Page:
    """Return the selection of a list; without a source the hidden ones are left out."""
    hidden = None if source else HIDDEN
    return Page(source, hidden, limit, 0, False, archived=archived, workspace=workspace)


def _columns(rows: list[Row], by_workspace: bool) -> list[Column]:
    now, wide = time.time(), terminal_width() >= _WIDE
    titled = any(row["title"] for row in rows)
    columns = []
    if wide and titled:
        columns.append(Column("Title", lambda row: row["title"] or _NONE, 16, 9, good=28))
    if wide:
        columns.append(Column("Preview", _preview, 10, 8, titled, good=24))
    else:
        # One of both: the title, which a person chose, says more.
        name = "Title / Preview" if titled else "Preview"
        columns.append(Column(name, lambda row: row["title"] or _preview(row), 10, 8, good=24))
    if by_workspace or (wide and any(map(_workspace, rows))):
        columns.append(Column("Workspace", lambda row: _workspace(row) or _NONE, 8, 7))
    return [
        *columns,
        Column("Src", lambda row: row["source"], 4, 6, good=8),
        Column("Msgs", lambda row: row["message_count"] or 0, right=True),
        Column("Active", lambda row: relative_time(row["last_active"], now)),
        Column("ID", lambda row: row["id"], 12, 1, good=_ID),
    ]


def _preview(row: Row) -> str:
    """Return the preview with the mark of a cut that tables use."""
    text: str = row["preview"] or _NONE
    return f"{text.removesuffix('...')}…" if text.endswith("...") else text


def _workspace(row: Row) -> str:
    path = row.get("git_repo_root") or row.get("cwd")
    return PurePath(path).name or str(path) if path else ""
