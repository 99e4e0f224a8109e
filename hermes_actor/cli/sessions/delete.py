"""``sessions delete``: delete a session and its messages."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_actor.cli.command_store import CommandStore, open_store
from hermes_actor.cli.options import db_option, json_option, session_id_argument, yes_option
from hermes_actor.cli.output.console import confirm, print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import count, plain
from hermes_actor.store import queries

__all__ = ["delete"]


@click.command()
@session_id_argument
@yes_option
@json_option
@db_option
def delete(session_id: str, yes: bool, as_json: bool, db: Path | None) -> None:
    """Delete a session and its messages.

    Its children are kept, without a parent. Its transcript files in HERMES_HOME/sessions are
    deleted too.

    Exit codes: 0 deleted, 1 not found or declined.

    \b
    Examples:
      hermes-actor sessions delete 20260301_101010_aaaaaa
      hermes-actor sessions delete 20260301_1010 --yes
    """
    with open_store(db) as store:
        found = store.find_session(session_id)
        confirm(_question(store, found), yes)
        if not store.delete_session(found, store.transcripts):
            fail(f"Session '{found}' not found.", prefix="")
    print_result({"deleted": found}, f"Deleted session '{plain(found)}'.", as_json)


def _question(store: CommandStore, session_id: str) -> str:
    """Return the question, which names everything that is deleted."""
    delegates = store.query(queries.delegates_of, session_id)
    worked = count(len(delegates), "delegate")
    more = f", with {worked} that worked for it" if delegates else ""
    return f"Delete session '{plain(session_id)}' and all its messages{more}?"
