"""``hermes-actor title``: set, show and keep titles."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_actor.cli.command_store import CommandStore, open_store
from hermes_actor.cli.errors import fail
from hermes_actor.cli.formatting import plain, print_json
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.sessions.rename import set_title
from hermes_actor.errors import TitleInUse
from hermes_actor.store.sessions import ids_with_prefix
from hermes_actor.store.titles import sanitize_title
from hermes_actor.tools.titles import default_title, may_auto_title, post_process

if TYPE_CHECKING:
    from hermes_actor.store.rows import Row

__all__ = ["title"]


@click.command()
@click.argument("session_id", metavar="ID")
@click.argument("words", nargs=-1, metavar="[TITLE]...")
@click.option("--auto", is_flag=True, help="Name an untitled session after its first question.")
@click.option("--clear", is_flag=True, help="Remove the title, even one that is still queued.")
@json_option
@db_option
def title(
    session_id: str, words: tuple[str, ...], auto: bool, clear: bool, as_json: bool, db: Path | None
) -> None:
    """Show, set or clear the title of a session.

    Without TITLE it is shown. A title for a session that does not exist yet is queued, and set when
    the session is created.

    Exit codes: 0 done, 1 not found, too long, or taken.

    \b
    Examples:
      hermes-actor title 20260301_101010_aaaaaa
      hermes-actor title 20260301_101010_aaaaaa parser fix
      hermes-actor title --auto 20260301_101010_aaaaaa
    """
    if bool(words) + auto + clear > 1:
        raise click.UsageError("give words, or --auto, or --clear")
    with open_store(db, may_be_new=bool(words)) as store:
        found = _found(store, session_id)
        if auto:
            result = _auto(store, found, session_id)
        elif clear:
            result = _cleared(store, found, session_id)
        elif words:
            result = _named(store, found, session_id, " ".join(words))
        else:
            result = _shown(store, found, session_id)
    text = result.pop("text")
    if as_json:
        print_json(result)
    else:
        print(text)


def _found(store: CommandStore, given: str) -> str | None:
    """The session that exists; ``None`` if *given* is an id to come."""
    if not given.strip():
        fail(f"Session '{given}' not found.", prefix="")
    found = store.resolve_session_id(given)
    if found is None and store.read(ids_with_prefix, given, 1):
        fail(f"Several sessions begin with '{given}'.", prefix="")
    return found


def _shown(store: CommandStore, found: str | None, given: str) -> Row:
    current = store.get_session_title(found) if found else None
    kept = None if found else store.get_queued_title(given)
    if found is None and kept is None:
        fail(f"Session '{given}' not found.", prefix="")
    shown = f"Session: {plain(found or given)}\n"
    if current is not None:
        shown += f"Title: {plain(current)}"
    elif kept is not None:
        shown += f"Title (pending): {plain(kept)}"
    else:
        shown += f"No title. Set one: hermes-actor title {plain(shlex.quote(found or given))} TITLE"
    return {"id": found or given, "title": current, "pending": kept, "text": shown}


def _named(store: CommandStore, found: str | None, given: str, words: str) -> Row:
    try:
        clean = sanitize_title(words)
    except ValueError as error:
        fail(str(error))
    if clean is None:
        fail("nothing is left of this title after cleaning; --clear takes a title away")
    if found is not None:
        set_title(store, found, words)
        return {"id": found, "title": clean, "pending": None, "text": f"Title set: {clean}"}
    try:
        kept = store.queue_title(given, clean)
    except TitleInUse as error:
        fail(str(error))
    if not kept:  # it has just come into being
        set_title(store, given, words)
        return {"id": given, "title": clean, "pending": None, "text": f"Title set: {clean}"}
    text = f"Title queued: {clean} (saved with the first message of session '{plain(given)}')"
    return {"id": given, "title": None, "pending": clean, "text": text}


def _cleared(store: CommandStore, found: str | None, given: str) -> Row:
    if found is None:
        store.queue_title(given, None)
    else:
        store.set_session_title(found, None)
    text = f"Session '{plain(found or given)}' has no title now."
    return {"id": found or given, "title": None, "pending": None, "text": text}


def _auto(store: CommandStore, found: str | None, given: str) -> Row:
    if found is None:
        fail(f"Session '{given}' not found.", prefix="")
    current = store.get_session_title(found)
    if current is not None:
        text = f"Session '{plain(found)}' has a title: {plain(current)}"
        return {"id": found, "title": current, "set": False, "text": text}
    history = store.get_messages(found)
    if not may_auto_title(history):
        text = f"Session '{plain(found)}' is not titled: it has more than two questions."
        return {"id": found, "title": None, "set": False, "text": text}
    user = next((m["content"] for m in history if m["role"] == "user"), None)
    made = post_process(default_title(user)) if isinstance(user, str) else None
    stored = store.set_default_title(found, made) if made is not None else None
    if stored is None:
        text = f"Session '{plain(found)}' is not titled: there is no question to name it after."
        return {"id": found, "title": store.get_session_title(found), "set": False, "text": text}
    return {"id": found, "title": stored, "set": True, "text": f"Title set: {stored}"}
