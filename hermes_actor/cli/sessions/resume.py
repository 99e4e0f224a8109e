"""``hermes-actor resume``: find the session to go on with, and show where it stood."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Literal

import click

from hermes_actor import settings
from hermes_actor.cli.command_store import CommandStore, open_store
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import (
    coloured,
    count,
    plain,
    print_json,
    styled,
    wrapped,
)
from hermes_actor.cli.session_completion import complete_session
from hermes_actor.config import Config, load
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.tools.recap import Limits, recap_entries, recap_lines
from hermes_actor.tools.resume import Ambiguous, Target, latest, resolve, split_words, target
from hermes_actor.tools.timestamps import seconds_between

__all__ = ["resume", "resume_command"]

_COMMANDS = ("chat",)
"""Words that end a name: the commands of an agent, from whose command line names are copied."""

_COLOURS = {"text": "#FFF8DC", "user": "#DAA520", "border": "#8B8682", "assistant": "#8FBC8F"}


@click.command()
@click.option(
    "--continue", "-c", "name", is_flag=False, flag_value="", metavar="[NAME]",
    shell_complete=complete_session,
    help="Continue the latest session, or the one with this id or title.",
)  # fmt: skip
@click.option(
    "--resume", "-r", "value", metavar="SESSION", shell_complete=complete_session,
    help="Continue this session: an id, a title, or a unique prefix of an id.",
)  # fmt: skip
@click.option(
    "--hint", metavar="ID", shell_complete=complete_session,
    help="Print how to resume this session, and exit.",
)  # fmt: skip
@click.option(
    "--source", "sources", multiple=True,
    help="Sources that -c searches, in this order. Default: cli.",
)  # fmt: skip
@click.option("--minimal", is_flag=True, help="Show no recap.")
@click.option("--peek", is_flag=True, help="Do not reopen a session that has ended.")
@json_option
@db_option
@click.argument("words", nargs=-1)
def resume(
    name: str | None,
    value: str | None,
    hint: str | None,
    sources: tuple[str, ...],
    minimal: bool,
    peek: bool,
    as_json: bool,
    db: Path | None,
    words: tuple[str, ...],
) -> None:
    """Find the session to continue, and show where it stopped.

    Without a name, the most recently active session of source `cli` is used. A name needs no
    quotes; it is an id, a title (of numbered titles the latest), or a unique prefix of an id. A
    compressed conversation continues in its latest part. The session is reopened.

    With --json the conversation is printed in the form that models take, so that any agent can
    continue it.

    Exit codes: 0 found, 1 no such session, or several match.

    \b
    Examples:
      hermes-actor resume
      hermes-actor resume -c my project
      hermes-actor resume -r 20260301_1010 --json
      hermes-actor resume --hint 20260301_101010_aaaaaa
    """
    if name is not None and value is not None:
        raise click.UsageError("-c and -r exclude each other")
    with open_store(db) as store:
        if hint is not None:
            _hint(store, store.find_session(hint), as_json)
            return
        if value is not None and not value.strip():
            fail(f"Session not found: {value}", prefix="")
        given, _ = split_words([*filter(None, [name or value]), *words], _COMMANDS)
        asked = _asked(store, given, sources or ("cli",), by_name=value is None)
        found = target(store, asked)
        messages = store.get_messages_as_conversation(found.id, include_ancestors=False)
        row = store.get_session(found.id)
        assert row is not None
        if row["ended_at"] is not None and not peek:
            store.reopen_session(found.id)
        if as_json:
            facts = {key: row[key] for key in ("title", "source", "model", "system_prompt")}
            print_json({"session_id": found.id, **facts, "messages": messages})
            return
        _show(store, found, row, messages, minimal=minimal, peek=peek)


def _named(store: CommandStore, session_id: str) -> str:
    """Return the id of a session, with its title if it has one."""
    row = store.get_session(session_id)
    title = row["title"] if row else None
    return plain(f"{session_id}  {title}" if title else session_id)


def _asked(store: CommandStore, given: str, sources: tuple[str, ...], *, by_name: bool) -> str:
    if not given:
        found = latest(store, sources)
        if found is None:
            fail(f"No session of source {', '.join(sources)} to continue.", prefix="")
        return found
    try:
        found = resolve(store, given)
    except Ambiguous as error:
        listed = "".join(f"\n  {_named(store, one)}" for one in error.candidates)
        advice = "\nGive more of the id. All sessions: hermes-actor sessions list"
        fail(f"Several sessions begin with '{given}':{listed}{advice}", prefix="")
    if found is None and by_name:
        advice = "Use 'hermes-actor sessions list' to see the sessions there are."
        fail(f"No session found matching '{given}'.\n{advice}", prefix="")
    if found is None:
        fail(f"Session not found: {given}", prefix="")
    return found


def _show(
    store: CommandStore, found: Target, row: Row, messages: list[Row], *, minimal: bool, peek: bool
) -> None:
    if found.id != found.asked:
        print(styled(plain(f"Session {found.asked} goes on in {found.id}"), dim=True))
    total = [m for m in messages if m["role"] != "session_meta"]
    users = sum(m["role"] == "user" for m in messages)
    title = f' "{plain(row["title"])}"' if row["title"] else ""
    if not total:
        print(f"Session {plain(found.id)}{title} is empty; it starts fresh.")
        return
    counts = f"{count(users, 'user message')}, {len(total)} total messages"
    # Only looked at, it is as it was: ended, or open elsewhere.
    what = "Session" if peek else "↻ Resumed session"
    print(wrapped(f"{what} {plain(found.id)}{title} ({counts})"))
    config = load(store.home, "display")
    if minimal or config.read(settings.RESUME_DISPLAY) == "minimal":
        return
    _print_panel(recap_lines(recap_entries(messages, _limits(config))))


def _limits(config: Config) -> Limits:
    return Limits(
        exchanges=config.read(settings.RESUME_EXCHANGES),
        max_user_chars=config.read(settings.RESUME_MAX_USER_CHARS),
        max_assistant_chars=config.read(settings.RESUME_MAX_ASSISTANT_CHARS),
        max_assistant_lines=config.read(settings.RESUME_MAX_ASSISTANT_LINES),
        skip_tool_only=config.read(settings.RESUME_SKIP_TOOL_ONLY),
    )


def _print_panel(lines: list[tuple[str, str, str]]) -> None:
    if not lines:
        return
    from rich.box import ROUNDED
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    body = Text()
    for kind, label, text in lines:
        whose = "user" if kind == "user" else "assistant"
        dim = "" if kind == "final" else "dim "
        body.append(label, style=f"{dim}{_COLOURS[whose]}")
        body.append(f"{text}\n", style=f"{dim}{_COLOURS['text']}")
    panel = Panel(
        body, box=ROUNDED, title="Previous Conversation", padding=(0, 1),
        border_style=_COLOURS["border"],
    )  # fmt: skip
    colours: Literal["auto"] | None = "auto" if coloured() else None
    Console(color_system=colours, highlight=False).print(panel)


def resume_command(home: Path, session_id: str) -> list[str]:
    """The words of the command that goes on with a session; its id never becomes two of them."""
    template = load(home, "actor").read(settings.ACTOR_RESUME_COMMAND)
    try:
        words = shlex.split(template)
    except ValueError as error:
        fail(f"actor.resume_command: {error}: {template}")
    return [word.replace("{id}", session_id) for word in words]


def _hint(store: CommandStore, session_id: str, as_json: bool) -> None:
    row = store.get_session(session_id)
    assert row is not None
    facts: dict[str, Any] = _counted(store, row)
    command = shlex.join(resume_command(store.home, session_id))
    if as_json:
        print_json({"session_id": session_id, "title": row["title"], "command": command, **facts})
        return
    if not facts["messages"]:
        return
    counts = f"{facts['user_messages']} user, {facts['tool_calls']} tool calls"
    lines = ["Resume this session with:", f"  {plain(command)}", ""]
    lines += [f"Session:         {plain(session_id)}"]
    if row["title"]:
        lines.insert(2, f"  hermes -c {_quoted(plain(row['title']))}")
        lines.append(f"Title:           {plain(row['title'])}")
    lines.append(f"Duration:        {_duration(facts['duration'])}")
    print("\n".join([*lines, f"Messages:        {facts['messages']} ({counts})"]))


def _quoted(title: str) -> str:
    """*title* as one word of a shell; in double quotes, as people write it, where they do."""
    return shlex.quote(title) if set(title) & set('"$`\\!') else f'"{title}"'


def _counted(store: CommandStore, row: Row) -> dict[str, Any]:
    counts = store.query(queries.conversation_counts, row["id"])
    end = row["ended_at"] or counts.last or row["started_at"]
    return {
        "messages": counts.messages,
        "user_messages": counts.user_messages,
        "tool_calls": row["tool_call_count"] or 0,
        "duration": seconds_between(row["started_at"], end),
    }


def _duration(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h {minutes}m {rest}s"
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"
