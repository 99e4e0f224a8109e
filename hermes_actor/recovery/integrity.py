"""Integrity check of a store in use, table by table, by a reader.

One table at a time: checking all of a large file at once would hold one snapshot for minutes, and
could not report progress.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hermes_actor.errors import from_sqlite, is_storage_failure
from hermes_actor.sqlite import connect_reader, sqlite3
from hermes_actor.system.fork import inside

__all__ = ["Finding", "check"]

_MOST = 5
"""Findings reported for one table; a damaged page gives thousands."""

_FULL_TEXT = re.compile(r"messages_fts(_trigram)?(_(data|idx|content|docsize|config))?")
_OF_AN_INDEX = re.compile(r"missing from index|wrong # of entries in index|non-unique entry in")


class Finding(NamedTuple):
    """One inconsistency, and the table it is in."""

    table: str
    text: str

    @property
    def of_full_text(self) -> bool:
        """True if rebuilding the full-text indexes repairs it."""
        return _FULL_TEXT.fullmatch(self.table) is not None

    @property
    def of_index(self) -> bool:
        """True if only an ordinary index is wrong: ``REINDEX`` repairs it."""
        return not self.of_full_text and _OF_AN_INDEX.search(self.text) is not None


def check(
    db: Path, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> list[Finding]:
    """Return everything that SQLite finds wrong with *db*; an empty list if it is sound.

    *progress* gets the tables that are checked, and their total. Raises a :class:`StorageError` or
    :class:`NotADatabase` if the file cannot be opened at all.
    """
    try:
        with contextlib.closing(connect_reader(db)) as conn:
            tables = inside(_tables, conn)
            found: list[Finding] = []
            for number, table in enumerate(tables):
                progress(number, len(tables))
                found += inside(_check_table, conn, table)
            progress(len(tables), len(tables))
            return found
    except sqlite3.Error as error:
        raise from_sqlite(error, db) from error


def _tables(conn: sqlite3.Connection) -> list[str]:
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name NOT GLOB 'messages*'"
    return [name for (name,) in conn.execute(sql).fetchall()]


def _check_table(conn: sqlite3.Connection, table: str) -> list[Finding]:
    quoted = table.replace('"', '""')
    try:
        # Not quick_check, which does not compare a table with its indexes. Returns up to 100 rows.
        rows = conn.execute(f'PRAGMA integrity_check("{quoted}")').fetchall()
    except sqlite3.DatabaseError as error:
        if not is_storage_failure(error) and "no such module" in str(error):
            return []  # a virtual table of another program, whose module is not loaded
        if not is_storage_failure(error) and table not in _tables(conn):
            return []  # dropped since the list was made, as the owner does with an old index
        return [Finding(table, str(error))]
    # One row can hold dozens of lines, the first of which only names the database.
    lines = [
        line.strip()
        for (text,) in rows
        for line in text.splitlines()
        if line.strip() not in ("", "ok") and not line.startswith("*** in database")
    ]
    found = [Finding(table, line) for line in lines[:_MOST]]
    if len(lines) > _MOST:
        found[-1] = Finding(table, f"{lines[_MOST - 1]} (and {len(lines) - _MOST} more)")
    return found
