"""``sessions stats``: count sessions and messages, and show the file size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hermes_actor.cli.formatting import plain
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output import print_result
from hermes_actor.cli.store import ReadOnlyStore, open_read_only
from hermes_actor.store.counts import visible_counts

__all__ = ["MIB", "size_of", "stats"]

_FIRST_SOURCES = ("cli", "telegram", "discord", "whatsapp", "slack")
MIB = 1_048_576


@click.command()
@json_option
@db_option
def stats(as_json: bool, db: Path | None) -> None:
    """Count sessions and messages, and show the file size.

    Archived sessions and their messages are not counted.

    Exit codes: 0, 1 the store cannot be read.

    \b
    Examples:
      hermes-actor sessions stats
      hermes-actor sessions stats --json | jq .by_source
    """
    with open_read_only(db) as store:
        found = _statistics(store)
    lines = [f"Total sessions: {found['sessions']}", f"Total messages: {found['messages']}"]
    lines += [f"  {plain(source)}: {n} sessions" for source, n in found["by_source"].items()]
    if found["db_bytes"]:
        lines.append(f"Database size: {found['db_bytes'] / MIB:.1f} MB")
    print_result(found, "\n".join(lines), as_json)


def _statistics(store: ReadOnlyStore) -> dict[str, Any]:
    counts, messages = store.read(visible_counts)
    return {
        "sessions": sum(counts.values()),
        "messages": messages,
        "by_source": {
            **{source: counts[source] for source in _FIRST_SOURCES if source in counts},
            **{source: n for source, n in counts.items() if source not in _FIRST_SOURCES},
        },
        "db_bytes": size_of(store.paths.db),
        "wal_bytes": size_of(store.paths.wal),
    }


def size_of(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist."""
    # By path, never by opening: another descriptor on the file would drop SQLite's locks.
    return path.stat().st_size if path.exists() else 0
