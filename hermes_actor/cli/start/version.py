"""``hermes-actor version``: what to name in a report of a fault."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import hermes_actor
from hermes_actor._version import __version__
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.sqlite import sqlite3, wal_reset_safe
from hermes_protocol.messages import PROTOCOL

__all__ = ["version"]


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the versions of this program and of what it runs on.

    Name them when you report a fault. `hermes-actor --version` prints the first line alone.

    Exit codes: 0 shown.

    \b
    Examples:
      hermes-actor version
      hermes-actor version --json | jq -r .sqlite
    """
    document = {
        "version": __version__,
        "protocol": PROTOCOL,
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "platform": sys.platform,
        "folder": str(Path(hermes_actor.__file__).parent),
    }
    reset = "" if wal_reset_safe() else " (has the WAL-reset bug, fixed in 3.51.3)"
    lines = [
        f"hermes-actor, version {__version__}",
        f"  protocol  {PROTOCOL}",
        f"  python    {document['python']}, {sys.executable}",
        f"  sqlite    {document['sqlite']}{reset}",
        f"  code      {document['folder']}",
    ]
    print_result(document, "\n".join(lines), as_json)
