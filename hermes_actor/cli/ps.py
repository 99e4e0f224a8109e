"""``hermes-actor ps``: every actor of this user."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.options import json_option
from hermes_actor.client.control import ask_status
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.paths import is_gone, resolve_paths
from hermes_actor.system.lock_inspection import owners

__all__ = ["ps"]


@click.command()
@json_option
def ps(as_json: bool) -> int:
    """List all actors of this user.

    Shows process, build, kind, phase, clients and file of each. A process in embedded mode owns its
    store too, and is listed as "embedded".

    Exit codes: 0, even if there is none.

    \b
    Examples:
      hermes-actor ps
      hermes-actor ps --json | jq -r '.[].database'
    """
    found = [_describe(pid, db) for pid, db in owners()]
    if as_json:
        print(json.dumps(found))
        return exit_codes.OK
    if not found:
        print("no actor of this user runs")
        return exit_codes.OK
    rows = [("PID", "BUILD", "KIND", "PHASE", "CLIENTS", "FILE")]
    rows += [
        (str(one["pid"]), one["build"] or "?", one["kind"] or "?", one["phase"],
         "?" if one["clients"] is None else str(one["clients"]), one["database"])
        for one in found
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        head = "  ".join(text.ljust(width) for text, width in zip(row[:5], widths, strict=True))
        print(f"{head}  {row[5]}")
    return exit_codes.OK


def _describe(pid: int, db: Path) -> dict[str, Any]:
    one: dict[str, Any] = {"pid": pid, "build": None, "kind": None, "phase": "embedded"}
    one |= {"clients": None}
    one |= {"database": str(db)}
    try:
        return one | _ask(pid, db)
    except (DeadlineExceeded, OSError):
        return one | {"phase": "does not answer"}
    except Exception:
        # Whatever is wrong with one actor, the others are listed.
        return one | {"phase": "?"}


def _ask(pid: int, db: Path) -> dict[str, Any]:
    if is_gone(db.parent):
        return {"phase": "home is gone"}
    status = ask_status(resolve_paths(db))
    if status is None:
        return {}
    if status.pid != pid:
        return {"phase": f"beside pid {status.pid}"}
    clients = len(status.clients(except_pid=os.getpid()))
    known = {"build": status.build, "kind": status.kind}
    return known | {"phase": status.phase_text, "clients": clients}
