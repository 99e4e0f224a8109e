"""``hermes-actor sessions``: one module for each of its commands."""

from __future__ import annotations

import click

from hermes_actor.cli.lazy import LazyCommand, LazyGroup

__all__ = ["sessions"]

COMMANDS = {
    "archive": LazyCommand(
        "hermes_actor.cli.sessions.archive:archive", "Hide ended sessions from lists."
    ),
    "browse": LazyCommand(
        "hermes_actor.cli.sessions.browse:browse",
        "Pick a session on the full screen and resume it.",
    ),
    "delete": LazyCommand(
        "hermes_actor.cli.sessions.delete:delete", "Delete a session and its messages."
    ),
    "export": LazyCommand("hermes_actor.cli.sessions.export:export", "Write sessions to a file."),
    "import": LazyCommand(
        "hermes_actor.cli.sessions.import_:import_", "Load the sessions of an export."
    ),
    "list": LazyCommand("hermes_actor.cli.sessions.list:list_", "List the newest sessions."),
    "optimize": LazyCommand(
        "hermes_actor.cli.sessions.optimize:optimize",
        "Merge the full-text indexes and shrink the file.",
    ),
    "prune": LazyCommand("hermes_actor.cli.sessions.prune:prune", "Delete old ended sessions."),
    "rename": LazyCommand("hermes_actor.cli.sessions.rename:rename", "Give a session a title."),
    "show": LazyCommand(
        "hermes_actor.cli.sessions.show:show", "Show one session: facts, relatives and messages."
    ),
    "stats": LazyCommand(
        "hermes_actor.cli.sessions.stats:stats",
        "Count sessions and messages, and show the file size.",
    ),
}


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False, invoke_without_command=True)
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
