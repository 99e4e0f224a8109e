"""``hermes-actor sessions``: one module for each of its commands."""

from __future__ import annotations

import click

from hermes_actor.cli.lazy import LazyGroup

__all__ = ["sessions"]

COMMANDS = {
    "Look": {
        "browse": "Pick a session on the full screen and resume it.",
        "list": "List the newest sessions.",
        "show": "Show one session: facts, relatives and messages.",
        "stats": "Count sessions and messages, and show the file size.",
    },
    "Tidy up": {
        "archive": "Hide sessions from lists.",
        "delete": "Delete a session and its messages.",
        "optimize": "Merge the full-text indexes and shrink the file.",
        "prune": "Delete old ended sessions.",
        "rename": "Give a session a title.",
        "unarchive": "Show archived sessions in lists again.",
    },
    "Move": {
        "export": "Write sessions to a file.",
        "import": "Load the sessions of an export.",
    },
}
"""Every command in its group of the help, with the first sentence of its own help."""


@click.group(
    cls=LazyGroup, package="hermes_actor.cli.sessions", groups=COMMANDS, no_args_is_help=False,
    invoke_without_command=True,
)  # fmt: skip
@click.pass_context
def sessions(context: click.Context) -> None:
    """List, show, export, import and delete sessions.

    ID is a session id, or a unique prefix of one.

    \b
    Examples:
      hermes-actor sessions list --source telegram
      hermes-actor sessions show 20260301_1010
      hermes-actor sessions export backup.jsonl
      hermes-actor sessions prune --older-than 90 --dry-run
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
