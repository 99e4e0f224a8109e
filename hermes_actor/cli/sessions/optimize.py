"""``sessions optimize``: merge the full-text indexes and shrink the file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hermes_actor import limits
from hermes_actor.cli.options import db_option, json_option, yes_option
from hermes_actor.cli.output.console import confirm, print_result
from hermes_actor.cli.sessions.stats import MIB, size_of
from hermes_actor.cli.store import existing_paths, server_of

__all__ = ["optimize"]


@click.command()
@yes_option
@json_option
@db_option
def optimize(yes: bool, as_json: bool, db: Path | None) -> None:
    """Merge the full-text indexes and shrink the file.

    The indexes are merged in slices, between which others can write. Then the actor rewrites the
    file without unused pages; other writers wait meanwhile, so you are asked first. To see how long
    that takes: hermes-actor vacuum --report. On a server there is nothing to do.

    Exit codes: 0 done, 1 declined or not possible.

    \b
    Example:
      hermes-actor sessions optimize
    """
    from hermes_actor.cli.command_store import open_file

    if (server := server_of(db)) is not None:
        print_result(
            {"indexes": 0, "store": server.address},
            f"Nothing to do: {server.address} maintains its indexes by itself.",
            as_json,
        )
        return
    existing_paths(db)  # not an empty file
    with open_file(db, limits.MAINTENANCE_SECONDS) as store:
        confirm(f"Rewrite {store.address}? Other programs cannot write to it meanwhile.", yes)
        # With --json to standard error: a person sees it, a parser does not.
        print("Optimizing session store…", file=sys.stderr if as_json else sys.stdout, flush=True)
        before = size_of(store.paths.db) + size_of(store.paths.wal)
        merged = store.merge_indexes()
        store.vacuum()
        after = size_of(store.paths.db) + size_of(store.paths.wal)
    old, new, freed = (f"{size / MIB:.1f} MB" for size in (before, after, before - after))
    print_result(
        {"indexes": merged, "bytes_before": before, "bytes_after": after},
        f"Optimized {merged} full-text {'index' if merged == 1 else 'indexes'}.\n"
        f"Database size: {old} -> {new} (reclaimed {freed})",
        as_json,
    )
