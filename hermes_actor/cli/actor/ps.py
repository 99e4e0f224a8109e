"""``hermes-actor ps``: every actor of this user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hermes_actor.cli.every_store import all_option, ask_at_once
from hermes_actor.cli.options import json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.client.control import ask_status
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.paths import default_home, is_gone, resolve_paths, stores_below
from hermes_actor.system.lock_inspection import owners

__all__ = ["ps"]

_ANSWER_SECONDS = 2.0
"""Longest wait for the answers of all actors together: an actor that runs answers in milliseconds,
also beside a busy writer, and the others in the list should not wait for one that is stopped."""


@click.command()
@json_option
@all_option
def ps(as_json: bool, every: bool) -> None:
    """List all actors of this user.

    Shows process, build, kind, phase, clients and file of each. A process in embedded mode owns its
    store too, and is listed as "embedded".

    With --all, stores below HERMES_HOME without an owner are listed, too.

    Exit codes: 0, even if there is none.

    \b
    Examples:
      hermes-actor ps
      hermes-actor ps --json | jq -r '.[].database'
    """
    running = owners()
    found = _describe_all(running)
    if every:
        owned = {db for _, db in running}
        found += [
            _nothing_known(None, paths.db) | {"phase": "not running"}
            for paths in stores_below(default_home())
            if paths.db not in owned
        ]
    rows = [("PID", "BUILD", "KIND", "PHASE", "CLIENTS", "FILE")]
    rows += [
        (str(one["pid"] or "-"), one["build"] or "?", one["kind"] or "?", one["phase"],
         "?" if one["clients"] is None else str(one["clients"]), one["database"])
        for one in found
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    print_result(found, "\n".join(lines) if found else "no actors are running", as_json)


def _nothing_known(pid: int | None, db: Path) -> dict[str, Any]:
    known = {"pid": pid, "build": None, "kind": None, "phase": "embedded", "clients": None}
    return known | {"database": str(db)}


def _describe_all(running: Sequence[tuple[int, Path]]) -> list[dict[str, Any]]:
    answers = ask_at_once(lambda one: _describe(*one), running)
    return [answer.result() for answer in answers.values()]


def _describe(pid: int, db: Path) -> dict[str, Any]:
    one = _nothing_known(pid, db)
    try:
        return one | _ask(pid, db)
    except (DeadlineExceeded, OSError):
        return one | {"phase": "not answering"}
    except Exception:
        # Whatever is wrong with one actor, the others are listed.
        return one | {"phase": "?"}


def _ask(pid: int, db: Path) -> dict[str, Any]:
    if is_gone(db.parent):
        return {"phase": "home deleted"}
    status = ask_status(resolve_paths(db), _ANSWER_SECONDS)
    if status is None:
        return {}
    if status.pid != pid:
        return {"phase": f"replaced by pid {status.pid}"}
    clients = len(status.clients(except_pid=os.getpid()))
    known = {"build": status.build, "kind": status.kind}
    return known | {"phase": status.phase_text, "clients": clients}
