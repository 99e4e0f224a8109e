"""``hermes-actor title``: set, show and keep titles."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NoReturn

import click

from hermes_actor.cli.command_store import CommandStore, open_store
from hermes_actor.cli.options import db_option, json_option, session_id_argument
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import plain
from hermes_actor.cli.sessions.rename import set_title
from hermes_actor.errors import TitleInUse
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.title_text import sanitize_title
from hermes_actor.tools.titles import default_title, may_auto_title, post_process

__all__ = ["title"]


@click.command()
@session_id_argument
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
    print_result(*result, as_json)


_Result = tuple["Row", str]
"""The document of a result, and its text."""


def _found(store: CommandStore, given: str) -> str | None:
    """Return the session that exists; ``None`` if *given* is an id to come."""
    if not given.strip():
        _fail_not_found(given)
    found = store.resolve_session_id(given)
    if found is None and store.query(queries.ids_with_prefix, given, 1):
        fail(f"Several sessions begin with '{given}'.", prefix="")
    return found


def _fail_not_found(given: str) -> NoReturn:
    fail(f"Session '{given}' not found.", prefix="")


def _shown(store: CommandStore, found: str | None, given: str) -> _Result:
    current = store.get_session_title(found) if found else None
    kept = None if found else store.get_queued_title(given)
    if found is None and kept is None:
        _fail_not_found(given)
    if current is not None:
        shown = f"Title: {plain(current)}"
    elif kept is not None:
        shown = f"Title (pending): {plain(kept)}"
    else:
        shown = f"No title. Set one: hermes-actor title {plain(shlex.quote(found or given))} TITLE"
    document = {"id": found or given, "title": current, "pending": kept}
    return document, f"Session: {plain(found or given)}\n{shown}"


def _named(store: CommandStore, found: str | None, given: str, words: str) -> _Result:
    try:
        clean = sanitize_title(words)
        if clean is None:
            fail("nothing is left of this title after cleaning; --clear removes a title")
        if found is None and store.queue_title(given, clean):
            when = f"saved with the first message of session '{plain(given)}'"
            text = f"Title queued: {clean} ({when})"
            return {"id": given, "title": None, "pending": clean}, text
    except (TitleInUse, ValueError) as error:
        fail(str(error))
    # Not queued: the session exists, perhaps since a moment ago.
    set_title(store, found or given, words)
    return {"id": found or given, "title": clean, "pending": None}, f"Title set: {clean}"


def _cleared(store: CommandStore, found: str | None, given: str) -> _Result:
    if found is None:
        store.queue_title(given, None)
    else:
        store.set_session_title(found, None)
    text = f"Session '{plain(found or given)}' has no title now."
    return {"id": found or given, "title": None, "pending": None}, text


def _auto(store: CommandStore, found: str | None, given: str) -> _Result:
    if found is None:
        _fail_not_found(given)
    current, shown = store.get_session_title(found), f"Session '{plain(found)}'"
    if current is not None:
        document = {"id": found, "title": current, "set": False}
        return document, f"{shown} has a title: {plain(current)}"
    history = store.get_messages(found)
    if not may_auto_title(history):
        document = {"id": found, "title": None, "set": False}
        return document, f"{shown} is not titled: it has more than two questions."
    user = next((m["content"] for m in history if m["role"] == "user"), None)
    made = post_process(default_title(user)) if isinstance(user, str) else None
    stored = store.set_default_title(found, made) if made is not None else None
    if stored is None:
        document = {"id": found, "title": store.get_session_title(found), "set": False}
        return document, f"{shown} is not titled: there is no question to name it after."
    return {"id": found, "title": stored, "set": True}, f"Title set: {stored}"
