"""``hermes-actor migrate``: copy a store to another provider."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor import exit_codes
from hermes_actor.cli.errors import fail
from hermes_actor.cli.options import dry_run_option, force_option, json_option, yes_option
from hermes_actor.cli.output import confirm, print_result, waiting
from hermes_actor.cli.output_files import Output, checked_output
from hermes_actor.cli.store import creatable_paths, existing_paths
from hermes_actor.paths import default_db_path, resolve_paths

if TYPE_CHECKING:
    from hermes_actor.api.provider import SessionDBProvider
    from hermes_actor.providers.migration.sessions import Tell
    from hermes_actor.providers.resolve import StoreSpec
    from hermes_actor.store.raw_rows import StoreSummary

__all__ = ["migrate", "sessiondb"]


@click.group()
def sessiondb() -> None:
    """Manage where sessions are stored."""


@sessiondb.command()
@click.option("--to", required=True, metavar="URL", help="Target store: a URL or a path.")
@click.option(
    "--from", "from_", metavar="URL",
    help="Source store: a URL or a path. Default: the store of HERMES_HOME.",
)  # fmt: skip
@dry_run_option
@click.option(
    "--report", metavar="FILE",
    help="Write counts and checksums of every session to this file, as JSON.",
)  # fmt: skip
@force_option
@yes_option
@json_option
def migrate(
    to: str,
    from_: str | None,
    dry_run: bool,
    report: str | None,
    force: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Copy all sessions to another provider, and verify the copy.

    Everything is copied as it is: ids, times, titles, parents, Telegram topics, archive marks,
    queued titles. Then the target is read back, the checksums of all sessions are compared, and the
    search indexes are built. The source is only read, and nothing is switched over: set sessiondb
    in config.yaml when you are ready.

    Run the command again to continue an interrupted run, or to copy what the source has received
    since. The target must be empty, or filled by an earlier run and unchanged since. You are asked
    before a new file is created.

    Exit codes: 0 copied and verified, 1 refused, declined or not finished; the source is unchanged.

    \b
    Examples:
      hermes-actor migrate --to postgresql://hermes@db.example/hermes --dry-run
      hermes-actor migrate --to postgresql://hermes@db.example/hermes --report moved.json
      hermes-actor migrate --from postgresql://hermes@db.example/hermes --to ~/.hermes/state.db
      hermes-actor sessiondb migrate --from ~/old/state.db --to mysql://root@localhost/hermes
    """
    source, target = _choice(from_), _choice(to)
    if source.file is not None:
        existing_paths(source.file if from_ is not None else None)
    if target.file is not None:
        creatable_paths(target.file)
    stores = [resolve_paths(one.file) for one in (source, target) if one.file is not None]
    # Now, not after the copy.
    output = None if report is None else checked_output(report, *stores, force=force)
    if dry_run:
        return _dry_run(source, target, as_json)
    if target.file is not None and not target.file.exists():
        confirm(f"Create a new store at {target.file}?", yes)
    with _opened(source) as ours, _opened(target) as theirs, _progress() as tell:
        from hermes_actor.providers.migration.endpoint import MigrationEndpoint
        from hermes_actor.providers.migration.migration import Migration

        move = Migration(
            MigrationEndpoint(ours, source.address), MigrationEndpoint(theirs, target.address), tell
        )
        try:
            result = move.run()
        except KeyboardInterrupt:
            print("Interrupted; run the same command again to continue.", file=sys.stderr)
            raise
    if output is not None:
        _write(output, result.document())
    document = result.document()
    document.pop("checksums")
    print_result(document, result.summary(), as_json)
    return exit_codes.OK


# --- the two stores --------------------------------------------------------------------------


def _choice(given: str | None) -> StoreSpec:
    from hermes_actor.providers.resolve import (
        StoreSpec,
        choose_by_settings,
        choose_by_url,
        is_url,
    )

    home_file = default_db_path()
    if given is None:
        return choose_by_settings(home_file.parent) or StoreSpec("sqlite", str(home_file), {})
    if is_url(given):
        return choose_by_url(given)
    return StoreSpec("sqlite", str(Path(given).expanduser().absolute()), {})


