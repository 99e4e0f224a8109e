"""``gateway routes``: the chats, their sessions and their state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.gateway._store import folder_option, opened
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.formatting import plain, relative_time

if TYPE_CHECKING:
    from hermes_actor.gateway.store import SessionStore
    from hermes_actor.store.gateway.tables import StoredRoute

__all__ = ["routes"]


@click.command()
@folder_option
@json_option
@db_option
def routes(folder: Path | None, as_json: bool, db: Path | None) -> None:
    """List the chats, their sessions and their state.

    The state says what the next message meets: "open", "in turn", "suspended", "resume pending",
    or the reason of the reset that it will cause.

    Exit codes: 0, even if there is none.

    \b
    Examples:
      hermes-actor gateway routes
      hermes-actor gateway routes --json | jq -r '.[].session_id'
    """
    with opened(db, folder) as store:
        found = [_described(store, route) for route in store.routes()]
    found.sort(key=lambda one: -one["used_at"])
    lines = [
        f"{plain(one['key'])}\n    {plain(one['session_id'])}  {one['state']}"
        f"  {relative_time(one['used_at'])}"
        for one in found
    ]
    print_result(found, "\n".join(lines) or "no chats yet", as_json)


def _described(store: SessionStore, route: StoredRoute) -> dict[str, Any]:
    state = store.state(route.key)
    verdict = None if state is None else store.verdict(state)
    if state is not None and store.has_turn(state):
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
