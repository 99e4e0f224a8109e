"""``sessions stats`` and ``sessions optimize``: how much there is, and making it smaller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.formatting import plain, print_json
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.store import ReadOnlyStore, open_read_only
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema_features import features_of

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["stats"]

_FIRST_SOURCES = ("cli", "telegram", "discord", "whatsapp", "slack")
_MIB = 1_048_576


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
        features = features_of(conn)
        sources = conn.execute(
            f"SELECT s.source, COUNT(*) AS n FROM sessions s WHERE NOT {features.is_archived}"
            " GROUP BY s.source ORDER BY n DESC, s.source"
        ).fetchall()
        # All messages come from one index; those of the few archived sessions are taken off.
        hidden = scalar(
            conn,
            "SELECT COUNT(*) FROM messages m JOIN sessions s ON s.id = m.session_id"
            f" WHERE {features.is_archived}",
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
