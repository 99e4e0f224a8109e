"""Session ids for the completion of shells: quickly, from the file alone, and never in the way.

A key that is pressed starts no actor, asks no server, waits for nothing and prints no error. And it
puts nothing on a command line that the shell would carry out: ids and titles are data of others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from hermes_actor.store.rows import Row

__all__ = ["complete_session"]

_RECENT = 200
"""Sessions that are looked at: those that a person can remember."""
_OFFERED = 50
_TITLE_CELLS = 60

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=/:-]*", re.ASCII)
"""Ids that mean themselves in every shell. Others can be typed, in quotes."""


def complete_session(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the newest sessions whose id begins with *incomplete*, with their titles.

    If there is none, those whose title begins so; the shell puts the id in its place.
    """
    try:
        archived = ctx.info_name == "unarchive"
        rows = list(_recent_sessions(ctx.params.get("db"), incomplete, archived=archived))
    except Exception:
        # Whatever is wrong with the store, the command itself will say it.
        return []
    given = ctx.params.get("ids") or ()
    rows = [row for row in rows if _SAFE.fullmatch(row["id"]) and row["id"] not in given]
    found = [row for row in rows if row["id"].startswith(incomplete)]
    if not found:
        wanted = incomplete.casefold()
        found = [row for row in rows if _title(row).casefold().startswith(wanted)]
    return [CompletionItem(row["id"], help=_described(row) or None) for row in found[:_OFFERED]]


def _title(row: Row) -> str:
    return str(row["title"] or "")


def _described(row: Row) -> str:
    from hermes_actor.cli.output.formatting import cut, plain

    return cut(" ".join(plain(row["title"] or row.get("preview") or "").split()), _TITLE_CELLS)


def _recent_sessions(db: Path | None, incomplete: str, *, archived: bool) -> Iterator[Row]:
    """Yield the newest sessions, and older ones whose id begins with *incomplete*."""
    # Late: completing a command needs none of it.
    from hermes_actor.cli.store import existing_paths, server_of
    from hermes_actor.client.reader import Reader
    from hermes_actor.store.inspection import identify
    from hermes_actor.store.sessions.listing import list_sessions
    from hermes_actor.store.sessions.page import Page
    from hermes_actor.store.sessions.sessions import ids_with_prefix

    if server_of(db) is not None:
        return
    with closing(Reader(existing_paths(db))) as reader:
        if reader.snapshot(identify).is_outdated:
            return  # only its owner can read it
        page = Page(None, None, _RECENT, 0, False, archived=archived)
        rows = reader.snapshot(list_sessions, page, True, "active")
        yield from rows
        known = {row["id"] for row in rows}
        if incomplete and not archived:
            for one in reader.snapshot(ids_with_prefix, incomplete, _OFFERED):
                if one not in known:
                    yield {"id": one, "title": None}
