"""The two full-text tables as objects of the schema: are they whole, and making them so.

A table without one of its triggers has missed changes and is made anew; a table of another shape
with its triggers in place is somebody's choice and stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor.sqlite import sqlite3
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import FTS_SQL, FTS_TRIGRAM_SQL, statements

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["TABLES", "broken_parts", "create_fulltext", "drop_fulltext", "is_inline"]

TABLES = {"messages_fts": FTS_SQL, "messages_fts_trigram": FTS_TRIGRAM_SQL}

_EVENTS = ("insert", "delete", "update")


def has_fts5(conn: Connection) -> bool:
    """Whether the linked SQLite has FTS5."""
    return bool(scalar(conn, "SELECT 1 FROM pragma_module_list WHERE name = 'fts5'"))


def has_trigram() -> bool:
    """Whether its FTS5 has the trigram tokenizer."""
    return sqlite3.sqlite_version_info >= (3, 34)


def wanted_tables(conn: Connection) -> list[str]:
    """The tables that the linked SQLite can serve; without FTS5 there is no search, but a store."""
    if not has_fts5(conn):
        return []
    return list(TABLES) if has_trigram() else ["messages_fts"]


def broken_parts(conn: Connection) -> list[str]:
    """Tables that must be made anew: absent, without a trigger, or with triggers nobody serves."""
    present = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
    wanted = wanted_tables(conn)
    broken = []
    for table in TABLES:
        triggers = {f"{table}_{event}" for event in _EVENTS}
        whole = table in present and triggers <= present
        if (table in wanted and not whole) or (table not in wanted and triggers & present):
            broken.append(table)
    return broken


def is_inline(conn: Connection, table: str) -> bool:
    """Whether *table* holds its own text (since version 11) and not a reference to ``messages``."""
    return bool(scalar(conn, "SELECT 1 FROM sqlite_master WHERE name = ?", (f"{table}_content",)))


def drop_fulltext(conn: Connection, table: str) -> None:
    """Remove a full-text table and its triggers, inside the open transaction."""
    for event in _EVENTS:
        conn.execute(f"DROP TRIGGER IF EXISTS {table}_{event}")
    if has_fts5(conn):
        conn.execute(f"DROP TABLE IF EXISTS {table}")


def create_fulltext(conn: Connection, table: str) -> None:
    """Create a full-text table and its triggers, empty."""
    if table in wanted_tables(conn):
        for statement in statements(TABLES[table]):
            conn.execute(statement)
