"""Bringing an older or unusual file to version 11, in one transaction of its owner.

Columns and shapes decide what is done, the version number only whether the full-text tables are
of the old kind. Nothing is dropped, renamed or retyped except those tables. A newer number is
left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.index.fulltext import (
    broken_parts,
    create_fulltext,
    drop_fulltext,
    is_inline,
)
from hermes_actor.engine.index.indexer import forget_index, index_all, newest_id
from hermes_actor.engine.kinds import SESSIONS
from hermes_actor.engine.meta_table import create_meta_tables, set_internal
from hermes_actor.engine.startup.schema_columns import missing_columns, stored_version
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.schema import DEFERRED_INDEX_SQL, SCHEMA_SQL, SCHEMA_VERSION, statements
from hermes_actor.store.search.coverage import TABLES, is_usable

if TYPE_CHECKING:
    from sqlite_utils import Database

    from hermes_actor.sqlite import Connection

__all__ = ["migrate"]

_log = logging.getLogger("hermes_actor.engine")


def migrate(conn: Connection, progress: Callable[[float], None] = lambda _share: None) -> None:
    """Complete the schema inside the open transaction; *progress* gets the share done."""
    # Late import: it is a quarter of what the start of an actor loads, and few files need it.
    from sqlite_utils import Database

    # Always an open connection, never a path: sqlite-utils may link another SQLite.
    db = Database(conn, recursive_triggers=False, execute_plugins=False)
    # Each with IF NOT EXISTS: tables that are there stay, and columns are added to them below.
    for statement in statements(SCHEMA_SQL):
        conn.execute(statement)
    progress(0.02)
    _add_columns(conn)
    progress(0.1)
    # Before the number is raised, by which they are recognised.
    outdated = _tables_to_rebuild(conn)
    # Before the unique index, which refuses a file with duplicates.
    _settle_titles(conn, db)
    conn.execute(DEFERRED_INDEX_SQL)
    for table in outdated:
        drop_fulltext(conn, table)
        create_fulltext(conn, table)
    _set_version(conn)
    create_meta_tables(conn, SESSIONS)
    conn.layout = None
    progress(0.2)
    if outdated:
        _refill(conn, lambda share: progress(0.2 + 0.8 * share))


def _add_columns(conn: Connection) -> None:
    for table, column, declaration in missing_columns(conn):
        try:
            conn.execute(f'ALTER TABLE {table} ADD COLUMN "{column}" {declaration}')
        except sqlite3.OperationalError as error:
            # NOT NULL without a default on a table that has rows: the file lives without it.
            _log.debug("column %s.%s not added: %s", table, column, error)


def _tables_to_rebuild(conn: Connection) -> list[str]:
    """Return the full-text tables that are broken, and those of an older version.

    A file without a number is judged by the shape alone: it may be of any age.
    """
    version = stored_version(conn)
    broken = broken_parts(conn)
    if version is not None and version >= SCHEMA_VERSION:
        return broken
    return [t for t in TABLES if t in broken or version is not None or not is_inline(conn, t)]


def _settle_titles(conn: Connection, db: Database) -> None:
    """Remove duplicate titles, which the unique index refuses; the newest session keeps its."""
    if any(i.name == "idx_sessions_title_unique" for i in db.table("sessions").indexes):
        return
    done = conn.execute(
        """
        UPDATE sessions SET title = NULL
        WHERE title IS NOT NULL AND EXISTS (
            SELECT 1 FROM sessions newer WHERE newer.title = sessions.title
              AND (newer.started_at, newer.rowid) > (sessions.started_at, sessions.rowid))
        """
    )
    if done.rowcount:
        _log.warning("%d sessions lost a title that a newer session has too", done.rowcount)


def _set_version(conn: Connection) -> None:
    version = stored_version(conn)
    if version is None:
        conn.execute("INSERT INTO schema_version (version) VALUES (?)", (SCHEMA_VERSION,))
    elif version < SCHEMA_VERSION and is_usable(conn, "messages_fts"):
        # Without FTS5 the number stays: the index is made up for by a build that has it.
        conn.execute("UPDATE schema_version SET version = ?", (SCHEMA_VERSION,))


def _refill(conn: Connection, progress: Callable[[float], None]) -> None:
    newest = newest_id(conn)
    if _rows(conn) <= limits.INLINE_FILL_ROWS:
        index_all(conn, progress)
        # Large texts are noted only, and count by their notes.
        set_internal(conn, "watermark", newest)
    else:
        # Too many for a start: slices fill the indexes while the file is served.
        forget_index(conn)


def _rows(conn: Connection) -> int:
    """Return the number of messages, counted no further than the limit that matters."""
    (count,) = conn.execute(
        "SELECT COUNT(*) FROM (SELECT 1 FROM messages LIMIT ?)", (limits.INLINE_FILL_ROWS + 1,)
    ).fetchone()
    return int(count)
