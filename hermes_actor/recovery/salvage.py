"""Copy of the readable rows of a damaged store into a new one.

Tables are read in rowid order. Behind a damaged page, rowids are tried one by one until a row can
be read. Indexes are not trusted; the full-text indexes are left to the next owner, which fills them
in slices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hermes_actor.errors import Damaged, StorageError, from_sqlite
from hermes_actor.paths import resolve_paths
from hermes_actor.sqlite import Connection, connect_alone, connect_reader, sqlite3
from hermes_protocol.features import PLAIN, SESSIONS

__all__ = ["MissingMessages", "SalvageReport", "TableReport", "salvage"]

_STEPS = 20_000
"""Unreadable rowids in sequence before the step doubles: rowids may have large gaps."""

_OURS_ALONE = frozenset({"hermes_actor_meta", "hermes_actor_receipts", "hermes_actor_stage"})


class TableReport(NamedTuple):
    """Outcome for one table."""

    table: str
    read: int
    lost: int
    """Rowids without a row, if a part of the table is unreadable. Some may never have been used."""
    skipped: int
    """Rows that the new store rejects, such as a second one with the same id."""


class MissingMessages(NamedTuple):
    """Messages that could not be saved, as far as the saved rows show."""

    missing: int
    """By the message counts of the saved sessions, and at most the unused message ids."""
    of: int
    """Saved and missing messages together."""
    sessions: dict[str, int]
    """Session id → number of its missing messages."""
    perhaps_more: int
    """Further unused message ids, if sessions were lost as well: no count explains them."""


class SalvageReport(NamedTuple):
    """Outcome for a store."""

    tables: list[TableReport]
    messages: MissingMessages | None
    """Only of a store with sessions."""


def salvage(
    db: Path,
    target: Path,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    *,
    kind: str = SESSIONS,
) -> SalvageReport:
    """Write every readable row of *db*, a store of *kind*, into the new file *target*.

    *progress* gets the tables that are done, and their total. *db* is only read. Raises
    :class:`Damaged` if not even the list of tables can be read, and another
    :class:`StorageError` if *target* cannot be written; then *target* may exist in part.
    """
    try:
        with contextlib.closing(connect_reader(db)) as source:
            salvage_one = _salvage_plain if kind == PLAIN else _salvage_sessions
            return salvage_one(source, target, progress)
    except sqlite3.Error as error:
        if isinstance(error, StorageError):
            raise
        raise from_sqlite(error, db) from error


def _salvage_sessions(
    source: Connection, target: Path, progress: Callable[[int, int], None]
) -> SalvageReport:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.engine.index.fulltext import create_fulltext, drop_triggers
    from hermes_actor.engine.meta_table import set_internal
    from hermes_actor.engine.startup.open_database import open_database
    from hermes_actor.store.search.coverage import TABLES

    tables = _tables(source)
    opened = open_database(resolve_paths(target), Environment())
    with contextlib.closing(opened.conn) as new:
        new.execute("PRAGMA foreign_keys = OFF")
        new.execute("BEGIN IMMEDIATE")
        for name in TABLES:
            drop_triggers(new, name)
        report = []
        for number, (table, sql) in enumerate(tables.items()):
            progress(number, len(tables))
            report.append(_copy_table(source, new, table, sql))
        adopted = _adopt_orphans(new)
        numbered = _continue_ids(source, new)
        missing = _missing(new, numbered, bool(adopted) or _has_lost(report, "sessions"))
        # After it, which tells by the old numbers what is missing: lists show what is there.
        new.executemany(
            "UPDATE sessions SET message_count = message_count - ? WHERE id = ?",
            [(lacks, session_id) for session_id, lacks in missing.sessions.items()],
        )
        for name in TABLES:
            create_fulltext(new, name)
        set_internal(new, "watermark", 0)
        new.execute("COMMIT")
        # Leave one file: without this, the log would stay if a reader had it open.
        new.execute("PRAGMA journal_mode = DELETE").fetchall()
    progress(len(tables), len(tables))
    return SalvageReport([*report, *adopted], missing)


def _salvage_plain(
    source: Connection, target: Path, progress: Callable[[int, int], None]
) -> SalvageReport:
    """Copy all objects but ours, in an order in which none needs a later one."""
    objects = _objects(source)
    tables = {one.name: one.sql for one in objects if one.is_table}
    report = []
    with contextlib.closing(connect_alone(target)) as new:
        # The first three before anything else: the first table fixes them.
        for pragma in ("encoding", "page_size", "auto_vacuum", "user_version", "application_id"):
            ((value,),) = source.execute(f"PRAGMA {pragma}").fetchall()
            new.execute(f"PRAGMA {pragma} = '{value}'")
        new.execute("BEGIN IMMEDIATE")
        # Unique indexes before the rows, which they then choose; triggers after all of them.
        for one in (one for one in objects if one.is_table or one.is_unique_index):
            new.execute(one.sql)
        for number, (table, sql) in enumerate(tables.items()):
            progress(number, len(tables))
            report.append(_copy_table(source, new, table, sql))
            _copy_sequence(source, new, table)
        _add_virtual_tables(new, [one for one in objects if one.is_virtual])
        for one in objects:
            if not (one.is_table or one.is_unique_index or one.is_virtual):
                new.execute(one.sql)
        new.execute("COMMIT")
    progress(len(tables), len(tables))
    return SalvageReport(report, None)


class _Object(NamedTuple):
    """One row of the schema."""

    type: str
    name: str
    sql: str

    @property
    def is_virtual(self) -> bool:
        return self.sql.upper().startswith("CREATE VIRTUAL")

    @property
    def is_table(self) -> bool:
        return self.type == "table" and not self.is_virtual

    @property
    def is_unique_index(self) -> bool:
        return self.sql.upper().startswith("CREATE UNIQUE")


def _objects(source: sqlite3.Connection) -> list[_Object]:
    """Return the schema without our own tables, views before the triggers on them."""
    rows = _schema(
        source,
        "SELECT type, name, sql FROM sqlite_master WHERE sql NOTNULL AND name NOT GLOB 'sqlite_*'"
        " ORDER BY type = 'trigger', rowid",
    )
    return [_Object(*row) for row in rows if row[1] not in _OURS_ALONE]


def _add_virtual_tables(new: sqlite3.Connection, tables: list[_Object]) -> None:
    """Declare virtual tables whose content, in tables behind them, is there already."""
    if tables:
        # As a dump does: CREATE would make those tables once more.
        new.execute("PRAGMA writable_schema = ON")
        new.executemany(
            "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql)"
            " VALUES ('table', ?, ?, 0, ?)",
            [(one.name, one.name, one.sql) for one in tables],
        )
        new.execute("PRAGMA writable_schema = RESET")


def _copy_sequence(source: sqlite3.Connection, new: sqlite3.Connection, table: str) -> None:
    """Have an AUTOINCREMENT column of *table* reuse no number."""
    if highest := _sequence(source, table):
        new.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        new.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, highest))


def _tables(source: sqlite3.Connection) -> dict[str, str]:
    """Return name and SQL of the tables that hold user data; sessions before their messages."""
    rows = _schema(
        source,
        "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        " AND name NOT GLOB 'sqlite_*' AND name NOT GLOB 'messages_fts*'"
        " AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name <> 'sessions', name",
    )
    return {name: sql for name, sql in rows if name not in _OURS_ALONE}


def _schema(source: sqlite3.Connection, sql: str) -> list[Any]:
    try:
        return source.execute(sql).fetchall()
    except sqlite3.Error as error:
        words = str(error)
        raise Damaged(
            f"{words}: not even the list of tables can be read; restore a backup:"
            f" hermes-actor restore --list",
            sqlite_message=words,
        ) from error


def _copy_table(
    source: sqlite3.Connection, new: sqlite3.Connection, table: str, sql: str
) -> TableReport:
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
    reader = _TableReader(source, table, names)
    taken = sum(new.execute(insert, row).rowcount for row in reader.rows())
    return TableReport(table, taken, reader.lost(), reader.read - taken)


class _TableReader:
    """Reader of one damaged table."""

    def __init__(self, source: sqlite3.Connection, table: str, names: str) -> None:
        self._source = source
        self._table = table
        self._names = names
        self.read = 0
        self._highest = self._find_highest()
        self._is_damaged = False

    def lost(self) -> int:
        """Count the rowids up to the highest known one that have no row, if a part is damaged."""
        if not self._is_damaged:
            return 0
        return max(1, (self._highest or 0) - self.read)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield every readable row in rowid order, skipping damaged pages.

        Sets :attr:`read` and the mark of damage. A table without rowids is read up to the damage.
        """
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
                # A table without rowids is read in its own order, up to the damage.
                yield from self._plain()
                return
            except sqlite3.DatabaseError:
                self._is_damaged = True
                found = self._next_readable(position)
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

    def _next_readable(self, position: int) -> tuple[Any, ...] | None:
        rowid, step, tries = max(position, 0) + 1, 1, 0
        one = f'SELECT rowid, {self._names} FROM "{self._table}" WHERE rowid = ?'
        # Without a known highest rowid, try as many as a large file could hold.
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
        """Return the highest rowid that is recorded somewhere; 0 if none is."""
        found = _sequence(self._source, self._table)
        with contextlib.suppress(sqlite3.Error):
            rows = self._source.execute(f'SELECT MAX(rowid) FROM "{self._table}"').fetchall()
            found = max(found, rows[0][0] or 0)
        return found


