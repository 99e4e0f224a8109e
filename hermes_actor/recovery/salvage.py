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
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import connect_reader, sqlite3

__all__ = ["Missing", "Salvage", "Salvaged", "salvage"]

_STEPS = 20_000
"""Rows in a row that do not answer; beyond, steps double: row numbers may have large holes."""

_OURS_ALONE = frozenset({"hermes_actor_meta", "hermes_actor_receipts", "hermes_actor_stage"})

Tell = Callable[[int, int], None]


class Salvaged(NamedTuple):
    """What became of one table."""

    table: str
    read: int
    lost: int
    """If a part of it cannot be read: row numbers without a row. Some may never have been used."""
    skipped: int
    """Rows that the new store does not take, such as a second one of the same id."""


class Missing(NamedTuple):
    """The messages that were there and were not saved, as far as the rest tells."""

    missing: int
    """What the counts of the saved sessions tell; no more than there are unused message ids."""
    of: int
    """Messages that were saved, and these."""
    sessions: dict[str, int]
    """Which sessions lack how many."""
    perhaps_more: int
    """Ids without a message that no count explains, where sessions were lost, too."""


class Salvage(NamedTuple):
    """What became of a store."""

    tables: list[Salvaged]
    messages: Missing


def salvage(db: Path, target: Path, tell: Tell = lambda _done, _total: None) -> Salvage:
    """Write what can be read of *db* into the new store *target*, which is one file.

    *tell* gets the tables that are done, and all. Raises a :class:`StorageError` if not even the
    list of tables can be read.
    """
    from hermes_actor.engine.environment import Environment
    from hermes_actor.engine.fulltext import create_fulltext, drop_triggers
    from hermes_actor.engine.meta_table import set_internal
    from hermes_actor.engine.open_database import open_database
    from hermes_actor.store.search.coverage import TABLES

    try:
        with contextlib.closing(connect_reader(db)) as source:
            tables = _tables(source)
            with contextlib.closing(open_database(resolve_paths(target), Environment())) as new:
                new.execute("PRAGMA foreign_keys = OFF")
                new.execute("BEGIN IMMEDIATE")
                for name in TABLES:
                    drop_triggers(new, name)
                report = []
                for number, (table, sql) in enumerate(tables.items()):
                    tell(number, len(tables))
                    report.append(_copy_table(source, new, table, sql))
                adopted = _adopt_orphans(new)
                numbered = _number_on(source, new)
                missing = _missing(new, numbered, bool(adopted) or _has_lost(report, "sessions"))
                for name in TABLES:
                    create_fulltext(new, name)
                set_internal(new, "watermark", 0)
                new.execute("COMMIT")
                # Closing takes the log away with it then, whoever reads the file later.
                new.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.Error as error:
        if isinstance(error, StorageError):
            raise
        raise from_sqlite(error, db) from error
    tell(len(tables), len(tables))
    return Salvage([*report, *adopted], missing)


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
            sqlite_message=words,
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
    return Salvaged(table, taken, reading.lost(), reading.read - taken)


class _Reading:
    """The rows of one table, as far as they answer."""

    def __init__(self, source: sqlite3.Connection, table: str, names: str) -> None:
        self._source = source
        self._table = table
        self._names = names
        self.read = 0
        self._highest = self._find_highest()
        self._is_damaged = False

    def lost(self) -> int:
        """If a part does not answer: the row numbers up to the highest known that have no row."""
        if not self._is_damaged:
            return 0
        return max(1, (self._highest or 0) - self.read)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        position = -(2**63)
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
                self._is_damaged = True
                found = self._next_that_answers(position)
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
            self._is_damaged = True

    def _next_that_answers(self, position: int) -> tuple[Any, ...] | None:
        rowid, step, tries = max(position, 0) + 1, 1, 0
        one = f'SELECT rowid, {self._names} FROM "{self._table}" WHERE rowid = ?'
        # Where nothing tells the highest: as many rows as all pages together could hold.
        while rowid <= (self._highest or 10_000_000):
            with contextlib.suppress(sqlite3.DatabaseError):
                found: list[tuple[Any, ...]] = self._source.execute(one, (rowid,)).fetchall()
                if found:
                    return found[0]
            tries += 1
            if tries > _STEPS:
                step *= 2
            rowid += step
        return None

    def _find_highest(self) -> int:
        """The highest row number, from where it can be learned; 0 if nothing tells it."""
        found = _sequence(self._source, self._table)
        with contextlib.suppress(sqlite3.Error):
            rows = self._source.execute(f'SELECT MAX(rowid) FROM "{self._table}"').fetchall()
            found = max(found, rows[0][0] or 0)
        return found


def _sequence(conn: sqlite3.Connection, table: str) -> int:
    """The highest row number that was ever given out, where that is kept and can be read."""
    with contextlib.suppress(sqlite3.Error):
        sql = "SELECT MAX(seq) FROM sqlite_sequence WHERE name = ?"
        ((found,),) = conn.execute(sql, (table,)).fetchall()
        return found if isinstance(found, int) else 0
    return 0


def _number_on(source: sqlite3.Connection, new: sqlite3.Connection) -> int:
    """Have the new store give out no message id that was ever used; the highest of them."""
    highest = max(_sequence(source, "messages"), _sequence(new, "messages"))
    new.execute("DELETE FROM sqlite_sequence WHERE name = 'messages'")
    new.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('messages', ?)", (highest,))
    return highest


def _missing(new: sqlite3.Connection, highest: int, lost_sessions: bool) -> Missing:
    counted = new.execute(
        "SELECT s.id, s.message_count - COUNT(m.id) AS lacks FROM sessions s"
        " LEFT JOIN messages m ON m.session_id = s.id"
        " GROUP BY s.id HAVING lacks > 0 ORDER BY lacks DESC, s.id"
    ).fetchall()
    ((saved,),) = new.execute("SELECT COUNT(*) FROM messages WHERE id > 0").fetchall()
    # A lost message leaves its id unused; so does a deleted one, which no session counts.
    unused = max(0, highest - saved)
    missing = min(sum(lacks for _, lacks in counted), unused)
    more = unused - missing if lost_sessions else 0
    return Missing(missing, saved + missing, dict(counted) if missing else {}, more)


def _has_lost(report: list[Salvaged], table: str) -> bool:
    return any(one.lost for one in report if one.table == table)


def _adopt_orphans(new: sqlite3.Connection) -> list[Salvaged]:
    """Messages whose session was lost get one again, so that people can find them."""
    made = new.execute(
        "INSERT INTO sessions (id, source, started_at, message_count)"
        " SELECT session_id, 'recovered', MIN(timestamp), COUNT(*) FROM messages"
        " WHERE session_id NOT IN (SELECT id FROM sessions) GROUP BY session_id"
    ).rowcount
    return [Salvaged("sessions made for messages without one", made, 0, 0)] if made else []
