"""``hermes-actor memories``: the long-term memory of an agent."""

from __future__ import annotations

import click

from hermes_actor.cli.agents._store import (
    Listing,
    add_list,
    add_show,
    agent_option,
    opened,
    rows_text,
    store_option,
    text_of,
)
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail

__all__ = ["memories"]

_COLUMNS = ("id", "updated_at", "content")


@click.group()
def memories() -> None:
    """Search, read and change the memories of an agent.

    \b
    Examples:
      hermes-actor memories put project/deploys "Deploys happen on Tuesdays." --agent main
      hermes-actor memories search deploy --agent main
    """


_LISTING = Listing(
    "memories", "memory", _COLUMNS, lambda store: store.memories.list(limit=50),
    lambda store, name: store.memories.get(name),
)  # fmt: skip
add_list(memories, _LISTING)
add_show(memories, _LISTING)


@memories.command()
@click.argument("query")
@click.option("--limit", type=int, default=10, show_default=True, help="Most memories; up to 50.")
@agent_option
@json_option
@store_option
def search(query: str, limit: int, agent: str, as_json: bool, store: str | None) -> None:
    """Search memories: all words in any form first, then parts of words.

    Exit codes: 0, even if nothing is found.

    \b
    Examples:
      hermes-actor memories search "deploy plan" --agent main
      hermes-actor memories search 用户 --agent main --limit 3 --json
    """
    with opened(store, agent) as found:
        records = found.memories.search(query, limit=limit)
    print_result(records, rows_text(records, _COLUMNS, "nothing found"), as_json)


@memories.command()
@click.argument("key")
@click.argument("text")
@agent_option
@json_option
@store_option
def put(key: str, text: str, agent: str, as_json: bool, store: str | None) -> None:
    """Store a memory under KEY, in place of an earlier one; TEXT is "-" for standard input.

    Exit codes: 0 stored; 1 refused.

    \b
    Examples:
      hermes-actor memories put project/deploys "Deploys happen on Tuesdays." --agent main
      hermes-actor memories put notes - --agent main < notes.txt
    """
    with opened(store, agent) as found:
        made = found.memories.put(text_of(text), key=key)
    print_result(made, f"Stored {made['id']}.", as_json)


@memories.command()
@click.argument("key")
@agent_option
@json_option
@store_option
def delete(key: str, agent: str, as_json: bool, store: str | None) -> None:
    """Delete a memory.

    Exit codes: 0 deleted; 1 not found.

    \b
    Examples:
      hermes-actor memories delete project/deploys --agent main
      hermes-actor memories delete notes --agent main --json
    """
    with opened(store, agent) as found:
        if not found.memories.delete(key):
            fail(f"memory '{key}' not found. List them: hermes-actor memories list")
    print_result({"deleted": key}, f"Deleted {key}.", as_json)
