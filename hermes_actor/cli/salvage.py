"""Reading what can be read of a damaged store into a new one.

Tables are read in the order of their row numbers. Where a page is damaged, the rows behind it are
asked for one by one until the next one answers. Indexes are not trusted; the full-text ones are
left to the next owner, who fills them in slices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hermes_actor.errors import Damaged, StorageError, from_sqlite
from hermes_actor.paths import place_of
from hermes_actor.sqlite import connect_reader, sqlite3

__all__ = ["Salvaged", "salvage"]

_STEPS = 20_000
"""Rows in a row that do not answer; beyond, steps double: row numbers may have large holes."""

_OURS_ALONE = frozenset({"hermes_actor_meta", "hermes_actor_receipts", "hermes_actor_stage"})

Tell = Callable[[int, int], None]


class Salvaged(NamedTuple):
    """What became of one table."""

    table: str
    read: int
    lost: int
    """Row numbers that did not answer. Some of them may never have been used."""
    skipped: int
    """Rows that the new store does not take, such as a second one of the same id."""


def salvage(db: Path, target: Path, tell: Tell = lambda _done, _total: None) -> list[Salvaged]:
    """Write what can be read of *db* into the new store *target*; a line for each table.

    *tell* gets the tables that are done, and all. Raises a :class:`StorageError` if not even the
    list of tables can be read.
    """
    from hermes_actor.engine.fulltext import TABLES, create_fulltext, drop_triggers
    from hermes_actor.engine.opening import open_database
    from hermes_actor.engine.own_tables import set_own
    from hermes_actor.engine.seams import Seams

    try:
        with contextlib.closing(connect_reader(db)) as source:
            tables = _tables(source)
            with contextlib.closing(open_database(place_of(target), Seams())) as new:
                new.execute("PRAGMA foreign_keys = OFF")
                new.execute("BEGIN IMMEDIATE")
                for name in TABLES:
                    drop_triggers(new, name)
                report = []
                for number, (table, sql) in enumerate(tables.items()):
                    tell(number, len(tables))
                    report.append(_copy_table(source, new, table, sql))
                report += _adopt_orphans(new)
                for name in TABLES:
                    create_fulltext(new, name)
                set_own(new, "watermark", 0)
                new.execute("COMMIT")
    except sqlite3.Error as error:
        if isinstance(error, StorageError):
            raise
        raise from_sqlite(error, db) from error
    tell(len(tables), len(tables))
    return report


def _tables(source: sqlite3.Connection) -> dict[str, str]:
    """Name and SQL of the tables that hold rows of people; sessions before their messages."""
    try:
        rows = source.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
            " AND name NOT GLOB 'sqlite_*' AND name NOT GLOB 'messages_fts*'"
            " AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name <> 'sessions', name"
        ).fetchall()
    except sqlite3.Error as error:
        words = str(error)
        raise Damaged(
            f"{words}: not even the list of tables can be read; restore a copy:"
            f" hermes-actor restore --list",
            words=words,
        ) from error
    return {name: sql for name, sql in rows if name not in _OURS_ALONE}


def _copy_table(
    source: sqlite3.Connection, new: sqlite3.Connection, table: str, sql: str
) -> Salvaged:
    columns = [row[1] for row in source.execute(f'PRAGMA table_info("{table}")').fetchall()]
    if not new.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall():
        new.execute(sql)
    present = {row[1] for row in new.execute(f'PRAGMA table_info("{table}")').fetchall()}
    for column in columns:
        if column not in present:
            new.execute(f'ALTER TABLE "{table}" ADD COLUMN "{column}"')
    if table == "schema_version":
        new.execute("DELETE FROM schema_version")
    names = ", ".join(f'"{column}"' for column in columns)
    marks = ", ".join("?" * len(columns))
    insert = f'INSERT OR IGNORE INTO "{table}" ({names}) VALUES ({marks})'
    reading = _Reading(source, table, names)
    taken = sum(new.execute(insert, row).rowcount for row in reading.rows())
    return Salvaged(table, taken, reading.lost, reading.read - taken)


class _Reading:
    """The rows of one table, as far as they answer."""

    def __init__(self, source: sqlite3.Connection, table: str, names: str) -> None:
        self._source = source
        self._table = table
        self._names = names
        self.read = 0
        self.lost = 0

    def rows(self) -> Iterator[tuple[Any, ...]]:
        position, highest = -(2**63), self._highest()
        while True:
            try:
                for row in self._source.execute(
                    f'SELECT rowid, {self._names} FROM "{self._table}" WHERE rowid > ?'
                    f" ORDER BY rowid",
                    (position,),
                ):
                    position = row[0]
                    self.read += 1
                    yield row[1:]
                return
            except sqlite3.OperationalError:
                # A table without row numbers is read in its own order, until it stops.
                yield from self._plain()
                return
            except sqlite3.DatabaseError:
                found = self._next_that_answers(position, highest)
            if found is None:
                return
            position = found[0]
            self.read += 1
            yield found[1:]

    def _plain(self) -> Iterator[tuple[Any, ...]]:
        try:
            for row in self._source.execute(f'SELECT {self._names} FROM "{self._table}"'):
                self.read += 1
                yield row
        except sqlite3.DatabaseError:
            self.lost += 1

    def _next_that_answers(self, position: int, highest: int) -> tuple[Any, ...] | None:
        rowid, step, tries = max(position, 0) + 1, 1, 0
        one = f'SELECT rowid, {self._names} FROM "{self._table}" WHERE rowid = ?'
        while rowid <= highest:
            try:
                found: list[tuple[Any, ...]] = self._source.execute(one, (rowid,)).fetchall()
            except sqlite3.DatabaseError:
                self.lost += 1
            else:
                if found:
                    return found[0]
            tries += 1
            if tries > _STEPS:
                step *= 2
            rowid += step
        return None

    def _highest(self) -> int:
        """The highest row number, from where it can be learned."""
        found = 0
        for sql, values in (
            (f'SELECT MAX(rowid) FROM "{self._table}"', ()),
            ("SELECT seq FROM sqlite_sequence WHERE name = ?", (self._table,)),
        ):
            with contextlib.suppress(sqlite3.Error):
                rows = self._source.execute(sql, values).fetchall()
                found = max(found, *(row[0] or 0 for row in rows)) if rows else found
        # Where neither answers: as many rows as all pages together could hold.
        return found or 10_000_000


def _adopt_orphans(new: sqlite3.Connection) -> list[Salvaged]:
    """Messages whose session was lost get one again, so that people can find them."""
    made = new.execute(
        "INSERT INTO sessions (id, source, started_at, message_count)"
        " SELECT session_id, 'recovered', MIN(timestamp), COUNT(*) FROM messages"
        " WHERE session_id NOT IN (SELECT id FROM sessions) GROUP BY session_id"
    ).rowcount
    return [Salvaged("sessions made for messages without one", made, 0, 0)] if made else []
