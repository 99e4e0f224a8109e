"""``gateway routes``: the chats, their sessions and their state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.gateway._store import folder_option, opened_to_read
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.formatting import plain, relative_time, terminal_width
from hermes_actor.cli.output.table import Column, table

if TYPE_CHECKING:
    from hermes_actor.gateway.chats import Chats
    from hermes_actor.store.gateway.tables import StoredRoute

__all__ = ["routes"]

_WIDE = 100
"""From this width a chat has one line; below it the key alone fills one, and keys are copied."""

_COLUMNS = [
    Column("Chat", lambda one: one["key"], 20, 9, good=44),
    Column("Session", lambda one: one["session_id"], 12, 8, good=24),
    Column("State", lambda one: one["state"], 8, 7),
    Column("Used", lambda one: relative_time(one["used_at"])),
]


@click.command()
@folder_option
@json_option
@db_option
def routes(folder: Path | None, as_json: bool, db: Path | None) -> None:
    """List the chats, their sessions and their state.

    The state says what the next message meets: "open", "in turn", "suspended", "resume pending",
    or the reason of the reset that it will cause. "not imported": the chat is in a
    sessions.json of another program, which the first message imports. Listing changes nothing.

    Exit codes: 0, even if there is none.

    \b
    Examples:
      hermes-actor gateway routes
      hermes-actor gateway routes --json | jq -r '.[].session_id'
    """
    with opened_to_read(db, folder) as chats:
        found = [_described(chats, route) for route in chats.routes()]
        if not found:
            found = _to_import(chats)
    found.sort(key=lambda one: -one["used_at"])
    lines = table(_COLUMNS, found) if terminal_width() >= _WIDE else [*map(_two_lines, found)]
    if not found:
        lines = []
    print_result(found, "\n".join(lines) or "no chats yet", as_json)


def _two_lines(one: dict[str, Any]) -> str:
    used = relative_time(one["used_at"])
    return f"{plain(one['key'])}\n    {plain(one['session_id'])}  {one['state']}  {used}"


def _to_import(chats: Chats) -> list[dict[str, Any]]:
    """Return the chats of an index file that nothing has imported yet."""
    from hermes_actor.gateway.import_index import read_index

    file = chats.sessions_dir / "sessions.json"
    if not file.is_file():
        return []
    return [
        {
            "key": key,
            "session_id": entry.session_id,
            "platform": entry.platform,
            "state": "not imported",
            "used_at": entry.updated_at.timestamp(),
        }
        for key, entry in read_index(file).items()
    ]


def _described(chats: Chats, route: StoredRoute) -> dict[str, Any]:
    state = chats.state(route.key)
    verdict = None if state is None else chats.verdict(state)
    if state is not None and chats.has_turn(state):
        shown = "in turn"
    elif verdict is not None:
        shown = "suspended" if verdict == "suspended" else f"resets: {verdict}"
    else:
        shown = "resume pending" if route.entry.get("resume_pending") else "open"
    return {
        "key": route.key,
        "session_id": route.entry["session_id"],
        "platform": route.entry.get("platform"),
        "state": shown,
        "used_at": route.updated_at,
    }
