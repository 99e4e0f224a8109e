"""``hermes-actor skills``: skills, and the agents that have them."""

from __future__ import annotations

import click

from hermes_actor.cli.agents._store import (
    Listing,
    add_list,
    add_show,
    all_option,
    opened,
    store_option,
    whom,
)
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.errors import NotFound

__all__ = ["skills"]

_one_agent = click.option("--agent", metavar="AGENT", help="Id of one agent.")


@click.group()
def skills() -> None:
    """Register skills, and switch them on for agents.

    An agent's own switch beats the one for all agents.

    \b
    Examples:
      hermes-actor skills list
      hermes-actor skills enable my-skill --all
      hermes-actor skills disable my-skill --agent main
    """


_LISTING = Listing(
    "skills", "skill", ("id", "name", "source", "description"),
    lambda store: store.skills.list(),
    lambda store, name: store.skills.get(name), scoped=False,
)  # fmt: skip
add_list(skills, _LISTING)
add_show(skills, _LISTING)


@skills.command()
@click.argument("id_", metavar="ID")
@click.option("--path", required=True, metavar="FOLDER", help="Folder of the skill.")
@click.option("--name", metavar="NAME", help="Name that people see. Default: the id.")
@click.option("--description", default="", metavar="TEXT", help="What it is for.")
@json_option
@store_option
def add(
    id_: str, path: str, name: str | None, description: str, as_json: bool, store: str | None
) -> None:
    """Register a skill, or replace the one of this id.

    Exit codes: 0 registered; 1 another skill has the name.

    \b
    Examples:
      hermes-actor skills add my-skill --path /srv/skills/my-skill
      hermes-actor skills add pdf --path /srv/skills/pdf --description "Reads PDF files"
    """
    skill = {"id": id_, "name": name or id_, "description": description, "path": path}
    with opened(store) as found:
        made = found.skills.upsert(skill)
    print_result(made, f"Registered {id_}.", as_json)


@skills.command()
@click.argument("id_", metavar="ID")
@json_option
@store_option
def remove(id_: str, as_json: bool, store: str | None) -> None:
    """Remove a skill, with its assignments.

    Exit codes: 0 removed; 1 not found.

    \b
    Examples:
      hermes-actor skills remove my-skill
      hermes-actor skills remove my-skill --json
    """
    with opened(store) as found:
        if not found.skills.delete(id_):
            fail(f"skill '{id_}' not found. List them: hermes-actor skills list")
    print_result({"removed": id_}, f"Removed {id_}.", as_json)


@skills.command()
@click.argument("id_", metavar="ID")
@_one_agent
@all_option
@json_option
@store_option
def enable(id_: str, agent: str | None, every: bool, as_json: bool, store: str | None) -> None:
    """Switch a skill on, for one agent or for all.

    Exit codes: 0 on; 1 there is no such skill; 2 neither --agent nor --all.

    \b
    Examples:
      hermes-actor skills enable my-skill --all
      hermes-actor skills enable my-skill --agent main
    """
    target = whom(agent, every)
    with opened(store) as found:
        try:
            found.skills.enable(id_, agent=target)
        except NotFound:
            fail(
                f"skill '{id_}' not found. Register it: hermes-actor skills add {id_} --path FOLDER"
            )
    shown = "all agents" if every else target
    print_result({"enabled": id_, "affected": target}, f"{id_} is on for {shown}.", as_json)


@skills.command()
@click.argument("id_", metavar="ID")
@_one_agent
@all_option
@json_option
@store_option
def disable(id_: str, agent: str | None, every: bool, as_json: bool, store: str | None) -> None:
    """Switch a skill off, for one agent or for all that have no switch of their own.

    Exit codes: 0 off; 1 there is no such skill; 2 neither --agent nor --all.

    \b
    Examples:
      hermes-actor skills disable my-skill --all
      hermes-actor skills disable my-skill --agent main
    """
    target = whom(agent, every)
    with opened(store) as found:
        found.skills.disable(id_, agent=target)
    shown = "all agents" if every else target
    print_result({"disabled": id_, "affected": target}, f"{id_} is off for {shown}.", as_json)
