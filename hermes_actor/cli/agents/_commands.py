"""Commands of several groups: ``list``, ``show``, ``delete``, ``enable`` and ``disable``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from hermes_actor.cli.agents._store import (
    agent_option,
    cell_text,
    one_agent_option,
    opened,
    rows_text,
    store_option,
    whom,
)
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.errors import NotFound

if TYPE_CHECKING:
    from hermes_actor.agent_store.assignments import McpServers, Skills
    from hermes_actor.agent_store.store import AgentStore

__all__ = ["Listing", "add_delete", "add_list", "add_show", "add_switches", "help_text"]

_all_option = click.option("--all", "every", is_flag=True, help="Every agent, later ones included.")


class Listing(NamedTuple):
    """The things that a group of commands is about."""

    group: str
    thing: str
    columns: tuple[str, ...]
    """Columns of the table for people; JSON has all."""
    read: Callable[[AgentStore], list[dict[str, Any]]]
    one: Callable[[AgentStore, str], dict[str, Any] | None]
    scoped: bool = True
    plural: str = ""
    """The things of the group, if they do not have its name."""

    @property
    def a_thing(self) -> str:
        """The thing with its article."""
        return f"{'an' if self.thing[0] in 'aeiM' else 'a'} {self.thing}"

    def missing(self, name: str, agent: str | None = None) -> NoReturn:
        """Fail because there is no *name*."""
        whose = f" --agent {agent}" if agent is not None else ""
        fail(f"{self.thing} '{name}' not found. List them: hermes-actor {self.group} list{whose}")


def help_text(
    listing: Listing, command: str, words: str, code: str, *, options: tuple[str, ...] = ()
) -> str:
    """Return the help of a command; *options* are those of its examples."""
    agent = " --agent main" if listing.scoped else ""
    lines = (
        f"\n  hermes-actor {listing.group} {command}{one}"
        for one in options or (agent, f"{agent} --json")
    )
    return f"{words}\n\nExit codes: {code}\n\n\b\nExamples:{''.join(lines)}"


def add_list(group: click.Group, listing: Listing) -> None:
    """Give *group* the command ``list``."""

    @json_option
    @store_option
    def list_(as_json: bool, store: str | None, agent: str | None = None) -> None:
        with opened(store, agent) as found:
            records = listing.read(found)
        print_result(
            records,
            rows_text(records, listing.columns, f"no {listing.plural or listing.group}"),
            as_json,
        )

    named = listing.plural or listing.group
    words = f"List the {named}{' of an agent' if listing.scoped else ''}."
    text = help_text(listing, "list", words, "0, even if there is none; 1 no such store.")
    command = agent_option(list_) if listing.scoped else list_
    group.add_command(click.command("list", help=text)(command))


def add_show(group: click.Group, listing: Listing) -> None:
    """Give *group* the command ``show``."""

    @click.argument("name", metavar="ID")
    @json_option
    @store_option
    def show(name: str, as_json: bool, store: str | None, agent: str | None = None) -> None:
        with opened(store, agent) as found:
            record = listing.one(found, name)
        if record is None:
            listing.missing(name, agent)
        lines = (f"{key}: {cell_text(value)}" for key, value in record.items())
        print_result(record, "\n".join(lines), as_json)

    text = help_text(listing, "show my-id", f"Show one {listing.thing}.", "0 shown; 1 not found.")
    command = agent_option(show) if listing.scoped else show
    group.add_command(click.command("show", help=text)(command))


def add_delete(
    group: click.Group,
    listing: Listing,
    delete: Callable[[AgentStore, str], bool],
    *,
    verb: str = "delete",
    name: str = "ID",
    example: str,
    more: str = "",
) -> None:
    """Give *group* the command *verb*; *more* says what goes with the thing."""

    @click.argument("name", metavar=name)
    @json_option
    @store_option
    def command(name: str, as_json: bool, store: str | None, agent: str | None = None) -> None:
        with opened(store, agent) as found:
            if not delete(found, name):
                listing.missing(name, agent)
        print_result({f"{verb.rstrip('e')}ed": name}, f"{done} {name}.", as_json)

    done = f"{verb.rstrip('e')}ed".capitalize()
    words = f"{verb.capitalize()} {listing.a_thing}{more}."
    text = help_text(listing, f"{verb} {example}", words, f"0 {done.lower()}; 1 not found.")
    scoped = agent_option(command) if listing.scoped else command
    group.add_command(click.command(verb, help=text)(scoped))


def add_switches(
    group: click.Group,
    listing: Listing,
    assigned: Callable[[AgentStore], Skills | McpServers],
    *,
    example: str,
    register: str,
) -> None:
    """Give *group* ``enable`` and ``disable``; *register* ends the line that adds a thing."""

    def add(verb: str, to: str, of_all: str) -> None:
        @click.argument("id_", metavar="ID")
        @one_agent_option
        @_all_option
        @json_option
        @store_option
        def switch(
            id_: str, agent: str | None, every: bool, as_json: bool, store: str | None
        ) -> None:
            target = whom(agent, every)
            with opened(store) as found:
                try:
                    getattr(assigned(found), verb)(id_, agent=target)
                except NotFound:
                    fail(
                        f"{listing.thing} '{id_}' not found. Register it:"
                        f" hermes-actor {listing.group} add {id_} {register}"
                    )
            shown = "all agents" if every else target
            print_result(
                {f"{verb}d": id_, "affected": target}, f"{id_} is {to} for {shown}.", as_json
            )

        words = f"Switch {listing.a_thing} {to}, for one agent or for {of_all}."
        code = f"0 {to}; 1 there is no such {listing.thing}; 2 neither --agent nor --all."
        options = (" --all", " --agent main")
        text = help_text(listing, f"{verb} {example}", words, code, options=options)
        group.add_command(click.command(verb, help=text)(switch))

    add("enable", "on", "all")
    add("disable", "off", "all that have no switch of their own")
