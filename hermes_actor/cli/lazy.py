"""Command groups that import a command only when it is called."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import click

__all__ = ["LazyGroup"]

_MODULES = {"import": "import_"}
"""Commands whose module cannot have their name."""

_ALIKE = 0.6
"""Least likeness of two names for one to be suggested, as :mod:`difflib` measures it."""


class LazyGroup(click.Group):
    """A group whose command NAME is in the module NAME of *package*, or of a package in it.

    *groups* has, under each heading of the help, the commands with the first sentence of their own
    help; it stands there as well because the help must not import every command. A test compares
    the two. *packages* has the package in *package* that holds the commands of a heading; without
    it, all are in *package* itself. *aliases* are further names, of one word or two, which no list
    shows.
    """

    def __init__(
        self,
        *args: Any,
        package: str,
        groups: Mapping[str, Mapping[str, str]],
        packages: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.groups, self.aliases = groups, aliases or {}
        self.table = {name: line for part in groups.values() for name, line in part.items()}
        self.homes = {
            name: f"{package}.{packages[heading]}" if packages else package
            for heading, part in groups.items()
            for name in part
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self.aliases.get(cmd_name, cmd_name)
        if name not in self.table:
            return None
        module = importlib.import_module(
            f"{self.homes[name]}.{_MODULES.get(name, name.replace('-', '_'))}"
        )
        found = (one for one in vars(module).values() if isinstance(one, click.Command))
        return next(one for one in found if one.name == name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that *args* begin with; an unknown one is a wrong usage."""
        if len(args) > 1 and f"{args[0]} {args[1]}" in self.aliases:
            args = args[1:]
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            ctx.fail(f"No such command '{args[0]}'.{self._advice(ctx, args[0])}")
        return super().resolve_command(ctx, args)

    def _advice(self, ctx: click.Context, typed: str) -> str:
        """Return a question that names the commands that *typed* may mean."""
        known = {name: name for name in self.table}
        for name, whole in self._inner_commands(ctx):
            known.setdefault(name, whole)
        alike = difflib.get_close_matches(typed.lower(), sorted(known), cutoff=_ALIKE)
        if not alike:
            return f" See: {ctx.command_path} --help"
        return " Did you mean " + " or ".join(f"'{known[name]}'" for name in alike) + "?"

    def _inner_commands(self, ctx: click.Context) -> Iterator[tuple[str, str]]:
        """Yield the commands of groups in here, alone and with the name of their group.

        Imports every command, and only a mistyped command waits for that.
        """
        for outer in self.table:
            command = self.get_command(ctx, outer)
            for name in command.list_commands(ctx) if isinstance(command, click.Group) else ():
                yield name, f"{outer} {name}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, without importing any of them."""
        widest = max(map(len, self.table))
        for heading, part in self.groups.items():
            with formatter.section(heading):
                # One width for all headings, so that the sentences stand in one column.
                formatter.write_dl([(name.ljust(widest), line) for name, line in part.items()])
