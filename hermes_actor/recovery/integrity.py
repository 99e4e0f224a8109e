"""Looking for damage in a store that is in use, table by table, by a reader.

One table at a time: a look at all of a large file would hold one snapshot for minutes, and nobody
could tell how far it is.
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

__all__ = ["Finding", "check", "is_of_an_index"]

_MOST = 5
"""Findings of one table that are told; a damaged page gives thousands."""

_FULL_TEXT = re.compile(r"messages_fts(_trigram)?(_(data|idx|content|docsize|config))?")
_OF_AN_INDEX = re.compile(r"missing from index|wrong # of entries in index|non-unique entry in")


class Finding(NamedTuple):
    """What is wrong, and where."""

    table: str
    text: str

    @property
    def of_full_text(self) -> bool:
        """Whether making the full-text indexes anew mends it."""
        return _FULL_TEXT.fullmatch(self.table) is not None


def is_of_an_index(finding: Finding) -> bool:
    """Whether only an ordinary index is wrong, which can be built anew from its table."""
    return not finding.of_full_text and _OF_AN_INDEX.search(finding.text) is not None


def check(db: Path, tell: Callable[[int, int], None] = lambda _done, _total: None) -> list[Finding]:
    """Everything that SQLite finds wrong with *db*; empty if it is sound.

    *tell* gets how many tables have been looked at, and how many there are. Raises a typed error
    if the file cannot be opened at all.
    """
    try:
        with contextlib.closing(connect_reader(db)) as conn:
            tables = inside(_tables, conn)
            found: list[Finding] = []
            for number, table in enumerate(tables):
                tell(number, len(tables))
                found += inside(_look_at, conn, table)
            tell(len(tables), len(tables))
            return found
    except sqlite3.Error as error:
        raise from_sqlite(error, db) from error


def _tables(conn: sqlite3.Connection) -> list[str]:
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name NOT GLOB 'messages*'"
    return [name for (name,) in conn.execute(sql).fetchall()]


def _look_at(conn: sqlite3.Connection, table: str) -> list[Finding]:
    quoted = table.replace('"', '""')
    try:
        # Not quick_check, which does not compare a table with its indexes. It ends after 100 rows.
        rows = conn.execute(f'PRAGMA integrity_check("{quoted}")').fetchall()
    except sqlite3.DatabaseError as error:
        if not is_storage_failure(error) and "no such module" in str(error):
            return []  # somebody's virtual table, which this SQLite cannot serve
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
