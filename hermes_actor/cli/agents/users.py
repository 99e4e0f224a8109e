"""``hermes-actor users``: people, their identities on channels, and their roles."""

from __future__ import annotations

import click

from hermes_actor.cli.agents._commands import Listing, add_list, add_show
from hermes_actor.cli.agents._store import agent_option, opened, store_option
from hermes_actor.cli.options import json_option, yes_option
from hermes_actor.cli.output.console import confirm, print_result

__all__ = ["users"]


@click.group()
def users() -> None:
    """Look after users, their identities and their roles.

    \b
    Examples:
      hermes-actor users list
      hermes-actor users link usr-1 telegram 12345
      hermes-actor users role usr-1 owner --agent main
    """


_LISTING = Listing(
    "users", "user", ("user_id", "name", "created_at"), lambda store: store.users.list(),
    lambda store, name: store.users.described(name), scoped=False,
)  # fmt: skip
add_list(users, _LISTING)
add_show(users, _LISTING)


@users.command()
@click.argument("user_id", metavar="USER")
@click.argument("channel")
@click.argument("handle")
@json_option
@store_option
def link(user_id: str, channel: str, handle: str, as_json: bool, store: str | None) -> None:
    """Give the identity HANDLE on CHANNEL to a user.

    A former user of it that has no other identity is absorbed, with its roles and schedules.

    Exit codes: 0 linked; 1 unknown user.

    \b
    Examples:
      hermes-actor users link usr-1 telegram 12345
      hermes-actor users link usr-1 slack U042 --json
    """
    with opened(store) as found:
        done = found.users.link_identity(user_id, channel, handle)
    print_result(done, f"Linked {channel}/{handle} to {user_id}.", as_json)


@users.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="INTO")
@yes_option
@json_option
@store_option
def merge(source: str, target: str, yes: bool, as_json: bool, store: str | None) -> None:
    """Move everything of one user to another, and delete the first.

    Exit codes: 0 merged; 1 unknown user, or declined.

    \b
    Examples:
      hermes-actor users merge usr-2 usr-1
      hermes-actor users merge usr-2 usr-1 --yes --json
    """
    confirm(f"Move everything of '{source}' to '{target}', and delete '{source}'?", yes)
    with opened(store) as found:
        moved = found.users.merge(source, target)
    print_result(moved, f"Merged {source} into {target}.", as_json)


@users.command()
@click.argument("user_id", metavar="USER")
@click.argument("role", metavar="ROLE", type=click.Choice(["owner", "user", "guest", "none"]))
@agent_option
@json_option
@store_option
def role(user_id: str, role: str, agent: str, as_json: bool, store: str | None) -> None:
    """Give a user a role on an agent, or with "none" take it away.

    Exit codes: 0 done; 1 unknown user, or the agent has another owner.

    \b
    Examples:
      hermes-actor users role usr-1 owner --agent main
      hermes-actor users role usr-2 none --agent main
    """
    with opened(store, agent) as found:
        if role == "none":
            found.users.remove_role(user_id)
        elif role == "owner":
            found.users.promote_owner(user_id)
        else:
            found.users.assign_role(user_id, role)
    print_result({"user_id": user_id, "role": role}, f"{user_id}: {role} on {agent}.", as_json)
