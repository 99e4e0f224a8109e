"""``sessions rename``: give a session a title."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_actor.cli.command_store import CommandStore, open_store
from hermes_actor.cli.options import db_option, json_option, session_id_argument
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import plain
from hermes_actor.errors import TitleInUse
from hermes_actor.store.sessions.title_text import sanitize_title

__all__ = ["rename", "set_title"]


@click.command()
@session_id_argument
@click.argument("words", nargs=-1, required=True, metavar="TITLE...")
@json_option
@db_option
def rename(session_id: str, words: tuple[str, ...], as_json: bool, db: Path | None) -> None:
    """Give a session a title.

    The words need no quotes. A blank title removes it. The latest part of a compressed conversation
    may take the title of an earlier part.

    Exit codes: 0 renamed, 1 not found, too long, or taken.

    \b
    Examples:
      hermes-actor sessions rename 20260301_1010 debugging auth flow
      hermes-actor sessions rename 20260301_1010 " "
    """
    with open_store(db) as store:
        found = store.find_session(session_id)
        title = set_title(store, found, " ".join(words))
    shown = "has no title now." if title is None else f"renamed to: {plain(title)}"
    print_result({"id": found, "title": title}, f"Session '{plain(found)}' {shown}", as_json)


def set_title(store: CommandStore, session_id: str, title: str) -> str | None:
    """Store a title and return it as it was stored; fail if it is too long or taken."""
    try:
        clean = sanitize_title(title)
        if not store.move_session_title(session_id, title):
            fail(f"Session '{session_id}' not found.", prefix="")
    except (TitleInUse, ValueError) as error:
        fail(str(error))
    return clean
