"""``hermes-actor gateway``: one module for each of its commands."""

from __future__ import annotations

import click

from hermes_actor.cli.lazy import LazyGroup

__all__ = ["gateway"]

COMMANDS = {
    "Chats": {
        "reset": "Start another session for a chat.",
        "resume": "Have a chat go on in an earlier session.",
        "routes": "List the chats, their sessions and their state.",
    },
    "Upkeep": {
        "migrate-transcripts": "Store the messages of older transcript files.",
        "watch": "End expired sessions and keep derived files current.",
    },
}
"""Every command in its group of the help, with the first sentence of its own help."""


@click.group(
    cls=LazyGroup, package="hermes_actor.cli.gateway", groups=COMMANDS, no_args_is_help=False,
    invoke_without_command=True,
)  # fmt: skip
@click.pass_context
def gateway(context: click.Context) -> None:
    """Look after the sessions of chats.

    KEY is a session key, such as agent:main:telegram:dm:100.

    \b
    Examples:
      hermes-actor gateway routes
      hermes-actor gateway reset agent:main:telegram:dm:100
      hermes-actor gateway watch --once
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