def _sequence(conn: sqlite3.Connection, table: str) -> int:
    """Return the highest rowid that was ever assigned, from ``sqlite_sequence``; 0 if unknown."""
    with contextlib.suppress(sqlite3.Error):
        sql = "SELECT MAX(seq) FROM sqlite_sequence WHERE name = ?"
        ((found,),) = conn.execute(sql, (table,)).fetchall()
        return found if isinstance(found, int) else 0
    return 0


def _continue_ids(source: sqlite3.Connection, new: sqlite3.Connection) -> int:
    """Make the new store reuse no message id, and return the highest one that was used."""
    highest = max(_sequence(source, "messages"), _sequence(new, "messages"))
    new.execute("DELETE FROM sqlite_sequence WHERE name = 'messages'")
    new.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('messages', ?)", (highest,))
    return highest


def _missing(new: sqlite3.Connection, highest: int, lost_sessions: bool) -> MissingMessages:
    counted = new.execute(
        "SELECT s.id, s.message_count - COUNT(m.id) AS lacks FROM sessions s"
        " LEFT JOIN messages m ON m.session_id = s.id"
        " GROUP BY s.id HAVING lacks > 0 ORDER BY lacks DESC, s.id"
    ).fetchall()
    ((saved,),) = new.execute("SELECT COUNT(*) FROM messages WHERE id > 0").fetchall()
    # A lost message leaves its id unused. So does a deleted one, but no session counts it.
    unused = max(0, highest - saved)
    missing = min(sum(lacks for _, lacks in counted), unused)
    more = unused - missing if lost_sessions else 0
    return MissingMessages(missing, saved + missing, dict(counted) if missing else {}, more)


def _has_lost(report: list[TableReport], table: str) -> bool:
    return any(one.lost for one in report if one.table == table)


def _adopt_orphans(new: sqlite3.Connection) -> list[TableReport]:
    """Create a session for messages that lost theirs, so that they can be found."""
    made = new.execute(
        "INSERT INTO sessions (id, source, started_at, message_count)"
        " SELECT session_id, 'recovered', MIN(timestamp), COUNT(*) FROM messages"
        " WHERE session_id NOT IN (SELECT id FROM sessions) GROUP BY session_id"
    ).rowcount
    return [TableReport("sessions created for messages without one", made, 0, 0)] if made else []