@contextlib.contextmanager
def _opened(choice: StoreSpec) -> Iterator[SessionDBProvider]:
    with waiting(lambda: f"opening {choice.address}"):
        if choice.name == "sqlite" and "://" not in choice.url:
            from hermes_actor.session_db import SessionDB

            db: Any = SessionDB(Path(choice.url))
        else:
            db = choice.open()
    with contextlib.closing(db):
        yield db


def _facts(choice: StoreSpec) -> StoreSummary | None:
    """Summarize a store without creating it; ``None`` if there is none."""
    file = choice.file
    if file is None:
        from hermes_actor.providers.resolve import provider_class

        summary: Any = getattr(provider_class(choice.name), "summary", None)
        if summary is not None:
            found: StoreSummary | None = summary(choice.url, settings=choice.settings)
            return found
    elif not file.exists():
        return None
    from hermes_actor.providers.migration.endpoint import MigrationEndpoint

    with _opened(choice) as db:
        return MigrationEndpoint(db, choice.address).facts()


def _dry_run(source: StoreSpec, target: StoreSpec, as_json: bool) -> int:
    from hermes_actor.providers.migration.migration import check

    ours, theirs = _facts(source), _facts(target)
    if ours is None:
        fail(f"there is no store at {source.address}")
    goes_on = check(ours, theirs)
    state = "goes on" if goes_on else "is new" if theirs is None else "is empty"
    document = {
        "from": source.address,
        "to": target.address,
        "sessions": ours.sessions,
        "messages": ours.messages,
        "target": {
            "state": {"goes on": "begun", "is new": "missing", "is empty": "empty"}[state],
            "sessions": theirs.sessions if theirs else 0,
            "messages": theirs.messages if theirs else 0,
        },
    }
    words = {
        "goes on": f"it has {document['target']['messages']:,} messages of an earlier run",  # type: ignore[index]
        "is new": "it does not exist yet",
        "is empty": "it is empty",
    }[state]
    text = (
        f"Would migrate {ours.sessions:,} sessions, {ours.messages:,} messages\n"
        f"  from {source.address}\n  to   {target.address}: {words}\n"
        "Nothing was changed."
    )
    print_result(document, text, as_json)
    return exit_codes.OK


# --- the report ------------------------------------------------------------------------------


def _write(report: Output, document: dict[str, Any]) -> None:
    with report.writing() as file:
        file.write(json.dumps(document, indent=1).encode() + b"\n")


# --- progress --------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress() -> Iterator[Tell]:
    """A bar with rate and time left on a terminal; otherwise lines on standard error."""
    if sys.stderr.isatty():
        with _bar() as tell:
            yield tell
        return
    pace = _Pace()
    with waiting(pace.words):
        yield pace.tell


class _Pace:
    """Rate and remaining time of a step, as text that changes with every tenth of it."""

    def __init__(self) -> None:
        self._now = ("opening", 0, 0)
        self._began = time.monotonic()

    def tell(self, what: str, done: int, total: int) -> None:
        if what != self._now[0]:
            self._began = time.monotonic()
        self._now = (what, done, total)

    def words(self) -> str:
        what, done, total = self._now
        if not total:
            return what
        rate = done / max(time.monotonic() - self._began, 0.001)
        share = 10 * done // total
        if share == self._shown_share(what):
            return self._last
        left = (total - done) / rate if rate else 0.0
        self._shown = (what, share)
        self._last = f"{what}, {share * 10} %, {rate:,.0f}/s, {left:.0f} s left"
        return self._last

    _shown = ("", -1)
    _last = ""

    def _shown_share(self, what: str) -> int:
        return self._shown[1] if self._shown[0] == what else -1


@contextlib.contextmanager
def _bar() -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield tell
