"""Inspection of a database file: is it a store, of which shape, and how much of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hermes_actor.sqlite import Connection, sqlite3
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import (
    DEFERRED_INDEX_SQL,
    FTS_SQL,
    FTS_TRIGRAM_SQL,
    OWN_INDEXES,
    OWN_SQL,
    SCHEMA_SQL,
    statements,
)
from hermes_protocol.features import AGENTS, PLAIN, SESSIONS
from hermes_protocol.operations import MessageRow, SessionRow

__all__ = [
    "Identity", "PageUsage", "SchemaObject", "SchemaState", "create_schema", "has_column",
    "identify", "may_hold_agents", "newest_change", "page_usage", "recorded_format",
    "recorded_kind", "schema_objects", "schema_state",
]  # fmt: skip

_EVERY_VERSION = {
    "sessions": frozenset({"id", "source", "model_config", "started_at", "ended_at", "end_reason"}),
    "messages": frozenset({"id", "session_id", "role", "content", "tool_calls", "timestamp"}),
}
"""Columns that tell a store of any version from the database of another program."""

_AGENT_TABLES = frozenset({"meta", "agents", "session_events"})
"""Tables that tell an agent store, also a detached one, from the database of another program."""

_CURRENT = {
    "sessions": frozenset(SessionRow.__struct_fields__),
    "messages": frozenset(MessageRow.__struct_fields__) - {"calls"},
}
"""Columns that every file has once its owner has opened it."""

_OBJECTS = """
SELECT type, name, tbl_name, sql FROM sqlite_master
WHERE sql IS NOT NULL AND name NOT GLOB 'sqlite_*' AND (
    type <> 'table' OR sql LIKE 'CREATE VIRTUAL%' OR NOT EXISTS (
        SELECT 1 FROM sqlite_master AS v
        WHERE v.sql LIKE 'CREATE VIRTUAL%' AND sqlite_master.name GLOB v.name || '_*'
          AND substr(sqlite_master.name, length(v.name) + 2)
              IN ('data', 'idx', 'content', 'docsize', 'config')))
ORDER BY type = 'trigger', type = 'index', rowid
"""
"""All but what SQLite creates by itself: its own tables, and the shadow tables of virtual ones."""


_TELLING = {"sessions", "messages", "schema_version"}
"""Tables that make a file one with sessions, if no owner has recorded its kind."""


class Identity(NamedTuple):
    """Kind and version of a file."""

    is_empty: bool = False
    kind: str | None = None
    """Its kind, as far as the file says; ``None``: no owner has recorded one."""
    missing_table: str | None = None
    """Table that the file lacks to be a store: it belongs to another program."""
    is_outdated: bool = False
    """Only its owner can read it, after a migration."""


class SchemaState(NamedTuple):
    """The schema of a file that was a store."""

    is_empty: bool = False
    lost_table: str | None = None
    """A table that every store has, and this one had."""
    version: int | None = None
    """The schema version that it claims."""


class PageUsage(NamedTuple):
    """Size of a database in pages."""

    page_bytes: int
    pages: int
    free_pages: int


class SchemaObject(NamedTuple):
    """A table, view, index or trigger, with the SQL that creates it."""

    type: str
    name: str
    table: str
    sql: str


def identify(conn: Connection) -> Identity:
    """Return what the file is, from the names of its tables and columns."""
    tables = _tables(conn)
    if not tables:
        return Identity(is_empty=True)
    kind = recorded_kind(conn)
    if kind in (PLAIN, AGENTS):
        return Identity(kind=kind)
    missing = None
    if "hermes_actor_meta" not in tables:
        missing = next((table for table in _EVERY_VERSION if not _has(conn, table)), None)
    outdated = missing is None and not all(_has(conn, table, _CURRENT) for table in _CURRENT)
    return Identity(kind=kind, missing_table=missing, is_outdated=outdated)


def may_hold_agents(conn: Connection) -> bool:
    """Return True if the file is an agent store, was one before it was detached, or is empty."""
    tables = {name for name in _tables(conn) if not name.startswith("sqlite_")}
    kind = recorded_kind(conn)
    return kind == AGENTS or (kind is None and (not tables or tables >= _AGENT_TABLES))


def schema_state(conn: Connection) -> SchemaState:
    """Return what has become of the schema; a file of another program has lost nothing."""
    tables = _tables(conn)
    if not tables or recorded_kind(conn) in (PLAIN, AGENTS):
        return SchemaState(is_empty=not tables)
    was_store = tables & {"schema_version", "hermes_actor_meta"}
    lost = next((table for table in _EVERY_VERSION if was_store and table not in tables), None)
    version = None
    if "schema_version" in tables:
        version = scalar(
            conn, "SELECT MAX(version) FROM schema_version WHERE typeof(version) = 'integer'"
        )
    return SchemaState(lost_table=lost, version=version)


def _tables(conn: Connection) -> set[str]:
    return {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}


def recorded_kind(conn: Connection) -> str | None:
    """Return the kind that the file says it is of; ``None`` if it says nothing."""
    tables = _tables(conn)
    if "hermes_actor_meta" not in tables:
        return SESSIONS if tables >= _TELLING else None
    kind = scalar(conn, "SELECT value FROM hermes_actor_meta WHERE key = 'kind'")
    # Owners that knew one kind only have recorded none.
    return kind if isinstance(kind, str) else SESSIONS


def recorded_format(conn: Connection) -> int:
    """Return the format of our own tables in the file; 0 without them."""
    if "hermes_actor_meta" not in _tables(conn):
        return 0
    return scalar(conn, "SELECT value FROM hermes_actor_meta WHERE key = 'format'") or 0


def newest_change(conn: Connection) -> int:
    """Return the ``commit_no`` of the newest change; 0 if no owner has had the file."""
    if "hermes_actor_meta" not in _tables(conn):
        return 0
    return scalar(conn, "SELECT value FROM hermes_actor_meta WHERE key = 'commit_no'") or 0


def has_column(conn: Connection, table: str, column: str) -> bool:
    """Return True if *table* has *column*, whose case does not matter."""
    return column.lower() in _columns(conn, table)


def _has(
    conn: Connection, table: str, columns: Mapping[str, frozenset[str]] = _EVERY_VERSION
) -> bool:
    return columns[table] <= _columns(conn, table)


def _columns(conn: Connection, table: str) -> set[str]:
    return {row[1].lower() for row in conn.execute(f"PRAGMA table_info({table})")}


def page_usage(conn: Connection) -> PageUsage:
    """Return the size of the database in this snapshot."""
    names = ("page_size", "page_count", "freelist_count")
    return PageUsage(*(scalar(conn, f"PRAGMA {name}") for name in names))


def schema_objects(conn: sqlite3.Connection) -> list[SchemaObject]:
    """Return tables, then views, indexes and triggers, in the order in which they were created."""
    return [SchemaObject(*row) for row in conn.execute(_OBJECTS)]


def create_schema(conn: Connection) -> None:
    """Create everything that a new store has, with its indexes, in an empty database."""
    for script in (SCHEMA_SQL, DEFERRED_INDEX_SQL, FTS_SQL, FTS_TRIGRAM_SQL, OWN_SQL):
        for statement in statements(script):
            conn.execute(statement)
    for name, target in OWN_INDEXES.items():
        conn.execute(f"CREATE INDEX {name} ON {target}")
