"""What an actor under test does with large texts, as its own transactions show it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

__all__ = ["watch_rows"]

_LARGE_CHARACTERS = 300_000
"""Large by any measure: a text of so many takes a good part of a second to index."""

_INDEXED = (
    "SELECT m.id FROM messages m JOIN messages_fts_docsize d ON d.id = m.id"
    f" WHERE m.id > ? AND m.id <= ? AND LENGTH(m.content) > {_LARGE_CHARACTERS}"
)


def watch_rows(file: Path) -> None:
    """From now on note every large text that a step of indexing takes into its transaction."""
    from hermes_actor.engine.index import indexer

    plain = indexer._index

    def index(conn: Any, tables: Any, above: int, through: int) -> None:
        before = conn.execute(_INDEXED, (above, through)).fetchall()
        plain(conn, tables, above, through)
        inside = set(conn.execute(_INDEXED, (above, through)).fetchall()) - set(before)
        if inside:
            with file.open("a") as notes:
                notes.write(f"{os.getpid()}: {sorted(inside)}\n")

    indexer._index = index
