"""How a command says no: one line, and an exit code that scripts can see."""

from __future__ import annotations

import sys
from typing import IO, Any, NoReturn

import click

from hermes_actor import exits

__all__ = ["Refused", "refuse"]


class Refused(click.ClickException):
    """The command understood and could not do it."""

    exit_code = exits.REFUSED

    def __init__(self, message: str, *, to_stderr: bool) -> None:
        super().__init__(message)
        self._to_stderr = to_stderr

    def show(self, file: IO[Any] | None = None) -> None:
        # On standard output like every other answer, unless a program reads that.
        print(self.message, file=sys.stderr if self._to_stderr else sys.stdout)


def refuse(message: str, *, prefix: str = "Error: ") -> NoReturn:
    """End the command with one line and exit code 1."""
    context = click.get_current_context(silent=True)
    given = context.params if context is not None else {}
    data = bool(given.get("as_json")) or given.get("output") == "-"
    raise Refused(prefix + message, to_stderr=data)
