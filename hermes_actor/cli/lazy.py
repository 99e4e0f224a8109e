"""Command groups that import a command only when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

__all__ = ["LazyGroup"]

_SHARED_MODULES = {"import": "import_", "sessiondb": "migrate"}
"""Commands whose module cannot, or need not, have their name."""


class LazyGroup(click.Group):
    """A group whose command NAME is in the module NAME of *package*.

    *table* has the first sentence of each command's own help; it stands there as well because the
    help of a group must not import every command. A test compares the two.
    """

    def __init__(self, *args: Any, package: str, table: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.package, self.table = package, table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        name = _SHARED_MODULES.get(cmd_name, cmd_name.replace("-", "_"))
        module = importlib.import_module(f"{self.package}.{name}")
        found = (one for one in vars(module).values() if isinstance(one, click.Command))
        return next(one for one in found if one.name == cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(self.table.items()))
