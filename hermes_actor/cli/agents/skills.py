"""``hermes-actor skills``: skills, and the agents that have them."""

from __future__ import annotations

import click

from hermes_actor.cli.agents._commands import Listing, add_delete, add_list, add_show, add_switches
from hermes_actor.cli.agents._store import opened, store_option
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result

__all__ = ["skills"]


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
add_delete(
    skills, _LISTING, lambda store, id_: store.skills.delete(id_), verb="remove",
    example="my-skill", more=", with its assignments",
)  # fmt: skip
add_switches(
    skills, _LISTING, lambda store: store.skills, example="my-skill", register="--path FOLDER"
)


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
