"""The actor's own tables in the file: its epoch, the order of changes, the watermark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import statements

if TYPE_CHECKING:
    from hermes_actor.engine.kinds import Kind
    from hermes_actor.sqlite import Connection

__all__ = [
    "create_meta_tables", "file_id", "get_internal", "has_meta_tables", "journal_mode_before",
    "lacks_meta_tables", "set_internal",
]  # fmt: skip


def has_meta_tables(conn: Connection) -> bool:
    """Return True if an owner has had this file before; an earlier build may have made fewer."""
    return bool(scalar(conn, "SELECT 1 FROM sqlite_master WHERE name = 'hermes_actor_stage'"))


def lacks_meta_tables(conn: Connection, kind: Kind) -> bool:
    """Return True if some of *kind* are missing: an earlier build has known fewer."""
    # The transaction that made the latest addition has created all that were missing.
    sql = "SELECT 1 FROM sqlite_master WHERE name = ?"
    return not scalar(conn, sql, (kind.newest_table,))


def create_meta_tables(conn: Connection, kind: Kind, *, journal_mode: str | None = None) -> None:
    """Create what is missing, inside the open transaction of the first owner.

    *journal_mode* is recorded as the one that the first owner has found.
    """
    for statement in statements(kind.own_sql):
        conn.execute(statement)
    for key, value in (
        ("kind", kind.name),
        ("format", kind.format),
        *((("journal_mode", journal_mode),) if journal_mode else ()),
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


def journal_mode_before(conn: Connection) -> str | None:
    """Return the mode that the first owner has found, if it was recorded."""
    sql = "SELECT value FROM hermes_actor_meta WHERE key = 'journal_mode'"
    mode: str | None = scalar(conn, sql)
    return mode


def set_internal(conn: Connection, key: str, value: int) -> None:
    """Store a number under *key*, inside the open transaction."""
    conn.execute(
        "INSERT INTO hermes_actor_meta VALUES (?, ?)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (key, value),
    )
