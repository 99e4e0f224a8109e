"""``hermes-actor secrets``: encrypted values of an agent, which no command prints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.agents._commands import Listing, add_show
from hermes_actor.cli.agents._store import agent_option, opened, rows_text, store_option
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail

if TYPE_CHECKING:
    from hermes_actor.agent_store.store import AgentStore

__all__ = ["secrets"]


@click.group()
def secrets() -> None:
    """Keep secrets of agents, which no command prints.

    \b
    Examples:
      hermes-actor secrets set OPENAI_KEY --agent main < key.txt
      hermes-actor secrets list --agent main
    """


@secrets.command("list")
@agent_option
@json_option
@store_option
def list_(agent: str, as_json: bool, store: str | None) -> None:
    """List the names of secrets, each with a mask.

    Exit codes: 0, even if there is none.

    \b
    Examples:
      hermes-actor secrets list --agent main
      hermes-actor secrets list --agent main --json
    """
    with opened(store, agent) as found:
        shown = _all(found)
        closed = sorted(set(found.secrets.names()) - {one["name"] for one in shown})
    text = rows_text(shown, ("name", "masked", "pass_through"), "no secrets")
    if closed:
        text += f"\nthe key cannot open: {', '.join(closed)}"
    print_result({"secrets": shown, "undecryptable": closed}, text, as_json)


def _one(store: AgentStore, name: str) -> dict[str, Any] | None:
    """Return what may be shown of a secret."""
    if name not in store.secrets.names():
        return None
    return {"name": name, **store.secrets.masked().get(name, {"masked": None})}


def _all(store: AgentStore) -> list[dict[str, Any]]:
    return [{"name": name, **one} for name, one in store.secrets.masked().items()]


add_show(secrets, Listing("secrets", "secret", ("name", "masked", "pass_through"), _all, _one))


@secrets.command("set")
@click.argument("name")
@agent_option
@click.option(
    "--pass-through/--no-pass-through", "flag", default=None,
    help="Whether sandboxes get it as a variable. Default: as it was, at first not.",
)  # fmt: skip
@json_option
@store_option
def set_(name: str, agent: str, flag: bool | None, as_json: bool, store: str | None) -> None:
    """Store a secret; its value comes from standard input or from a prompt.

    One line break at the end of the input is not part of the value.

    Exit codes: 0 stored; 1 refused; 2 there is no value.

    \b
    Examples:
      hermes-actor secrets set OPENAI_KEY --agent main < key.txt
      hermes-actor secrets set OPENAI_KEY --agent main --pass-through < key.txt
    """
    with opened(store, agent) as found:
        found.secrets.set(name, _value(name), pass_through=flag)
    print_result({"set": name}, f"Stored {name}.", as_json)


def _value(name: str) -> str:
    if sys.stdin.isatty():
        return str(click.prompt(f"Value of {name}", hide_input=True, err=True))
    text = sys.stdin.read().removesuffix("\n")
    if not text:
        fail("standard input holds no value", code=exit_codes.USAGE)
    return text


@secrets.command()
@click.argument("name")
@agent_option
@json_option
@store_option
def delete(name: str, agent: str, as_json: bool, store: str | None) -> None:
    """Delete a secret.

    Exit codes: 0 deleted; 1 not found.

    \b
    Examples:
      hermes-actor secrets delete OPENAI_KEY --agent main
      hermes-actor secrets delete OPENAI_KEY --agent main --json
    """
    with opened(store, agent) as found:
        if not found.secrets.delete(name):
            fail(f"secret '{name}' not found. List them: hermes-actor secrets list")
    print_result({"deleted": name}, f"Deleted {name}.", as_json)


@secrets.command()
@click.option(
    "--new-key-file", required=True, type=click.Path(path_type=Path, dir_okay=False),
    help="File with the new key; it is made if it does not exist.",
)  # fmt: skip
@json_option
@store_option
def rekey(new_key_file: Path, as_json: bool, store: str | None) -> None:
    """Encrypt all secrets, tokens and credentials of all agents with another key.

    All or nothing. The new key takes the place of the old one only after the store has taken the
    change; the old one stays beside it as FILE.previous. If the key is in a variable, set the
    variable to the new key then.

    Exit codes: 0 done; 1 the present key cannot open something, or it changed meanwhile.

    \b
    Examples:
      hermes-actor secrets rekey --new-key-file new.key
      hermes-actor secrets rekey --new-key-file new.key --json
    """
    from hermes_actor.agent_store.key_files import rekey as change_key

    with opened(store) as found:
        done = change_key(found, new_key_file)
    text = f"Encrypted {done.values} values again. {done.advice}"
    print_result({"values": done.values, "key": done.place}, text, as_json)
