"""``gateway reset``: start another session for a chat."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_actor.cli.gateway._store import folder_option, opened, unknown_chat
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.formatting import plain

__all__ = ["reset"]


@click.command()
@click.argument("key", metavar="KEY")
@folder_option
@json_option
@db_option
def reset(key: str, folder: Path | None, as_json: bool, db: Path | None) -> None:
    """Start another session for a chat.

    The earlier session ends, and stays where it is; "gateway resume" goes back to it.

    Exit codes: 0 done, 1 no such chat.

    \b
    Examples:
      hermes-actor gateway reset agent:main:telegram:dm:100
      hermes-actor gateway reset agent:main:telegram:dm:100 --json
    """
    with opened(db, folder) as store:
        entry = store.reset_session(key)
    if entry is None:
        unknown_chat(key)
        return
    document = {"key": key, "session_id": entry.session_id}
    print_result(document, f"The chat is in session '{plain(entry.session_id)}' now.", as_json)
