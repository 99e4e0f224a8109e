"""Groups that know their commands by name and import only the one that is called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """*places* maps the name of a command to ``module:attribute``, *lines* to its line of help."""

    def __init__(
        self, *args: Any, places: Mapping[str, str], lines: Mapping[str, str], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.places = places
        self.lines = lines

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return None
        module, _, attribute = self.places[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from the table: the help of a group imports none of them."""
        room = formatter.width - 6 - max(map(len, self.places))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self._line(ctx, name, room)) for name in sorted(self.places)]
            )

    def _line(self, ctx: click.Context, name: str, room: int) -> str:
        if name in self.lines:
            return self.lines[name]
        command = self.get_command(ctx, name)
        return command.get_short_help_str(room) if command is not None else ""
