"""Declared columns that a file lacks. Checked at every open, at every version."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hermes_actor.sqlite import connect_alone
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import SCHEMA_SQL

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["missing_columns", "parse_schema_columns", "stored_version"]


def parse_schema_columns(sql: str) -> dict[str, dict[str, str]]:
    """``{table: {column: "TYPE [NOT NULL] [DEFAULT x]"}}`` of the tables that *sql* creates."""
    # By SQLite itself, in memory: no parser of ours can disagree with it about a declaration.
    scratch = connect_alone()
    try:
        scratch.executescript(sql)
        tables = scratch.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
        ).fetchall()
        return {
            table: {
                name: _declaration(kind, not_null and not key, default)
                for _, name, kind, not_null, default, key in scratch.execute(
                    f'PRAGMA table_info("{table}")'
                )
            }
            for (table,) in tables
        }
    finally:
        scratch.close()


def _declaration(kind: str, not_null: bool, default: str | None) -> str:
    parts = [kind] if kind else []
    if not_null:
        parts.append("NOT NULL")
    if default is not None:
        parts.append(f"DEFAULT {default}")
    return " ".join(parts)


@cache
def _declared() -> dict[str, dict[str, str]]:
    return parse_schema_columns(SCHEMA_SQL)


def missing_columns(conn: Connection) -> list[tuple[str, str, str]]:
    """(table, column, declaration) of every declared column that an existing table lacks."""
    missing = []
    for table, columns in _declared().items():
        # Names are compared as SQLite does, and generated columns count.
        live = {row[1].lower() for row in conn.execute(f"PRAGMA table_xinfo({table})")}
        if live:
            missing += [(table, name, text) for name, text in columns.items() if name not in live]
    return missing


def stored_version(conn: Connection) -> int | None:
    """The schema version that the file claims; ``None`` if it claims none that can be read."""
    stored = scalar(conn, "SELECT version FROM schema_version LIMIT 1")
    try:
        return None if stored is None else int(stored)
    except (TypeError, ValueError):
        return None
