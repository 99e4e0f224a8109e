"""Command groups that import a command only when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

__all__ = ["LazyCommand", "LazyGroup"]


class LazyCommand(NamedTuple):
    """Location of a command, and its line in the help of its group.

    The line is the first sentence of the command's own help; it stands here as well because the
    help of a group must not import every command. A test compares the two.
    """

    location: str
    """``module:attribute``."""
    help: str


class LazyGroup(click.Group):
    """A group whose commands are listed in *table*."""

    def __init__(self, *args: Any, table: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name].location.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name].help) for name in sorted(self.table)])
