"""``hermes-actor mcp``: MCP servers, and the agents that have them."""

from __future__ import annotations

from typing import Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.agents._commands import Listing, add_delete, add_list, add_show, add_switches
from hermes_actor.cli.agents._store import opened, store_option
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail

__all__ = ["mcp"]


@click.group()
def mcp() -> None:
    """Register MCP servers, and switch them on for agents.

    An agent's own switch beats the one for all agents.

    \b
    Examples:
      hermes-actor mcp list
      hermes-actor mcp enable my-mcp-server --all
      hermes-actor mcp disable my-mcp-server --agent main
    """


def _shown(server: Any) -> Any:
    """Return a server with the names of its headers only: a value may be a token."""
    return server and {**server, "headers": sorted(server.get("headers", {}))}


_LISTING = Listing(
    "mcp", "MCP server", ("id", "name", "url", "description"),
    lambda store: [_shown(one) for one in store.mcp.list()],
    lambda store, name: _shown(store.mcp.get(name)), scoped=False, plural="MCP servers",
)  # fmt: skip
add_list(mcp, _LISTING)
add_show(mcp, _LISTING)
add_delete(
    mcp, _LISTING, lambda store, id_: store.mcp.delete(id_), verb="remove",
    example="my-mcp-server", more=", with its assignments",
)  # fmt: skip
add_switches(mcp, _LISTING, lambda store: store.mcp, example="my-mcp-server", register="--url URL")


@mcp.command()
@click.argument("id_", metavar="ID")
@click.option("--url", required=True, metavar="URL", help="Address of the server.")
@click.option("--name", metavar="NAME", help="Name that people see. Default: the id.")
@click.option("--description", default="", metavar="TEXT", help="What it is for.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE",
    help="Header of requests; write ${{NAME}} for a secret.",
)  # fmt: skip
@json_option
@store_option
def add(
    id_: str, url: str, name: str | None, description: str, headers: tuple[str, ...],
    as_json: bool, store: str | None,
) -> None:  # fmt: skip
    """Register an MCP server, or replace the one of this id.

    Exit codes: 0 registered; 2 a header is not NAME=VALUE.

    \b
    Examples:
      hermes-actor mcp add my-mcp-server --url https://example.org/mcp
      hermes-actor mcp add files --url https://example.org --header 'Authorization=${{TOKEN}}'
    """
    for header in headers:
        if "=" not in header:
            fail("a header is NAME=VALUE", code=exit_codes.USAGE)
    server = {
        "id": id_, "name": name or id_, "description": description, "url": url,
        "headers": dict(header.split("=", 1) for header in headers),
    }  # fmt: skip
    with opened(store) as found:
        found.mcp.upsert(server)
    print_result({"id": id_, "url": url}, f"Registered {id_}.", as_json)
