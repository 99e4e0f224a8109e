"""``sessions stats``: count sessions and messages, and show the file size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.formatting import count, plain
from hermes_actor.cli.store import ReadableStore, open_read_only
from hermes_actor.store import queries
from hermes_actor.store.sessions import counts as visible

__all__ = ["MIB", "size_of", "stats"]

_ANSWERED_BY = visible  # imported for its answer
MIB = 1_048_576


@click.command()
@json_option
@db_option
def stats(as_json: bool, db: Path | None) -> None:
    """Count sessions and messages, and show the file size.

    Archived sessions and their messages are not counted. A store on a server has no file size.

    Exit codes: 0, 1 the store cannot be read.

    \b
    Examples:
      hermes-actor sessions stats
      hermes-actor sessions stats --json | jq .by_source
    """
    with open_read_only(db) as store:
        found = _statistics(store)
    lines = [f"Total sessions: {found['sessions']}", f"Total messages: {found['messages']}"]
    lines += [
        f"  {plain(source)}: {count(n, 'session')}" for source, n in found["by_source"].items()
    ]
    if found.get("db_bytes"):
        lines.append(f"Database size: {found['db_bytes'] / MIB:.1f} MB")
    print_result(found, "\n".join(lines), as_json)


def _statistics(store: ReadableStore) -> dict[str, Any]:
    counts, messages = store.query(queries.visible_counts)
    found = {"sessions": sum(counts.values()), "messages": messages, "by_source": counts}
    if store.file is not None:
        found |= {"db_bytes": size_of(store.file.db), "wal_bytes": size_of(store.file.wal)}
    return found


def size_of(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist."""
    # By path, never by opening: another descriptor on the file would drop SQLite's locks.
    return path.stat().st_size if path.exists() else 0
