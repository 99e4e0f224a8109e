"""Segments of an FTS5 index, built apart from the index and then put into place.

FTS5 takes a row in one piece: seconds for a message of some megabytes, under the write lock, and
nothing can interrupt it. An index is a list of segments, though, and a finished segment does not
care where it was built. So the text is indexed in a private database, in memory or, if it is very
large, in a file (:mod:`hermes_actor.engine.index.build_folder`), and the pages of the one segment
that this makes are copied under a number that the index does not use. The index learns of them when
its structure record names them: a small change, in one transaction with the text, its size and the
totals. The table stays an ordinary FTS5 table for every other program.

The same way entries are removed: deleting a row leaves a segment of delete marks.

What is relied upon. The structure record (row 10 of the data table) lists levels, newest first,
and in each the segments, oldest first; row 1 holds the totals. A row's entries in a newer segment
replace those in older ones. FTS5 takes the lowest free number for a segment of its own, so the
upper half is free for copies that are not complete yet. It keeps the structure in memory, reads
it again after a commit of another connection, and forgets it when a savepoint is rolled back
(:func:`_forget_structure`). None of that is promised, so :func:`is_known_format` tries all of it
out with the linked SQLite, once in a process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from hermes_actor.engine.index.build_script import Step, run_steps
from hermes_actor.engine.index.entries import Entry, change
from hermes_actor.engine.index.structure import (
    STRUCTURE_ROW,
    TOTALS_ROW,
    Segment,
    UnknownFormat,
    packed,
    read_structure,
    read_totals,
    with_newest,
    write_structure,
    write_totals,
)
from hermes_actor.sqlite import connect_alone, sqlite3
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import statements
from hermes_actor.store.search.coverage import TABLES

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = [
    "Built",
    "build",
    "build_rows",
    "build_steps",
    "is_known_format",
    "is_staged",
    "keep_texts",
    "place",
    "place_rows",
    "remove_leftovers",
    "stage",
    "unused_number",
]

_NUMBER_SHIFT = 37
"""Pages of a segment have its number above this bit of their row id."""
_OWN_NUMBERS = range(1999, 999, -1)
"""Numbers for copies. FTS5 knows 2,000 and begins with 1."""
_MANY_TOKENS = 1 << 40
"""More than any text has, so that what is removed can be taken off."""


# --- building --------------------------------------------------------------------------------


class Built:
    """A finished segment in a private database, and what else changes with it."""

    def __init__(
        self,
        conn: Connection,
        entries: Callable[[], Iterable[Entry]],
        removed: int,
        tokens: int = _MANY_TOKENS,
    ) -> None:
        """*entries* gives those whose texts were kept: one at a time, where they lie in a
        file, so that no more than one is in memory. *removed*: how many of them have an old text.
        *tokens*: the total with which the build began.
        """
        self.entries = entries
        self._conn = conn
        sizes = dict(conn.execute("SELECT id, sz FROM t_docsize").fetchall())
        self.sizes: dict[int, bytes] = sizes
        rows, after = read_totals(conn, "t")
        # What differs from the totals at the beginning (build_steps) is the change that this
        # segment makes, which may be negative.
        self.rows = rows - removed
        self.tokens = after - tokens
        segments = [s for level in read_structure(conn, "t").levels for s in level.segments]
        # Each would need a number, and a place in the order. A build makes one; more of them mean
        # that FTS5 works in another way than this module knows.
        if len(segments) > 1:
            raise UnknownFormat(f"{len(segments)} segments of one transaction")
        self._segment = segments[0] if segments else None
        self.pages = scalar(conn, "SELECT COUNT(*) FROM t_data WHERE id > ?", (STRUCTURE_ROW,))

    @property
    def extent(self) -> tuple[int, int] | None:
        """Its first and last leaf; ``None`` if there is nothing to look for in the text."""
        return None if self._segment is None else self._segment[1:]

    def read(self, after: int, size: int) -> list[tuple[int, bytes]]:
        """Pages after the offset *after*, about *size* bytes of them, with their offsets."""
        base, pages = self._base, list[tuple[int, bytes]]()
        sql = "SELECT id, block FROM t_data WHERE id > ? ORDER BY id"
        for row, block in self._conn.execute(sql, (max(base + after, STRUCTURE_ROW),)):
            pages.append((row - base, block))
            size -= len(block)
            if size <= 0:
                break
        return pages

    def index(self) -> Iterator[tuple[bytes, int]]:
        """Return the first term of each leaf."""
        return iter(self._conn.execute("SELECT term, pgno FROM t_idx"))

    def close(self) -> None:
        """Close the private database, which goes with it. Calling it again is harmless."""
        self._conn.close()

    @property
    def _base(self) -> int:
        assert self._segment is not None
        return self._segment.number << _NUMBER_SHIFT


def build(table: str, entries: Sequence[Entry]) -> Built:
    """Build, in memory, the segment that turns the old entries of *table* into the new ones.

    Takes as long as FTS5 takes, in whatever thread; SQLite leaves the interpreter to others.
    """
    entries = sorted(entry for entry in entries if entry.old != entry.new)
    conn = connect_alone()
    try:
        keep_texts(conn, entries)
        run_steps(conn, build_steps(conn, table))
        return Built(conn, lambda: entries, sum(entry.old is not None for entry in entries))
    except BaseException:
        conn.close()
        raise


def build_rows(table: str, rows: Sequence[tuple[int, bytes]]) -> Built:
    """Build, in memory, one segment of new *rows*, ids and texts, in the order of their ids."""
    conn = connect_alone()
    try:
        run_steps(conn, _table_steps(table))
        conn.execute("BEGIN")
        values = ", ".join(["(?, CAST(? AS TEXT))"] * len(rows))
        # In one statement: between two of them this thread would take the interpreter, for which
        # the writer waits as long as a busy machine lets neither of them run (G13).
        conn.execute(f"INSERT INTO t(rowid, content) VALUES {values}", [*chain(*rows)])
        conn.execute("COMMIT")
        return Built(conn, tuple, 0, tokens=0)
    except BaseException:
        conn.close()
        raise


def keep_texts(conn: Connection, entries: Iterable[Entry]) -> None:
    """Put the texts of *entries*, which must all be changes, into a private database."""
    conn.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, old BLOB, new BLOB)")
    for entry in entries:
        conn.execute("INSERT INTO texts VALUES (?, ?, ?)", entry)


def build_steps(conn: Connection, table: str) -> list[Step]:
    """Return the steps that make one segment of the kept texts, in a table named ``t``.

    They need nothing but the database, so another process can run them.
    """
    kept = conn.execute("SELECT id, old NOTNULL, new NOTNULL FROM texts ORDER BY id").fetchall()
    old = [row for row, has_old, _ in kept if has_old]
    steps = _table_steps(table)
    # The table holds the old texts without having indexed them: to remove a row, FTS5 reads its
    # text and marks each word of it as deleted.
    steps.append(Step("BEGIN"))
    for row in old:
        steps += [
            Step("INSERT INTO t_content (id, c0) VALUES (?, CAST(? AS TEXT))", row, "old"),
            Step(f"INSERT INTO t_docsize (id, sz) VALUES ({row}, x'{packed(0).hex()}')"),
        ]
    totals = packed(len(old), _MANY_TOKENS).hex()
    steps.append(Step(f"UPDATE t_data SET block = x'{totals}' WHERE id = {TOTALS_ROW}"))
    # FTS5 has seen none of this: rows and totals were written past it.
    steps += [Step(sql) for sql in (*_forgetting("t"), "COMMIT", "BEGIN")]
    # By id, the delete of a row before its insert: when an id goes back, FTS5 writes a segment.
    for row, has_old, has_new in kept:
        if has_old:
            steps.append(Step(f"DELETE FROM t WHERE rowid = {row}"))
        if has_new:
            # Not by INSERT … SELECT: its savepoint makes FTS5 write a segment for each row.
            sql = "INSERT INTO t(rowid, content) VALUES (?, CAST(? AS TEXT))"
            steps.append(Step(sql, row, "new"))
    return [*steps, Step("COMMIT")]


def _table_steps(table: str) -> list[Step]:
    """Create a table like *table*, which makes one segment of a transaction, whatever it holds."""
    steps = [Step(statements(TABLES[table])[0].replace(f"IF NOT EXISTS {table} ", "t "))]
    # Nothing may be merged, or flushed between two rows.
    for name, value in (("automerge", 0), ("crisismerge", 1_000), ("hashsize", 1 << 30)):
        steps.append(Step(f"INSERT INTO t(t, rank) VALUES ('{name}', {value})"))
    return steps


# --- putting into place ----------------------------------------------------------------------


def unused_number(conn: Connection, table: str) -> int:
    """A number for a segment that neither the index nor a leftover of a copy has."""
    used = read_structure(conn, table).numbers
    for number in _OWN_NUMBERS:
        if number not in used and not _pages_of(conn, table, number):
            return number
    raise UnknownFormat(f"{table} has no number left for a segment")


def _pages_of(conn: Connection, table: str, number: int) -> int:
    sql = f"SELECT COUNT(*) FROM {table}_data WHERE id >= ? AND id < ?"
    return int(scalar(conn, sql, _rows_of(number)))


def _rows_of(number: int) -> tuple[int, int]:
    return number << _NUMBER_SHIFT, (number + 1) << _NUMBER_SHIFT


def stage(
    conn: Connection, table: str, number: int, built: Built, after: int, size: int
) -> int | None:
    """Copy the next pages of *built* under *number*; the offset to go on after, if there are more.

    The index does not know of them yet.
    """
    pages = built.read(after, size) if built.extent is not None else []
    base = number << _NUMBER_SHIFT
    conn.executemany(
        f"INSERT INTO {table}_data (id, block) VALUES (?, ?)",
        [(base + offset, block) for offset, block in pages],
    )
    # Fewer bytes than asked for: the end. If it came out even, one more call copies nothing.
    return pages[-1][0] if sum(len(block) for _, block in pages) >= size else None


def is_staged(conn: Connection, table: str, number: int, built: Built) -> bool:
    """Return True if all pages of *built* are there; another program may have emptied the index."""
    return built.extent is None or _pages_of(conn, table, number) == built.pages


def place(conn: Connection, table: str, number: int, built: Built) -> None:
    """Make the staged pages of *built* part of the index, with the texts that belong to them.

    The caller has compared the texts and made sure that all pages are there. Raises
    :class:`UnknownFormat` if the index is not as it should be; nothing may be committed then.
    """
    _add_segment(conn, table, number, built)
    # Into the tables behind the index: through FTS5 the text would be indexed again.
    for entry in built.entries():
        if entry.old is not None:
            conn.execute(f"DELETE FROM {table}_content WHERE id = ?", (entry.id,))
            conn.execute(f"DELETE FROM {table}_docsize WHERE id = ?", (entry.id,))
        if entry.new is not None:
            conn.execute(
                f"INSERT INTO {table}_content (id, c0) VALUES (?, CAST(? AS TEXT))",
                (entry.id, entry.new),
            )
            conn.execute(
                f"INSERT INTO {table}_docsize (id, sz) VALUES (?, ?)",
                (entry.id, built.sizes[entry.id]),
            )
    _add_totals(conn, table, built)


def place_rows(
    conn: Connection, table: str, built: Built, rows: Sequence[tuple[int, bytes]]
) -> None:
    """Copy *built*, which is of new *rows*, into the index, all of it in the open transaction.

    The caller has made sure that no row of the index has one of these ids. Raises
    :class:`UnknownFormat` if the index is not as it should be; nothing may be committed then.
    """
    number = unused_number(conn, table)
    stage(conn, table, number, built, 0, sys.maxsize)
    _add_segment(conn, table, number, built)
    conn.executemany(f"INSERT INTO {table}_content (id, c0) VALUES (?, CAST(? AS TEXT))", rows)
    conn.executemany(f"INSERT INTO {table}_docsize (id, sz) VALUES (?, ?)", built.sizes.items())
    _add_totals(conn, table, built)


def _add_segment(conn: Connection, table: str, number: int, built: Built) -> None:
    if built.extent is None:
        return
    # Now, not with the pages: so what a crash leaves is in one table, and known by its number.
    conn.executemany(
        f"INSERT INTO {table}_idx (segid, term, pgno) VALUES (?, ?, ?)",
        ((number, term, leaf) for term, leaf in built.index()),
    )
    structure = with_newest(read_structure(conn, table), Segment(number, *built.extent))
    write_structure(conn, table, structure)


def _add_totals(conn: Connection, table: str, built: Built) -> None:
    # Added, not set: other rows were indexed since the build began.
    rows, tokens = read_totals(conn, table)
    write_totals(conn, table, rows + built.rows, tokens + built.tokens)
    _forget_structure(conn, table)


def _forget_structure(conn: Connection, table: str) -> None:
    """Have FTS5 on this connection read the structure and the totals again, in this transaction.

    It has then taken part in the transaction, and also forgets what it read if that is rolled back.
    """
    for sql in _forgetting(table):
        conn.execute(sql)


def _forgetting(table: str) -> tuple[str, ...]:
    return (
        "SAVEPOINT hermes_actor_segment",
        # Deletes nothing, but is a write: only by one does FTS5 take part in the savepoint.
        f"DELETE FROM {table} WHERE rowid IS NULL",
        "ROLLBACK TO hermes_actor_segment",
        "RELEASE hermes_actor_segment",
    )


def remove_leftovers(conn: Connection, table: str, pages: int) -> bool:
    """Remove up to *pages* pages of copies that did not come to their end; whether there were any.

    They cost room and nothing else: the index does not know of them.
    """
    # No copy may be under way: its pages would look the same.
    used = read_structure(conn, table).numbers
    above = min(_OWN_NUMBERS) << _NUMBER_SHIFT
    first = f"SELECT id >> {_NUMBER_SHIFT} FROM {table}_data WHERE id >= ? ORDER BY id LIMIT 1"
    while (number := scalar(conn, first, (above,))) in used:
        above = (number + 1) << _NUMBER_SHIFT
    if number is None:
        return False
    conn.execute(
        f"DELETE FROM {table}_data WHERE id IN"
        f" (SELECT id FROM {table}_data WHERE id >= ? AND id < ? LIMIT ?)",
        (*_rows_of(number), pages),
    )
    return True


# --- trying it out ---------------------------------------------------------------------------


@cache
def is_known_format() -> bool:
    """Return True if the linked SQLite keeps indexes as this module knows them, by trial."""
    try:
        return all(_is_known(table) for table in TABLES)
    except (sqlite3.Error, UnknownFormat, AssertionError):
        return False


def _is_known(table: str) -> bool:
    """Change an index in both ways, turn by turn, and compare the two after each turn."""
    texts = {n: f"row {n} " + " ".join(f"w{n * k}" for k in range(600)) for n in range(1, 9)}
    turns = [*texts.items(), (2, "other words"), (3, None), (9, "row 9")]
    many = [(n, f"row {n} of many w{n * 60 % 7}".encode()) for n in range(10, 50)]
    made = []
    for aside in (False, True):
        conn, held, found = connect_alone(), dict[int, bytes](), list[Any]()
        conn.execute(statements(TABLES[table])[0])
        for turn, (row, text) in enumerate(turns):
            if turn == 4:
                _add_many(conn, table, many, aside=aside)
            entry = Entry(row, held.get(row), None if text is None else text.encode())
            # In turns, so that each way has to find and to change the work of the other.
            if aside and turn % 2:
                _change_aside(conn, table, entry)
            else:
                change(conn, table, entry)
            if entry.new is not None:
                held[row] = entry.new
            # What FTS5 has read for a search it still remembers in the next turn.
            sql = f"SELECT rowid, rank FROM {table} WHERE {table} MATCH ? ORDER BY rank, rowid"
            found.append([conn.execute(sql, (word,)).fetchall() for word in ("row", "w60")])
        conn.execute(f"INSERT INTO {table}({table}) VALUES ('integrity-check')")
        conn.close()
        made.append(found)
    # Not only equal but right: eight rows, without 2 and 3, and with 9, and the many.
    return made[0] == made[1] and len(made[0][-1][0]) == len(texts) - 1 + len(many)


def _add_many(
    conn: Connection, table: str, rows: Sequence[tuple[int, bytes]], *, aside: bool
) -> None:
    if not aside:
        for row, text in rows:
            change(conn, table, Entry(row, None, text))
        return
    built = build_rows(table, rows)
    conn.execute("BEGIN")
    place_rows(conn, table, built, rows)
    conn.execute("COMMIT")
    built.close()


def _change_aside(conn: Connection, table: str, entry: Entry) -> None:
    built = build(table, [entry])
    conn.execute("BEGIN")
    number = unused_number(conn, table)
    stage(conn, table, number, built, 0, 1 << 30)
    place(conn, table, number, built)
    conn.execute("COMMIT")
    built.close()
