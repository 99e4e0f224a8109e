"""``hermes-actor agents``: setup of an agent store, its agents and their config."""

from __future__ import annotations

from typing import Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.agents._commands import Listing, add_list, add_show
from hermes_actor.cli.agents._store import opened, store_option
from hermes_actor.cli.options import dry_run_option, json_option, yes_option
from hermes_actor.cli.output.console import confirm, print_result, waiting
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import json_text, plain

__all__ = ["agents"]


@click.group()
def agents() -> None:
    """Set up an agent store, and look after its agents.

    \b
    Examples:
      hermes-actor agents setup
      hermes-actor agents create main --workspace /srv/main --name Max
      hermes-actor agents list
    """


_LISTING = Listing(
    "agents", "agent", ("agent_id", "name", "status", "workspace_dir"),
    lambda store: store.agents.list(),
    lambda store, name: store.of(name).agents.get(), scoped=False,
)  # fmt: skip
add_list(agents, _LISTING)
add_show(agents, _LISTING)


@agents.command()
@json_option
@store_option
def setup(as_json: bool, store: str | None) -> None:
    """Make the agent store and the key for its secrets.

    What exists stays as it is, so it can be run again. Keep a copy of the key: without it
    the secrets cannot be read.

    Exit codes: 0 ready; 1 the store cannot be opened, or the key cannot be used.

    \b
    Examples:
      hermes-actor agents setup
      hermes-actor agents setup --store postgresql://host/agents
    """
    from hermes_actor.agent_store.key_files import ensure_key

    with opened(store, new=True) as found:
        key = ensure_key(found.port.key_file)
        address = found.port.address
    made = "made" if key.made else "found"
    document = {"store": address, "key": key.place, "made": key.made}
    print_result(document, f"store  {address}\nkey    {made}: {key.place}", as_json)


@agents.command()
@click.argument("agent_id", metavar="ID")
@click.option("--workspace", required=True, metavar="FOLDER", help="Folder of its task files.")
@click.option("--name", metavar="NAME", help="Name that people see.")
@click.option("--owner", metavar="USER", help="Id of the user who owns it.")
@json_option
@store_option
def create(
    agent_id: str, workspace: str, name: str | None, owner: str | None, as_json: bool,
    store: str | None,
) -> None:  # fmt: skip
    """Create an agent with its config, its inbox and its first instructions.

    Exit codes: 0 created; 1 it exists.

    \b
    Examples:
      hermes-actor agents create main --workspace /srv/main
      hermes-actor agents create main --workspace /srv/main --owner usr-1 --json
    """
    with opened(store, agent_id) as found:
        made = found.agents.provision(workspace, name=name, owner=owner)
    print_result(made, f"Created agent {agent_id}.", as_json)


@agents.command()
@click.argument("agent_id", metavar="ID")
@yes_option
@json_option
@store_option
def delete(agent_id: str, yes: bool, as_json: bool, store: str | None) -> None:
    """Delete an agent and its rows in every table.

    Users, assignments to all agents, and files on disk stay.

    Exit codes: 0 deleted; 1 not found, or declined.

    \b
    Examples:
      hermes-actor agents delete old
      hermes-actor agents delete old --yes --json
    """
    with opened(store, agent_id) as found:
        if found.agents.get() is None:
            fail(f"agent '{agent_id}' not found. List them: hermes-actor agents list")
        confirm(f"Delete agent '{agent_id}' with its sessions, memories and secrets?", yes)
        counts = found.agents.remove()
    total = sum(counts.values())
    print_result({"deleted": counts}, f"Deleted agent {agent_id}: {total:,} rows.", as_json)


@agents.command("import")
@click.option("--from", "from_", required=True, metavar="URL", help="URL of the database.")
@dry_run_option
@json_option
@store_option
def import_(from_: str, dry_run: bool, as_json: bool, store: str | None) -> None:
    """Take over a database of OpenHermit, of any of its versions.

    The source is only read; rows that are here already stay as they are, so it can be run again.
    Encrypted values stay as they are: use the same key. What cannot be taken is named.

    Exit codes: 0 done; 1 it is no such database, or rows were left out.

    \b
    Examples:
      hermes-actor agents import --from postgresql://host/openhermit --dry-run
      hermes-actor agents import --from postgresql://host/openhermit --json
    """
    from hermes_actor.providers.agents import import_database

    with opened(store, new=not dry_run) as found, waiting(lambda: f"reading {from_}"):
        done = import_database(from_, found, dry_run=dry_run)
    lines = [
        f"{name}: {one.new:,} {'to import' if dry_run else 'imported'}"
        + (f", {one.there:,} here already" if one.there else "")
        + "".join(f"\n  left out {plain(text)}" for text in one.left_out)
        for name, one in done.items()
    ]
    print_result({name: one._asdict() for name, one in done.items()}, "\n".join(lines), as_json)
    if any(one.left_out for one in done.values()):
        fail("some rows were left out; the others are imported")


@agents.command()
@json_option
@store_option
def check(as_json: bool, store: str | None) -> int:
    """Find references to missing rows, and secrets that the key cannot open.

    Exit codes: 0 nothing found; 1 something found.

    \b
    Examples:
      hermes-actor agents check
      hermes-actor agents check --json
    """
    with opened(store) as found:
        report = found.agents.check()
    wrong = [f"{place}: {n} refer to a missing row" for place, n in report["dangling"].items()]
    sealed = report["undecryptable"] or {}
    wrong += [f"{place}: the key cannot open {n}" for place, n in sealed.items()]
    print_result(report, "\n".join(wrong) or "nothing found", as_json)
    return exit_codes.REFUSED if wrong else exit_codes.OK


@agents.group()
def config() -> None:
    """Read and change the config document of an agent.

    \b
    Examples:
      hermes-actor agents config get main
      hermes-actor agents config set main model.provider openrouter
    """


@config.command("get")
@click.argument("agent_id", metavar="ID")
@click.argument("path", required=False, default="")
@json_option
@store_option
def get_(agent_id: str, path: str, as_json: bool, store: str | None) -> None:
    """Print the config of an agent, or the value at a dotted PATH; objects as JSON.

    Placeholders such as ${{NAME}} are shown as they are, never the secret.

    Exit codes: 0 printed; 1 there is nothing.

    \b
    Examples:
      hermes-actor agents config get main
      hermes-actor agents config get main model.provider
    """
    missing = object()
    with opened(store, agent_id) as found:
        value: Any = found.config.get_path(path, missing)
    if value is missing or value is None:
        fail(f"agent '{agent_id}' has no config{f' at {path}' if path else ''}")
    print_result(value, value if isinstance(value, str) else json_text(value), as_json)


@config.command("set")
@click.argument("agent_id", metavar="ID")
@click.argument("path")
@click.argument("value")
@json_option
@store_option
def set_(agent_id: str, path: str, value: str, as_json: bool, store: str | None) -> None:
    """Set the value at a dotted PATH; VALUE is JSON, or else a text.

    Exit codes: 0 set; 1 unknown agent, or the path leads through a list.

    \b
    Examples:
      hermes-actor agents config set main model.provider openrouter
      hermes-actor agents config set main memory.introspection.enabled false
    """
    from hermes_actor.agents.documents import json_or_text

    with opened(store, agent_id) as found:
        found.config.set_path(path, json_or_text(value))
    print_result({"agent_id": agent_id, "path": path}, f"Set {path} of {agent_id}.", as_json)
