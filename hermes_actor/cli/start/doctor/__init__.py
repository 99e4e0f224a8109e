"""``hermes-actor doctor``: check a store and its environment, and say what to fix."""

from __future__ import annotations

import re
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click

from hermes_actor import exit_codes
from hermes_actor.cli.every_store import for_every_store
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.console import confirm_or_fail, print_result, progress
from hermes_actor.cli.output.formatting import styled, wrapped
from hermes_actor.cli.start.doctor.checks import CHECKS
from hermes_actor.cli.start.doctor.content import RESTORE
from hermes_actor.cli.start.doctor.findings import Check, Finding
from hermes_actor.errors import HermesActorError
from hermes_actor.paths import StorePaths, default_db_path, resolve_paths
from hermes_actor.recovery.integrity import check

__all__ = ["doctor"]

_ABOUT_A_STORE = "backup|handoff|logs|repair|restore|restart|status|stop"
_MARKS = {"broken": "BROKEN"}
_INDENT = 8
"""Width of a mark and the blank behind it."""
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "broken": "red"}


@click.command()
@db_option
@click.option("--quick", is_flag=True, help="Skip the integrity check of the whole file.")
@json_option
@for_every_store()
@click.pass_context
def doctor(context: click.Context, db: Path | None, quick: bool, as_json: bool) -> int:
    """Check the store and its environment, and say what to fix.

    Checks versions, settings, permissions, the file system, the linked SQLite, hermes-agent in this
    environment, the actor, other programs that have the file open, index files of gateways, files
    that an accident left behind, and backups. Meanwhile a reader checks every table in the
    background, with progress on a terminal. Nothing is changed. If a table is damaged, you are
    offered the repair.

    Exit codes: 0 no problems (notes do not count), 1 something needs your attention, 6 the store is
    damaged or its actor is broken.

    \b
    Examples:
      hermes-actor doctor
      hermes-actor doctor --all --quick
      hermes-actor doctor --json | jq '.findings[] | select(.level != "ok")'
    """
    paths = resolve_paths(db or default_db_path())  # a home on a server, too, has much to look at
    integrity = _IntegrityCheck(paths) if paths.db.is_file() and not quick else None
    found: list[Finding] = []

    def report(one: Finding) -> None:
        # A file that cannot be opened is found by the quick look and by the whole check.
        if all(one.text != other.text for other in found):
            found.append(one._replace(advice=_for_store(one.advice, db)))
            _show(found[-1], as_json)

    for check_one in CHECKS:
        for one in _safely(check_one, paths):
            report(one)
    damaged = False
    if integrity is not None:
        with progress("checking the whole file") as tell:
            result = integrity.wait(tell)
        damaged = any(one.level == "broken" for one in result)
        for one in result:
            report(one)
    levels = {one.level for one in found}
    if as_json:
        healthy = not levels & {"warning", "broken"}
        findings = [one._asdict() for one in found]
        print_result({"healthy": healthy, "findings": findings}, "", as_json)
    elif damaged and sys.stdin.isatty() and confirm_or_fail("Repair it now?", yes=False):
        from hermes_actor.cli.safety.repair import repair

        return int(context.invoke(repair, db=db))
    if "broken" in levels:
        return exit_codes.BROKEN
    return exit_codes.REFUSED if "warning" in levels else exit_codes.OK


def _for_store(advice: str, db: Path | None) -> str:
    """Return advice whose commands are about the store that ``--db`` has named."""
    if db is None:
        return advice
    named = rf"hermes-actor \1 --db {shlex.quote(str(db))}"
    return re.sub(rf"hermes-actor ({_ABOUT_A_STORE})\b", named, advice)


def _safely(check_one: Check, paths: StorePaths) -> list[Finding]:
    """Return the findings of one check; one that fails must not hide what the others find."""
    try:
        return list(check_one(paths))
    except (HermesActorError, OSError) as error:
        return [Finding("warning", check_one.__name__, f"could not be checked: {error}")]


def _show(one: Finding, as_json: bool) -> None:
    if as_json:
        return
    mark = styled(f"{_MARKS.get(one.level, one.level):<7}", fg=_COLOURS[one.level])
    print(f"{mark} {wrapped(f'{one.area}: {one.text}', _INDENT)}", flush=True)
    if one.level != "ok" and one.advice:
        print(" " * _INDENT + wrapped(f"do: {one.advice}", _INDENT), flush=True)


class _IntegrityCheck:
    """The check of the whole file, in a thread beside the others."""

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
        return self._found or [Finding("ok", "integrity", "no table is damaged")]

    def _run(self) -> None:
        try:
            found = check(self._paths.db, lambda *done: setattr(self, "_done", done))
        except HermesActorError as error:
            self._found.append(Finding("broken", "integrity", str(error), RESTORE))
            return
        for table in dict.fromkeys(one.table for one in found):
            texts = "; ".join(one.text for one in found if one.table == table)
            text = f"table {table} of {self._paths.db}: {texts}"
            self._found.append(Finding("broken", "integrity", text, "hermes-actor repair"))
