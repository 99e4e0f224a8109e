"""``sessions show``: everything about one session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.options import db_option, json_option, session_id_argument
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import (
    clip,
    clock_time,
    page,
    plain,
    print_json,
    relative_time,
    short_duration,
    styled,
    terminal_width,
    wrapped,
)
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.session_tree import TreeNode
from hermes_actor.tools.timestamps import seconds_between

__all__ = ["message_text", "show"]

_INDENT = 10
"""Cells of the name of a fact."""
_TOOL_LINES = 12
_TOOL_CELLS = 400


@click.command()
@session_id_argument
@click.option("--no-messages", is_flag=True, help="Leave out the messages.")
@click.option("--full", is_flag=True, help="Show long tool results whole.")
@json_option
@db_option
def show(session_id: str, no_messages: bool, full: bool, as_json: bool, db: Path | None) -> None:
    """Show one session: facts, relatives and messages.

    Results of tools are cut after a few lines, unless --full is given.

    Exit codes: 0 shown, 1 not found.

    \b
    Examples:
      hermes-actor sessions show 20260301_1010
      hermes-actor sessions show 20260301_1010 --no-messages
      hermes-actor sessions show 20260301_1010 --json | jq .messages
    """
    with open_store(db) as store:
        found = store.find_session(session_id)
        row = store.get_session(found)
        if row is None:
            fail(f"Session '{found}' not found.", prefix="")
        row["archived"] = store.query(queries.is_archived, found)
        relatives = store.query(queries.session_family, found)
        texts = [] if no_messages else store.get_messages(found)
    if as_json:
        tree = [relative._asdict() for relative in relatives]
        print_json({**row, "family": tree, **({} if no_messages else {"messages": texts})})
        return
    lines = [*_facts(row), "", *_tree(relatives, found)]
    for text in texts:
        lines += ["", *_message(text, full)]
    page("\n".join(lines))


def _facts(row: Row) -> list[str]:
    ended = "open"
    if row["ended_at"]:
        lasted = short_duration(seconds_between(row["started_at"], row["ended_at"]))
        ended = (
            f"{clock_time(row['ended_at'])} ({row['end_reason'] or 'no reason'}, after {lasted})"
        )
    tokens = (
        f"{row['input_tokens'] or 0:,} in, {row['output_tokens'] or 0:,} out,"
        f" {row['cache_read_tokens'] or 0:,} cache read, {row['cache_write_tokens'] or 0:,} cache"
        f" write, {row['reasoning_tokens'] or 0:,} reasoning"
    )
    facts = {
        "Session": row["id"],
        "Title": row["title"] or "—",
        "Source": f"{row['source']}, user {row['user_id']}" if row["user_id"] else row["source"],
        "Model": row["model"] or "—",
        "Started": f"{clock_time(row['started_at'])}{_age(row['started_at'])}",
        "Ended": ended,
        "Archived": "yes; show it in lists again: hermes-actor sessions unarchive ID"
        if row["archived"]
        else "",
        "Messages": f"{row['message_count'] or 0}, {row['tool_call_count'] or 0} tool calls",
        "Tokens": tokens,
        "Cost": _cost(row),
        "Folder": row.get("cwd") or "",
    }
    first, *others = [
        f"{name + ':':<{_INDENT}}{wrapped(plain(value), _INDENT)}"
        for name, value in facts.items()
        if value
    ]
    return [first[:_INDENT] + styled(first[_INDENT:], bold=True), *others]


def _age(moment: Any) -> str:
    """Return the age in brackets; one that is given as a date says nothing more."""
    age = relative_time(moment)
    return "" if clock_time(moment).startswith(age) else f" ({age})"


def _cost(row: Row) -> str:
    parts = [
        f"{kind} ${row[column]:.4f}"
        for kind, column in (("actual", "actual_cost_usd"), ("estimated", "estimated_cost_usd"))
        if row[column] is not None
    ]
    known, status = ", ".join(parts) or "unknown", row["cost_status"]
    return known if not status or status in known else f"{known} ({status})"


def _tree(relatives: list[TreeNode], found: str) -> list[str]:
    """Ancestors and descendants, indented by depth."""
    lines = ["Lineage:"]
    for relative in relatives:
        branch = "  " + "   " * (relative.depth - 1) + "└─ " if relative.depth else "  "
        title = f"  {plain(relative.title)}" if relative.title else ""
        line = f"{branch}{plain(relative.id)}  {clock_time(relative.started_at)}{title}"
        if relative.end_reason:
            line += f"  [{plain(relative.end_reason)}]"
        own = relative.id == found
        line = clip(line, terminal_width() - 3 * own)
        lines.append(styled(f"{line}  ←", bold=True) if own else line)
    return lines


def _message(row: Row, full: bool) -> list[str]:
    colour = {"user": "yellow", "assistant": "green", "tool": "cyan"}.get(row["role"], "magenta")
    who = plain(f"{row['role']} {row['tool_name']}" if row["tool_name"] else row["role"])
    head = styled(f"── {who} · {clock_time(row['timestamp'], '%Y-%m-%d %H:%M:%S')}", fg=colour)
    lines = [head]
    if row["content"] is not None:
        texts = message_text(row["content"]).split("\n")
        lines += texts if full or row["role"] != "tool" else _beginning(texts)
    for call in row["tool_calls"] or ():
        function = call.get("function") if isinstance(call, dict) else None
        function = function if isinstance(function, dict) else {}
        lines.append(plain(f"→ {function.get('name', '?')}({_arguments(function)})"))
    return lines


def _beginning(lines: list[str]) -> list[str]:
    """Return the first lines of a result, each cut, and a line that counts the rest."""
    shown = [clip(line, _TOOL_CELLS) for line in lines[:_TOOL_LINES]]
    if shown == lines:
        return lines
    characters = sum(map(len, lines))
    return [*shown, styled(f"… {characters:,} characters in all: --full shows them", dim=True)]


def _arguments(function: dict[str, Any]) -> str:
    """Return the arguments of a call as people read them, and not as JSON escapes them."""
    given = function.get("arguments", "")
    try:
        return json.dumps(json.loads(given), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(given)


def message_text(content: Any) -> str:
    """Content as text that a terminal can show: no escape sequences, parts named."""
    if isinstance(content, list):
        parts = []
        for part in content:
            if isinstance(part, dict) and part.get("type") == "text":
                parts.append(str(part.get("text") or ""))
            elif not isinstance(part, dict):
                parts.append(str(part))
            else:
                kind = str(part.get("type") or "part")
                parts.append("[image]" if "image" in kind else f"[{kind}]")
        content = " ".join(parts)
    return "\n".join(plain(line) for line in str(content).replace("\t", "    ").split("\n"))
