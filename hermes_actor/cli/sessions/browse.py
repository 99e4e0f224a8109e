"""``sessions browse``: pick a session and go on with it."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click

from hermes_actor.cli.command_store import CommandStore, open_store
from hermes_actor.cli.options import db_option
from hermes_actor.cli.output.errors import CommandError, fail
from hermes_actor.cli.output.formatting import (
    clip,
    clock_time,
    fit,
    plain,
    relative_time,
    terminal_width,
)
from hermes_actor.cli.sessions._picker import label
from hermes_actor.cli.sessions.list import listed_page
from hermes_actor.cli.sessions.rename import set_title
from hermes_actor.cli.sessions.resume import resume_command
from hermes_actor.errors import HermesActorError
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.tools.recap import recap_entries, recap_lines

__all__ = ["browse"]

_LIMIT = 500
_LABEL, _BESIDE = 50, 34
"""Widest title in the list of numbers, and the cells that the rest of its line takes."""


@click.command()
@click.option("--source", help="Show only sessions of this source, even a hidden one.")
@click.option(
    "--limit", type=int, default=_LIMIT, show_default=True, help="Show at most this many sessions."
)
@click.option("--print", "only_print", is_flag=True, help="Print the id instead of resuming.")
@db_option
def browse(source: str | None, limit: int, only_print: bool, db: Path | None) -> None:
    """Pick a session on the full screen and resume it.

    Type to filter. Enter resumes with the command in the setting actor.resume_command (default
    `hermes --resume {id}`), Tab shows the end of the conversation, Ctrl-R renames, Ctrl-D deletes,
    Esc quits. Without a terminal, choose by number.

    Exit codes: 0 chosen or cancelled, 1 the store cannot be read, or the command cannot be run.

    \b
    Examples:
      hermes-actor sessions browse
      hermes-actor resume -r "$(hermes-actor sessions browse --print)"
    """
    with open_store(db) as store:
        page = listed_page(source, limit or _LIMIT)
        rows = store.query(queries.list_sessions, page, True, "active")
        # With --print a program may read standard output; people look at the other one.
        talk = sys.stderr if only_print else sys.stdout
        if not rows:
            print(f"No sessions found in {store.address}.", file=talk)
            return
        found = _on_screen(store, rows) if _has_screen() else _by_number(rows, talk)
        command = resume_command(store.home, found["id"]) if found else []
    if found is None:
        print("Cancelled.", file=talk)
    elif only_print:
        print(found["id"])
    else:
        print(f"Resuming session: {plain(found['id'])}", flush=True)
        _become(command)


def _become(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        reason = error.strerror
    except IndexError:
        reason = "it is empty"
    except ValueError as error:  # a NUL in the id
        reason = str(error)
    shown = shlex.join(command)
    fail(f"cannot run {shown!r}: {reason}; set actor.resume_command, or use --print")


# --- the whole screen ------------------------------------------------------------------------


def _has_screen() -> bool:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        return False
    try:
        import curses

        curses.setupterm()
    except Exception:  # no curses in this Python, or no description of this terminal
        return False
    return True


def _on_screen(store: CommandStore, rows: list[Row]) -> Row | None:
    from hermes_actor.cli.sessions._picker_screen import pick

    def preview(row: Row) -> list[str]:
        facts = f"{row['id']}  {row['source']}  {clock_time(row['started_at'])}"
        messages = store.get_messages_as_conversation(row["id"], include_ancestors=False)
        recap = recap_lines(recap_entries(messages))
        return [label(row), facts, "", *(who + text for _, who, text in recap)]

    def rename(row: Row, title: str) -> str:
        with _footer() as lines:
            row["title"] = set_title(store, row["id"], title)
            lines.append(f"Renamed to: {row['title'] or '(no title)'}")
        return lines[-1]

    def delete(row: Row) -> str:
        with _footer() as lines:
            store.delete_session(row["id"], store.transcripts)
            lines.append(f"Deleted session '{row['id']}'.")
        return lines[-1]

    store.quiet()
    return pick(rows, preview, rename, delete)


@contextlib.contextmanager
def _footer() -> Iterator[list[str]]:
    """Collect the text for the bottom line; an error becomes text, so the screen stays up."""
    lines: list[str] = []
    try:
        yield lines
    except CommandError as error:
        lines.append(error.message)
    except HermesActorError as error:
        lines.append(f"Error: {error}")


# --- numbers ---------------------------------------------------------------------------------


def _by_number(rows: list[Row], talk: IO[str]) -> Row | None:
    print("\n  Browse sessions  (enter number to resume, q to cancel)\n", file=talk)
    now, room = time.time(), min(_LABEL, max(10, terminal_width() - _BESIDE))
    for number, row in enumerate(rows, 1):
        active = relative_time(row["last_active"], now)
        line = f"  {number:>3}. {fit(label(row), room, room)}  {active:<10}  {plain(row['source'])}"
        print(clip(line, terminal_width()), file=talk)
    print(file=talk)
    while True:
        print(f"  Select [1-{len(rows)}]: ", end="", file=talk, flush=True)
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            answer = ""
        word = answer.strip()
        if word.lower() in ("", "q", "quit", "exit"):
            print(file=talk)
            return None
        if word.isdecimal() and 1 <= int(word) <= len(rows):
            return rows[int(word) - 1]
        print(f"  Please enter a number between 1 and {len(rows)}, or q.", file=talk)
