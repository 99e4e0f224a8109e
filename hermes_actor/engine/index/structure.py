"""The records of an FTS5 index: which segments it has, in what order, and its totals.

The structure record (row 10 of the data table) lists levels, newest first, and in each the
segments, oldest first; row 1 holds the number of rows and of tokens. What SQLite does not promise
about them is tried out in :mod:`hermes_actor.engine.index.segments`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor.store.rows import scalar

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = [
    "Level",
    "STRUCTURE_ROW",
    "Segment",
    "Structure",
    "TOTALS_ROW",
    "UnknownFormat",
    "is_crowded",
    "packed",
    "read_structure",
    "read_totals",
    "with_newest",
    "write_structure",
    "write_totals",
]

TOTALS_ROW, STRUCTURE_ROW = 1, 10
_MOST_LEVELS = 32
"""FTS5 knows 64."""
_OTHER_STRUCTURE = b"\xff\x00\x00\x01"
"""Marks the structure record of a table without content, which ours are not."""
_VERSION = 4

_SMALL_PAGES = 64
"""A segment up to this size is like those that FTS5 itself makes of some rows."""
_CROWD_SEGMENTS, _CROWD_PAGES = 8, 1_000
"""More than these in one level would be merged in one go soon; pages are of 4 KiB."""
_MOST_SEGMENTS = 16


class UnknownFormat(Exception):
    """The index does not look as this module knows it."""


class Segment(NamedTuple):
    number: int
    first: int
    last: int

    @property
    def pages(self) -> int:
        return self.last - self.first + 1


class Level(NamedTuple):
    merging: int
    """Number of segments, from the oldest on, that FTS5 is merging into the next level."""
    segments: list[Segment]


class Structure(NamedTuple):
    cookie: bytes
    written: int
    levels: list[Level]

    @property
    def numbers(self) -> set[int]:
        return {segment.number for level in self.levels for segment in level.segments}


# --- records ---------------------------------------------------------------------------------


def _varints(data: bytes, offset: int = 0) -> Iterator[int]:
    while offset < len(data):
        # As SQLite writes them: seven bits in each byte, all eight in the ninth.
        value = 0
        for count in range(9):
            if offset >= len(data):
                raise UnknownFormat("a number ends too early")
            byte = data[offset]
            offset += 1
            if count == 8:
                value = value << 8 | byte
            else:
                value = value << 7 | byte & 0x7F
                if byte < 0x80:
                    break
        yield value


def packed(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        # Eight bytes of seven bits; beyond that, numbers have another form. No count is so large.
        if not 0 <= value < 1 << 56:
            raise UnknownFormat(f"{value} is no count")
        digits = [value & 0x7F]
        while value := value >> 7:
            digits.append(value & 0x7F | 0x80)
        out += bytes(reversed(digits))
    return bytes(out)


def read_structure(conn: Connection, table: str) -> Structure:
    if scalar(conn, f"SELECT v FROM {table}_config WHERE k = 'version'") != _VERSION:
        raise UnknownFormat(f"{table} is of another version")
    block = scalar(conn, f"SELECT block FROM {table}_data WHERE id = ?", (STRUCTURE_ROW,))
    # Four bytes of the cookie, which FTS5 compares with its settings and which stay as they are,
    # and three counts at least.
    if not isinstance(block, bytes) or len(block) < 7 or block[4:8] == _OTHER_STRUCTURE:
        raise UnknownFormat(f"the structure of {table} is of another kind")
    numbers = _varints(block, 4)
    try:
        count, segments, written = next(numbers), next(numbers), next(numbers)
        levels = []
        for _ in range(count):
            merging, size = next(numbers), next(numbers)
            found = [Segment(next(numbers), next(numbers), next(numbers)) for _ in range(size)]
            levels.append(Level(merging, found))
    except (StopIteration, RuntimeError) as error:
        raise UnknownFormat(f"the structure of {table} ends too early") from error
    # A record that does not come out even was misread. Better to leave large texts to FTS5 than to
    # write such a reading back.
    if segments != sum(len(level.segments) for level in levels) or any(True for _ in numbers):
        raise UnknownFormat(f"the structure of {table} has another length")
    return Structure(block[:4], written, levels)


def write_structure(conn: Connection, table: str, structure: Structure) -> None:
    levels = structure.levels
    numbers = [len(levels), sum(len(level.segments) for level in levels), structure.written]
    for merging, segments in levels:
        numbers += [merging, len(segments)]
        for segment in segments:
            numbers += segment
    conn.execute(
        f"UPDATE {table}_data SET block = ? WHERE id = ?",
        (structure.cookie + packed(*numbers), STRUCTURE_ROW),
    )


def read_totals(conn: Connection, table: str) -> tuple[int, int]:
    """Number of rows and of tokens."""
    block = scalar(conn, f"SELECT block FROM {table}_data WHERE id = ?", (TOTALS_ROW,))
    if not isinstance(block, bytes):
        raise UnknownFormat(f"{table} has no totals")
    # The record is empty until the first row comes.
    rows, tokens, *more = [*_varints(block)] or [0, 0]
    if more:
        raise UnknownFormat(f"{table} has totals of several columns")
    return rows, tokens


def write_totals(conn: Connection, table: str, rows: int, tokens: int) -> None:
    sql = f"UPDATE {table}_data SET block = ? WHERE id = ?"
    conn.execute(sql, (packed(rows, tokens), TOTALS_ROW))


def with_newest(structure: Structure, segment: Segment) -> Structure:
    """The structure with *segment* as the newest one; away from small ones, if it is not small.

    FTS5 merges sixteen segments of one level in one go, and level 0 fills with every few rows. So
    *segment* goes to the first level that has its like, and what is newer than that level goes
    there before it: the order of all segments stays. Levels that are being merged stay as they are.
    """
    levels = [Level(level.merging, [*level.segments]) for level in structure.levels]
    if not levels:
        levels = [Level(0, [])]
    if segment.pages <= _SMALL_PAGES:
        # The newest of all: levels are listed newest first, segments in them oldest first.
        levels[0].segments.append(segment)
        return structure._replace(levels=levels)
    # FTS5 merges level 0 into level 1. An empty level before both leaves them side by side.
    if levels[0].merging and len(levels) < _MOST_LEVELS:
        levels.insert(0, Level(0, []))
    elif len(levels) == 1:
        levels.append(Level(0, []))
    target = 0
    # Not beyond a level that is being merged: its output goes to the next one and must stay the
    # older. Behind its own segments there is room, because a merge takes the oldest.
    while target + 1 < len(levels) and not levels[target].merging:
        target += 1
        if any(one.pages >= segment.pages for one in levels[target].segments):
            break
    # From the oldest of these levels on, so that the order of all segments stays.
    for newer in reversed(levels[:target]):
        levels[target].segments.extend(newer.segments)
        newer.segments.clear()
    levels[target].segments.append(segment)
    return structure._replace(levels=levels)


def is_crowded(conn: Connection, table: str) -> bool:
    """Return True if FTS5 would soon merge a large level in one go, or a level is full."""
    return any(
        len(segments) >= _MOST_SEGMENTS
        or (
            len(segments) >= _CROWD_SEGMENTS
            and sum(segment.pages for segment in segments) >= _CROWD_PAGES
        )
        for _, segments in read_structure(conn, table).levels
    )
