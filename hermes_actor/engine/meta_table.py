"""The actor's own tables in the file: its epoch, the order of changes, the watermark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import OWN_FORMAT, OWN_SQL, statements

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = [
    "create_meta_tables", "file_id", "get_internal", "has_meta_tables", "lacks_meta_tables",
    "set_internal",
]  # fmt: skip


def has_meta_tables(conn: Connection) -> bool:
    """Return True if an owner has had this file before; an earlier build may have made fewer."""
    return bool(scalar(conn, "SELECT 1 FROM sqlite_master WHERE name = 'hermes_actor_stage'"))


def lacks_meta_tables(conn: Connection) -> bool:
    """Return True if some are missing: an earlier build has known fewer."""
    # The latest addition; the transaction that made it has created all that were missing.
    return not scalar(conn, "SELECT 1 FROM sqlite_master WHERE name = 'hermes_actor_stale'")


def create_meta_tables(conn: Connection) -> None:
    """Create what is missing, inside the open transaction of the first owner."""
    for statement in statements(OWN_SQL):
        conn.execute(statement)
    for key, value in (
        ("format", OWN_FORMAT),
        ("file_id", os.urandom(16)),
        # Zero is no owner's: start-up recovery raises it before anything is acknowledged (R1).
        ("epoch", 0),
        ("commit_no", 0),
        ("swept_through", 0),
    ):
        # OR IGNORE: the tables of an earlier build keep what they hold, the file_id above all.
        conn.execute("INSERT OR IGNORE INTO hermes_actor_meta VALUES (?, ?)", (key, value))


def get_internal(conn: Connection, key: str) -> int | None:
    """Return the number under *key*, as the open transaction sees it; ``None`` if there is none."""
    value: int | None = scalar(conn, "SELECT value FROM hermes_actor_meta WHERE key = ?", (key,))
    return value


def file_id(conn: Connection) -> bytes:
    """Return what tells this file from every other one; a restored copy has another."""
    value: bytes = scalar(conn, "SELECT value FROM hermes_actor_meta WHERE key = 'file_id'")
    return value


def set_internal(conn: Connection, key: str, value: int) -> None:
    """Store a number under *key*, inside the open transaction."""
    conn.execute(
        "INSERT INTO hermes_actor_meta VALUES (?, ?)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )
