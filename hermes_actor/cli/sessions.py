"""``hermes-actor sessions``: look at the sessions of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hermes_actor.paths import default_db_path

__all__ = ["sessions"]

_FIRST_SOURCES = ("cli", "telegram", "discord", "whatsapp", "slack")
_MIB = 1_048_576


@click.group()
def sessions() -> None:
    """Look at the sessions of a store."""


@sessions.command()
@click.option(
    "--db", type=click.Path(path_type=Path), help="The file; default HERMES_HOME/state.db."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for scripts.")
def stats(db: Path | None, as_json: bool) -> None:
    """Count sessions and messages and tell the size of the file.

    \b
    Examples:
      hermes-actor sessions stats
      hermes-actor sessions stats --json | jq .by_source
    """
    path = db or default_db_path()
    found = _statistics(path)
    if as_json:
        print(json.dumps(found))
        return
    print(f"Store: {path}")
    print(f"Total sessions: {found['sessions']}")
    print(f"Total messages: {found['messages']}")
    for source, count in found["by_source"].items():
        print(f"  {source}: {count} sessions")
    print(f"Database size: {found['db_bytes'] / _MIB:.1f} MB")


def _statistics(path: Path) -> dict[str, Any]:
    from hermes_actor import SessionDB

    db = SessionDB(path)
    try:
        assert db._conn is not None
        counts = dict(
            tuple(row)
            for row in db._conn.execute(
                "SELECT source, COUNT(*) AS n FROM sessions GROUP BY source ORDER BY n DESC, source"
            )
        )
        return {
            "sessions": db.session_count(),
            "messages": db.message_count(),
            "by_source": {
                **{source: counts[source] for source in _FIRST_SOURCES if source in counts},
                **{source: n for source, n in counts.items() if source not in _FIRST_SOURCES},
            },
            "db_bytes": _size(path),
            "wal_bytes": _size(path.with_name(path.name + "-wal")),
        }
    finally:
        db.close()


def _size(path: Path) -> int:
    # By path, never by opening: another descriptor on the file would drop SQLite's locks.
    return path.stat().st_size if path.exists() else 0
