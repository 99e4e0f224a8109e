"""``hermes-actor sessions``: see, find, move and remove the sessions of a store."""

from __future__ import annotations

import click

from hermes_actor.cli.lazy import LazyGroup

__all__ = ["sessions"]

_PLACES = {
    "archive": "hermes_actor.cli.sessions.prune:archive",
    "browse": "hermes_actor.cli.sessions.browse:browse",
    "delete": "hermes_actor.cli.sessions.delete:delete",
    "export": "hermes_actor.cli.sessions.export:export",
    "import": "hermes_actor.cli.sessions.import_:import_",
    "list": "hermes_actor.cli.sessions.list:list_",
    "optimize": "hermes_actor.cli.sessions.stats:optimize",
    "prune": "hermes_actor.cli.sessions.prune:prune",
    "rename": "hermes_actor.cli.sessions.delete:rename",
    "show": "hermes_actor.cli.sessions.show:show",
    "stats": "hermes_actor.cli.sessions.stats:stats",
}

_LINES = {
    "archive": "Hide ended sessions from lists.",
    "browse": "Pick a session on the whole screen and resume it.",
    "delete": "Delete a session and its messages.",
    "export": "Write sessions to a file.",
    "import": "Bring in the sessions of an export.",
    "list": "List the newest sessions.",
    "optimize": "Merge the full-text indexes and give space back.",
    "prune": "Delete old ended sessions.",
    "rename": "Give a session a title.",
    "show": "Show one session: facts, relatives and messages.",
    "stats": "Count sessions and messages and tell the size of the file.",
}


@click.group(
    cls=LazyGroup, places=_PLACES, lines=_LINES, no_args_is_help=False, invoke_without_command=True
)
@click.pass_context
def sessions(context: click.Context) -> None:
    """See, find, move and remove the sessions of a store.

    An ID is a whole session id, or the beginning of exactly one.

    \b
    Examples:
      hermes-actor sessions list --source telegram
      hermes-actor sessions show 20260301_1010
      hermes-actor sessions export backup.jsonl
      hermes-actor sessions prune --older-than 90 --dry-run
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
