"""Errors of commands: one line on standard error, and an exit code.

With ``--json`` the line is an object with the keys ``error`` and ``code``. Standard output carries
results only, so a program that reads it never takes an error for a result.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from hermes_actor import exit_codes
from hermes_actor.cli.output.formatting import plain, wrapped

__all__ = ["CommandError", "fail", "print_error", "show_error"]


class CommandError(click.ClickException):
    """A command failed for a reason that its message states."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def fail(message: str, *, prefix: str = "Error: ", code: int = exit_codes.REFUSED) -> NoReturn:
    """End the command with one line and an exit code.

    Raises :class:`CommandError`, which the program prints.
    """
    raise CommandError(prefix + message, code)


def print_error(text: str, code: int = exit_codes.REFUSED) -> None:
    """Print an error and return; the command will exit with *code*."""
    context = click.get_current_context(silent=True)
    as_json = context is not None and bool(context.params.get("as_json"))
    show_error(f"Error: {text}", code, as_json=as_json)


def show_error(text: str, code: int, *, as_json: bool) -> None:
    """Print an error as text or as JSON.

    Names in it come from rows and from other programs: control characters are removed, and bytes
    of a path that are not UTF-8 are escaped.
    """
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if as_json:
        import json

        shown = json.dumps({"error": text.removeprefix("Error: "), "code": code})
    else:
        shown = "\n".join(wrapped(plain(line), 0, sys.stderr) for line in text.split("\n"))
    print(shown, file=sys.stderr, flush=True)
