"""``hermes-actor doctor``: what is wrong with a store and its surroundings, and what to do."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from hermes_actor import exit_codes
from hermes_actor.cli.doctor.checks import CHECKS, Finding
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output import confirm_or_fail, progress
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import StorePaths, default_db_path, resolve_paths
from hermes_actor.recovery.integrity import check

__all__ = ["doctor"]

_MARKS = {"ok": "ok     ", "note": "note   ", "warning": "warning", "broken": "BROKEN "}
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "broken": "red"}


@click.command()
@db_option
@click.option("--quick", is_flag=True, help="Skip the integrity check of the whole file.")
@json_option
@click.pass_context
def doctor(context: click.Context, db: Path | None, quick: bool, as_json: bool) -> int:
    """Check the store and its environment, and say what to fix.

    Checks versions, settings, permissions, the file system, the linked SQLite, hermes-agent in this
    environment, the actor, other programs that have the file open, files that an accident left
    behind, and backups. Meanwhile a reader checks every table in the background, with progress on a
    terminal. Nothing is changed. If a table is damaged, you are offered the repair.

    Exit codes: 0 no problems (notes do not count), 1 something needs your attention, 6 the store is
    damaged or its actor is broken.

    \b
    Examples:
      hermes-actor doctor
      hermes-actor doctor --quick
      hermes-actor doctor --json | jq '.findings[] | select(.level != "ok")'
    """
    paths = resolve_paths(db or default_db_path())  # a home on a server, too, has much to look at
    looking = _Looking(paths) if paths.db.is_file() and not quick else None
    found: list[Finding] = []
    for look in CHECKS:
        for one in _safely(look, paths):
            found.append(one)
            _show(one, as_json)
    damaged = False
    if looking is not None:
        with progress("checking the whole file") as tell:
            result = looking.wait(tell)
        damaged = any(one.level == "broken" for one in result)
        for one in result:
            found.append(one)
            _show(one, as_json)
    levels = {one.level for one in found}
    if as_json:
        healthy = not levels & {"warning", "broken"}
        print(json.dumps({"healthy": healthy, "findings": [one._asdict() for one in found]}))
    elif damaged and sys.stdin.isatty() and confirm_or_fail("Repair it now?", yes=False):
        from hermes_actor.cli.repair import repair

        return int(context.invoke(repair, db=db))
    if "broken" in levels:
        return exit_codes.BROKEN
    return exit_codes.REFUSED if "warning" in levels else exit_codes.OK


def _safely(look: Callable[[StorePaths], Iterable[Finding]], paths: StorePaths) -> list[Finding]:
    """One look that fails must not keep the others from people who are in trouble."""
    try:
        return list(look(paths))
    except (HermesActorError, OSError) as error:
        return [Finding("warning", look.__name__, f"could not be looked at: {error}")]


def _show(one: Finding, as_json: bool) -> None:
    if as_json:
        return
    mark = _MARKS[one.level]
    if not os.environ.get("NO_COLOR"):
        mark = click.style(mark, fg=_COLOURS[one.level])  # taken away where there is no terminal
    click.echo(f"{mark} {one.area}: {one.text}")
    if one.level != "ok" and one.advice:
        click.echo(f"        do: {one.advice}")


class _Looking:
    """The check of the whole file, beside everything else."""

    def __init__(self, paths: StorePaths) -> None:
        self._paths = paths
        self._done = (0, 0)
        self._found: list[Finding] = []
        self._thread = threading.Thread(target=self._run, name="check", daemon=True)
        self._thread.start()

    def wait(self, tell: Callable[[int, int], None]) -> list[Finding]:
        while self._thread.is_alive():
            self._thread.join(0.1)
            tell(*self._done)
        return self._found

    def _run(self) -> None:
        try:
            found = check(self._paths.db, self._tell)
            for table in dict.fromkeys(one.table for one in found):
                texts = "; ".join(one.text for one in found if one.table == table)
                finding = Finding("broken", "content", f"{table}: {texts}", "hermes-actor repair")
                self._found.append(finding)
        except HermesActorError as error:
            advice = "hermes-actor restore --list; hermes-actor repair"
            self._found.append(Finding("broken", "content", str(error), advice))
        if not self._found:
            self._found.append(Finding("ok", "content", "every table is sound"))

    def _tell(self, done: int, total: int) -> None:
        self._done = (done, total)
