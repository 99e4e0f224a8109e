"""``hermes-actor instructions``: sections of the prompt, of one agent or of all."""

from __future__ import annotations

import click

from hermes_actor.cli.agents._commands import Listing, add_list, add_show
from hermes_actor.cli.agents._store import one_agent_option, opened, store_option, text_of, whom
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result

__all__ = ["instructions"]

_every = click.option("--all", "every", is_flag=True, help="Every agent that is registered now.")


@click.group()
def instructions() -> None:
    """Read and change sections of the prompt.

    \b
    Examples:
      hermes-actor instructions list --agent main
      hermes-actor instructions append rules "Answer in English." --all
    """


_LISTING = Listing(
    "instructions", "instruction", ("key", "updated_at", "content"),
    lambda store: store.instructions.list(), lambda store, name: store.instructions.get(name),
)  # fmt: skip
add_list(instructions, _LISTING)
add_show(instructions, _LISTING)


def _change(
    mode: str, key: str, text: str | None, agent: str | None, every: bool, store: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    target = whom(agent, every)
    with opened(store, None if every else target) as found:
        touched = found.instructions.change(mode, key, None if text is None else text_of(text))
    shown = f"{len(touched)} agents" if every else target
    print_result({"key": key, "agents": touched}, f"Changed {key} of {shown}.", as_json)


@instructions.command("set")
@click.argument("key")
@click.argument("text")
@one_agent_option
@_every
@json_option
@store_option
def set_(
    key: str, text: str, agent: str | None, every: bool, as_json: bool, store: str | None
) -> None:
    """Set a section; TEXT is "-" for standard input.

    Exit codes: 0 set; 1 refused; 2 neither --agent nor --all.

    \b
    Examples:
      hermes-actor instructions set rules "Be brief." --agent main
      hermes-actor instructions set rules - --all < rules.txt
    """
    _change("set", key, text, agent, every, store, as_json)


@instructions.command()
@click.argument("key")
@click.argument("text")
@one_agent_option
@_every
@json_option
@store_option
def append(
    key: str, text: str, agent: str | None, every: bool, as_json: bool, store: str | None
) -> None:
    """Add a line to a section; TEXT is "-" for standard input.

    Exit codes: 0 added; 1 refused; 2 neither --agent nor --all.

    \b
    Examples:
      hermes-actor instructions append rules "Answer in English." --all
      hermes-actor instructions append rules "Ask first." --agent main
    """
    _change("append", key, text, agent, every, store, as_json)


@instructions.command()
@click.argument("key")
@one_agent_option
@_every
@json_option
@store_option
def remove(key: str, agent: str | None, every: bool, as_json: bool, store: str | None) -> None:
    """Remove a section.

    Exit codes: 0 removed, or there was none; 2 neither --agent nor --all.

    \b
    Examples:
      hermes-actor instructions remove rules --all
      hermes-actor instructions remove rules --agent main
    """
    _change("remove", key, None, agent, every, store, as_json)
