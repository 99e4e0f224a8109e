"""The command line: one module per command group, imported when its command is named."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from hermes_actor._version import __version__

__all__ = ["run"]

_GROUPS = {
    "backup": "hermes_actor.cli.update:backup",
    "demo": "hermes_actor.cli.demo:demo",
    "drain": "hermes_actor.cli.life:drain",
    "export-schema": "hermes_actor.cli.schema:export_schema",
    "handoff": "hermes_actor.cli.handoff:handoff",
    "logs": "hermes_actor.cli.life:logs",
    "ps": "hermes_actor.cli.life:ps",
    "restart": "hermes_actor.cli.life:restart",
    "serve": "hermes_actor.cli.serve:serve",
    "service": "hermes_actor.cli.service:service",
    "sessions": "hermes_actor.cli.sessions:sessions",
    "stop": "hermes_actor.cli.life:stop",
    "status": "hermes_actor.cli.status:status",
    "update": "hermes_actor.cli.update:update",
}
"""Command name → ``module:attribute``."""


class _LazyGroup(click.Group):
    """A group that knows its commands by name and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _GROUPS:
            return None
        module, _, attribute = _GROUPS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hermes-actor")
def main() -> None:
    """One writer that serves every process of an agent.

    The store is HERMES_HOME/state.db (default ~/.hermes/state.db).
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit code: 0 done, 1 refused, 2 wrong usage, 130 interrupted."""
    from hermes_actor.errors import HermesActorError

    try:
        result: Any = main.main(list(arguments), prog_name="hermes-actor", standalone_mode=False)
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except HermesActorError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read our output has had enough; the interpreter must not complain at exit.
        sys.stdout = None
        return 0
    return result if isinstance(result, int) else 0
