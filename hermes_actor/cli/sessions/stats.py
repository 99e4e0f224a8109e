"""``sessions stats`` and ``sessions optimize``: how much there is, and making it smaller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.files import store_for
from hermes_actor.cli.formatting import plain, print_json
from hermes_actor.cli.looking import ReadOnlyStore, looking
from hermes_actor.cli.output import confirm, db_option, json_option, yes_option
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema_features import features_of

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["optimize", "stats"]

_FIRST_SOURCES = ("cli", "telegram", "discord", "whatsapp", "slack")
_MIB = 1_048_576
_TIMEOUT_SECONDS = 3600.0
"""For a VACUUM: it takes as long as the file is large, and nobody else can do it meanwhile."""


@click.command()
@json_option
@db_option
def stats(as_json: bool, db: Path | None) -> None:
    """Count sessions and messages and tell the size of the file.

    Archived sessions and their messages are not counted.

    Exit codes: 0, 1 the store cannot be read.

    \b
    Examples:
      hermes-actor sessions stats
      hermes-actor sessions stats --json | jq .by_source
    """
    with looking(db) as store:
        found = _statistics(store)
    if as_json:
        print_json(found)
        return
    print(f"Total sessions: {found['sessions']}")
    print(f"Total messages: {found['messages']}")
    for source, count in found["by_source"].items():
        print(f"  {plain(source)}: {count} sessions")
    if found["db_bytes"]:
        print(f"Database size: {found['db_bytes'] / _MIB:.1f} MB")


def _statistics(store: ReadOnlyStore) -> dict[str, Any]:
    def count(conn: Connection) -> tuple[dict[str, int], int]:
        layout = features_of(conn)
        sources = conn.execute(
            f"SELECT s.source, COUNT(*) AS n FROM sessions s WHERE NOT {layout.is_archived}"
            " GROUP BY s.source ORDER BY n DESC, s.source"
        ).fetchall()
        # All messages come from one index; those of the few archived sessions are taken off.
        hidden = scalar(
            conn,
            "SELECT COUNT(*) FROM messages m JOIN sessions s ON s.id = m.session_id"
            f" WHERE {layout.is_archived}",
        ) if _has_archived(conn) else 0  # fmt: skip
        return dict(sources), scalar(conn, "SELECT COUNT(*) FROM messages") - hidden

    counts, messages = store.read(count)
    return {
        "sessions": sum(counts.values()),
        "messages": messages,
        "by_source": {
            **{source: counts[source] for source in _FIRST_SOURCES if source in counts},
            **{source: n for source, n in counts.items() if source not in _FIRST_SOURCES},
        },
        "db_bytes": _size(store.paths.db),
        "wal_bytes": _size(store.paths.wal),
    }


def _has_archived(conn: Connection) -> bool:
    archived = features_of(conn).is_archived
    return bool(scalar(conn, f"SELECT EXISTS (SELECT 1 FROM sessions s WHERE {archived})"))


def _size(path: Path) -> int:
    # By path, never by opening: another descriptor on the file would drop SQLite's locks.
    return path.stat().st_size if path.exists() else 0


@click.command()
@yes_option
@json_option
@db_option
def optimize(yes: bool, as_json: bool, db: Path | None) -> None:
    """Merge the full-text indexes and give space back.

    The indexes are merged in slices between which others write. Then the actor rewrites the file
    without holes; other writers wait meanwhile, so you are asked first. How long that takes:
    hermes-actor vacuum --report.

    Exit codes: 0 done, 1 declined or not possible.

    \b
    Example:
      hermes-actor sessions optimize
    """
    from hermes_actor.cli.opening import opened

    store_for(db)  # not an empty file
    with opened(db, _TIMEOUT_SECONDS) as store:
        confirm(f"Rewrite {store.path}? Other programs cannot write to it meanwhile.", yes)
        # To standard error with --json: whoever waits wants to see it, whoever parses does not.
        print("Optimizing session store…", file=sys.stderr if as_json else sys.stdout, flush=True)
        before = _size(store.paths.db) + _size(store.paths.wal)
        merged = store.merge_indexes()
        store.vacuum()
        after = _size(store.paths.db) + _size(store.paths.wal)
    if as_json:
        print_json({"indexes": merged, "bytes_before": before, "bytes_after": after})
        return
    print(f"Optimized {merged} FTS index(es).")
    old, new = f"{before / _MIB:.1f}", f"{after / _MIB:.1f}"
    freed = f"{(before - after) / _MIB:.1f}"
    print(f"Database size: {old} MB -> {new} MB (reclaimed {freed} MB)")
