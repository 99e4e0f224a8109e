"""``hermes-actor migrate``: copy a store to another provider."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.agents._store import opened
from hermes_actor.cli.options import dry_run_option, force_option, json_option, yes_option
from hermes_actor.cli.output.console import confirm, print_result, progress, waiting
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.files import checked_output
from hermes_actor.cli.store import creatable_paths, existing_paths
from hermes_actor.paths import default_db_path, resolve_paths

if TYPE_CHECKING:
    from hermes_actor.api.provider import SessionDBProvider
    from hermes_actor.providers.migration.sessions import Tell
    from hermes_actor.providers.resolve import StoreSpec
    from hermes_actor.store.raw_rows import StoreSummary

__all__ = ["migrate"]


@click.command()
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
@click.option("--agents", is_flag=True, help="Copy an agent store in place of sessions.")
@force_option
@yes_option
@json_option
def migrate(
    to: str,
    from_: str | None,
    dry_run: bool,
    report: str | None,
    agents: bool,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Copy all sessions to another provider, and verify the copy.

    Everything is copied as it is: ids, times, titles, parents, Telegram topics, archive marks,
    queued titles. Then the target is read back, the checksums of all sessions are compared, and the
    search indexes are built. The source is only read, and nothing is switched over: set sessiondb
    in config.yaml when you are ready.

    Run the command again to continue an interrupted run, or to copy what the source has received
    since. The target must be empty, or filled by an earlier run and unchanged since. You are asked
    before a new file is created. With --agents the store of agents is copied and compared row by
    row; its target must be empty.

    Exit codes: 0 copied and verified, 1 refused, declined or not finished; the source is unchanged.

    \b
    Examples:
      hermes-actor migrate --to postgresql://hermes@db.example/hermes --dry-run
      hermes-actor migrate --to postgresql://hermes@db.example/hermes --report moved.json
      hermes-actor migrate --from postgresql://hermes@db.example/hermes --to ~/.hermes/state.db
      hermes-actor migrate --from ~/old/state.db --to mysql://root@localhost/hermes
      hermes-actor migrate --agents --to postgresql://hermes@db.example/agents
    """
    if agents:
        _migrate_agents(from_, to, dry_run, as_json)
        return
    source, target = _choice(from_), _choice(to)
    if source.file is not None:
        existing_paths(source.file if from_ is not None else None)
    if target.file is not None:
        creatable_paths(target.file)
    stores = [resolve_paths(one.file) for one in (source, target) if one.file is not None]
    # Now, not after the copy.
    output = None if report is None else checked_output(report, *stores, force=force)
    if dry_run:
        _dry_run(source, target, as_json)
        return
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
        with output.writing() as file:
            file.write(json.dumps(result.document(), indent=1).encode() + b"\n")
    document = result.document()
    document.pop("checksums")
    print_result(document, result.summary(), as_json)


def _migrate_agents(from_: str | None, to: str, dry_run: bool, as_json: bool) -> None:
    from hermes_actor.agent_store.migration import move

    with opened(from_) as source:
        if dry_run:
            counts = source.agents.counts()
            print_result(counts, f"would copy {sum(counts.values()):,} rows", as_json)
            return
        with opened(to, new=True) as target, progress("copying agents") as tell:
            counts = move(source, target, tell)
    text = f"copied and verified {sum(counts.values()):,} rows"
    print_result({"rows": counts, "verified": True}, text, as_json)


# --- the two stores --------------------------------------------------------------------------


def _choice(given: str | None) -> StoreSpec:
    from hermes_actor.providers.resolve import StoreSpec, choose_by_settings, choose_by_url, is_url

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


def _dry_run(source: StoreSpec, target: StoreSpec, as_json: bool) -> None:
    from hermes_actor.providers.migration.migration import check

    ours, theirs = _facts(source), _facts(target)
    if ours is None:
        fail(f"there is no store at {source.address}")
    sessions, messages = (theirs.sessions, theirs.messages) if theirs else (0, 0)
    if check(ours, theirs):
        state, words = "begun", f"it has {messages:,} messages of an earlier run"
    elif theirs is None:
        state, words = "missing", "it does not exist yet"
    else:
        state, words = "empty", "it is empty"
    document = {
        "from": source.address,
        "to": target.address,
        "sessions": ours.sessions,
        "messages": ours.messages,
        "target": {"state": state, "sessions": sessions, "messages": messages},
    }
    text = (
        f"Would migrate {ours.sessions:,} sessions, {ours.messages:,} messages\n"
        f"  from {source.address}\n  to   {target.address}: {words}\n"
        "Nothing was changed."
    )
    print_result(document, text, as_json)


# --- progress --------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress() -> Iterator[Tell]:
    """Give a function that shows the progress of the step that it names, one after the other."""
    with contextlib.ExitStack() as stack:
        step: str | None = None
        show: Callable[[int, int], None]

        def tell(what: str, done: int, total: int) -> None:
            nonlocal step, show
            if what != step:
                stack.close()
                step, show = what, stack.enter_context(progress(what))
            show(done, total)

        yield tell
