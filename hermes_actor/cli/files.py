"""Which file a command works on: the one that is named, else the one of the home."""

from __future__ import annotations

from pathlib import Path

from hermes_actor.cli.refusing import refuse
from hermes_actor.paths import Place, default_db_path, place_of

__all__ = ["file_for", "place_for"]


def file_for(db: Path | None) -> Path:
    """*db*, else the file that ``sessiondb.dsn`` names, else ``HERMES_HOME/state.db``.

    Refuses for a home whose sessions are on a server: the file beside its settings is at best what
    they were before they moved.
    """
    if db is not None:
        return db
    file = default_db_path()
    if not (file.parent / "config.yaml").exists():
        return file
    from hermes_actor.providers.selection import choose_by_settings

    chosen = choose_by_settings(file.parent)
    if chosen is None:
        return file
    if chosen.file is None:
        refuse(
            f"the sessions of this home are on a server ({chosen.address}), and this command works"
            f" on a file. Name one with --db, or make one with: hermes-actor migrate --to FILE"
        )
    return chosen.file


def place_for(db: Path | None) -> Place:
    """The place that an option ``--db`` means."""
    return place_of(file_for(db))
