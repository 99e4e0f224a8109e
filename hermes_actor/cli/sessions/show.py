"""``sessions show``: everything about one session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.formatting import (
    clock_time,
    page,
    plain,
    print_json,
    relative_time,
    short_duration,
    styled,
)
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.sqlite import Connection
from hermes_actor.store import messages as stored
from hermes_actor.store.rows import Row
from hermes_actor.store.session_tree import TreeNode, family
from hermes_actor.store.sessions import get_session
from hermes_actor.tools.timestamps import seconds_between

__all__ = ["message_text", "show"]


@click.command()
@click.argument("session_id", metavar="ID")
@click.option("--no-messages", is_flag=True, help="Leave out the messages.")
@json_option
@db_option
def show(session_id: str, no_messages: bool, as_json: bool, db: Path | None) -> None:
    """Show one session: facts, relatives and messages.

    Exit codes: 0 shown, 1 not found.

    \b
    Examples:
      hermes-actor sessions show 20260301_1010
      hermes-actor sessions show 20260301_1010 --no-messages
      hermes-actor sessions show 20260301_1010 --json | jq .messages
    """
    with open_store(db) as store:
        found = store.find_session(session_id)

        def read(conn: Connection) -> tuple[Row, list[TreeNode], list[Row]]:
            row = get_session(conn, found)
            assert row is not None
            texts = [] if no_messages else stored.get_messages(conn, found)
            return row, family(conn, found), texts

        row, relatives, texts = store.read(read)
    if as_json:
        tree = [relative._asdict() for relative in relatives]
        print_json({**row, "family": tree, **({} if no_messages else {"messages": texts})})
        return
    lines = [*_facts(row), "", *_tree(relatives, found)]
    for text in texts:
        lines += ["", *_message(text)]
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
        "Started": f"{clock_time(row['started_at'])} ({relative_time(row['started_at'])})",
        "Ended": ended,
        "Messages": f"{row['message_count'] or 0}, {row['tool_call_count'] or 0} tool calls",
        "Tokens": tokens,
        "Cost": _cost(row),
        "Folder": row.get("cwd") or "",
    }
    first, *others = [f"{name + ':':<10}{plain(value)}" for name, value in facts.items() if value]
    return [first[:10] + styled(first[10:], bold=True), *others]


def _cost(row: Row) -> str:
    parts = [
        f"{kind} ${row[column]:.4f}"
        for kind, column in (("actual", "actual_cost_usd"), ("estimated", "estimated_cost_usd"))
        if row[column] is not None
    ]
    return (", ".join(parts) or "unknown") + (
        f" ({row['cost_status']})" if row["cost_status"] else ""
    )


def _tree(relatives: list[TreeNode], found: str) -> list[str]:
    """Ancestors and descendants, indented by depth."""
    lines = ["Lineage:"]
    for relative in relatives:
        branch = "  " + "   " * (relative.depth - 1) + "└─ " if relative.depth else "  "
        title = f"  {plain(relative.title)}" if relative.title else ""
        line = f"{branch}{plain(relative.id)}  {clock_time(relative.started_at)}{title}"
        if relative.end_reason:
            line += f"  [{plain(relative.end_reason)}]"
        lines.append(styled(f"{line}  ←", bold=True) if relative.id == found else line)
    return lines


def _message(row: Row) -> list[str]:
    colour = {"user": "yellow", "assistant": "green", "tool": "cyan"}.get(row["role"], "magenta")
    who = plain(f"{row['role']} {row['tool_name']}" if row["tool_name"] else row["role"])
    head = styled(f"── {who} · {clock_time(row['timestamp'], '%Y-%m-%d %H:%M:%S')}", fg=colour)
    lines = [head]
    if row["content"] is not None:
        lines += message_text(row["content"]).split("\n")
    for call in row["tool_calls"] or ():
        function = call.get("function") if isinstance(call, dict) else None
        function = function if isinstance(function, dict) else {}
        lines.append(plain(f"→ {function.get('name', '?')}({function.get('arguments', '')})"))
    return lines


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
