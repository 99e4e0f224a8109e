"""``gateway migrate-transcripts``: store the messages of older transcript files."""

from __future__ import annotations

import time
from pathlib import Path

import click

from hermes_actor.cli.gateway._store import folder_option, opened, opened_to_read
from hermes_actor.cli.options import db_option, dry_run_option, json_option
from hermes_actor.cli.output.console import print_result, waiting

__all__ = ["migrate_transcripts"]


@click.command("migrate-transcripts")
@dry_run_option
@folder_option
@json_option
@db_option
def migrate_transcripts(dry_run: bool, folder: Path | None, as_json: bool, db: Path | None) -> None:
    """Store the messages of older transcript files.

    Takes over every *.jsonl that has more messages than its session, and creates sessions that are
    missing. Each file is one change, and gets the ending .migrated after it.

    Exit codes: 0 done.

    \b
    Examples:
      hermes-actor gateway migrate-transcripts --dry-run
      hermes-actor gateway migrate-transcripts --json
    """
    from hermes_actor.gateway.migration import migrate_transcripts as migrate

    start, at = time.monotonic(), [""]
    # What would be done is read: no actor is started for it, and nothing is imported.
    open_ = opened_to_read if dry_run else opened
    with open_(db, folder) as store, waiting(lambda: f"reading {at[0]} …"):
        done = migrate(
            store.db,
            store.sessions_dir,
            store.scope,
            dry_run=dry_run,
            progress=lambda name: at.__setitem__(0, name),
        )
    seconds = time.monotonic() - start
    text = (
        f"Migrated {done.sessions} sessions, {done.messages} messages, {done.skipped} skipped"
        f" in {seconds:.1f}s"
    )
    print_result(done._asdict() | {"dry_run": dry_run}, text, as_json)
