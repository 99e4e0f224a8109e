"""``gateway resume``: have a chat go on in an earlier session."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_actor.cli.gateway._store import folder_option, opened, unknown_chat
from hermes_actor.cli.options import db_option, json_option, session_id_argument
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import plain

__all__ = ["resume"]


@click.command()
@click.argument("key", metavar="KEY")
@session_id_argument
@folder_option
@json_option
@db_option
def resume(key: str, session_id: str, folder: Path | None, as_json: bool, db: Path | None) -> None:
    """Have a chat go on in an earlier session.

    ID is a session id, or a unique prefix of one. The present session of the chat ends.

    Exit codes: 0 done, 1 no such chat or session.

    \b
    Examples:
      hermes-actor gateway resume agent:main:telegram:dm:100 20260301_1010
      hermes-actor gateway resume agent:main:telegram:dm:100 20260301_1010 --json
    """
    with opened(db, folder) as store:
        found = store.db.resolve_session_id(session_id) if session_id else None
        if found is None:
            fail(f"Session '{session_id}' not found.", prefix="")
        entry = store.switch_session(key, found)
    if entry is None:
        unknown_chat(key)
        return
    document = {"key": key, "session_id": entry.session_id}
    print_result(document, f"The chat is in session '{plain(entry.session_id)}' now.", as_json)
