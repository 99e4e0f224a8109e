"""``hermes-actor help``: the help of a command."""

from __future__ import annotations

import click

from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result

__all__ = ["help_"]


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@json_option
@click.pass_context
def help_(context: click.Context, words: tuple[str, ...], as_json: bool) -> None:
    """Show the help of a command.

    Without COMMAND, all commands are listed. `hermes-actor COMMAND --help` prints the same.

    Exit codes: 0 shown, 2 there is no such command.

    \b
    Examples:
      hermes-actor help
      hermes-actor help backup
      hermes-actor help sessions list
    """
    parent = context.parent
    assert parent is not None
    rest = list(words)
    while rest:
        if not isinstance(parent.command, click.Group):
            parent.fail(f"'{parent.command_path}' has no command '{rest[0]}'.")
        name, command, rest = parent.command.resolve_command(parent, rest)
        assert command is not None
        parent = click.Context(command, info_name=name, parent=parent)
    text = parent.get_help()
    print_result({"command": parent.command_path, "help": text}, text, as_json)
