"""``hermes-actor memories``: the long-term memory of an agent."""

from __future__ import annotations

import click

from hermes_actor.cli.agents._commands import Listing, add_delete, add_list, add_show
from hermes_actor.cli.agents._store import agent_option, opened, rows_text, store_option, text_of
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result

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
add_delete(
    memories, _LISTING, lambda store, key: store.memories.delete(key), name="KEY",
    example="project/deploys",
)  # fmt: skip


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
