"""``sessions delete`` and ``sessions rename``: one session, named by its id."""

from __future__ import annotations

from pathlib import Path

import click

from hermes_actor.cli.errors import fail
from hermes_actor.cli.formatting import plain, print_json
from hermes_actor.cli.opening import Store, opened
from hermes_actor.cli.output import confirm, db_option, json_option
from hermes_actor.errors import TitleInUse
from hermes_actor.store.deletion import delegates_of
from hermes_actor.store.titles import sanitize_title

__all__ = ["delete", "rename", "resolved"]


def resolved(store: Store, given: str) -> str:
    """The id that *given* means: exact, else the only one that begins so. Refuses otherwise."""
    found = store.resolve_session_id(given) if given else None
    if found is None:
        fail(f"Session '{given}' not found.", prefix="")
    return found


@click.command()
@click.argument("session_id", metavar="ID")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@db_option
def delete(session_id: str, yes: bool, as_json: bool, db: Path | None) -> None:
    """Delete a session and its messages.

    Its children stay and lose their parent. Its transcript files in HERMES_HOME/sessions are
    removed too.

    Exit codes: 0 deleted, 1 not found or declined.

    \b
    Examples:
      hermes-actor sessions delete 20260301_101010_aaaaaa
      hermes-actor sessions delete 20260301_1010 --yes
    """
    with opened(db) as store:
        found = resolved(store, session_id)
        confirm(_question(store, found), yes)
        if not store.delete_session(found, store.transcripts):
            fail(f"Session '{found}' not found.", prefix="")
    if as_json:
        print_json({"deleted": found})
    else:
        print(f"Deleted session '{plain(found)}'.")


def _question(store: Store, session_id: str) -> str:
    """What goes, so that it can be agreed to."""
    delegates = store.read(delegates_of, session_id)
    more = f", with the {len(delegates)} delegate(s) that worked for it" if delegates else ""
    return f"Delete session '{plain(session_id)}' and all its messages{more}?"


@click.command()
@click.argument("session_id", metavar="ID")
@click.argument("words", nargs=-1, required=True, metavar="TITLE...")
@json_option
@db_option
def rename(session_id: str, words: tuple[str, ...], as_json: bool, db: Path | None) -> None:
    """Give a session a title.

    The words need no quotes. A title of blanks only clears it. Of a conversation that was
    compressed, the latest part may take the title of an earlier one.

    Exit codes: 0 renamed, 1 not found, too long, or taken.

    \b
    Examples:
      hermes-actor sessions rename 20260301_1010 debugging auth flow
      hermes-actor sessions rename 20260301_1010 " "
    """
    with opened(db) as store:
        found = resolved(store, session_id)
        title = set_title(store, found, " ".join(words))
    if as_json:
        print_json({"id": found, "title": title})
    elif title is None:
        print(f"Session '{plain(found)}' has no title now.")
    else:
        print(f"Session '{plain(found)}' renamed to: {plain(title)}")


def set_title(store: Store, session_id: str, title: str) -> str | None:
    """Store a title and tell what was stored; refuses what is too long or taken."""
    try:
        clean = sanitize_title(title)
        if not store.move_session_title(session_id, title):
            fail(f"Session '{session_id}' not found.", prefix="")
    except (TitleInUse, ValueError) as error:
        fail(str(error))
    return clean
