"""Reader of the rows in a write-ahead log, without the database that it belongs to.

A log has whole pages, as its transactions left them. Every page that a transaction wrote is there,
so each row that it inserted is complete, with its overflow pages. Rows are therefore read from the
pages themselves: applied to a database that has changed since, the log would give rows that are
half of one state and half of another.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from hermes_actor.errors import NotADatabase

__all__ = ["WalPages", "WalRecord", "committed_pages"]

_ORDERS = {0x377F0682: "<", 0x377F0683: ">"}
"""Magic number of a log → byte order of its checksums."""
_PAGE_SIZES = frozenset(2**n for n in range(9, 17))
_HEADER, _FRAME = 32, 24
_LEAF_OF_A_TABLE = 0x0D
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class WalRecord(NamedTuple):
    """A row as it is stored: values in column order, a rowid alias as ``None``."""

    rowid: int
    columns: int
    values: list[Any] | None
    """``None`` if a part of it lies on a page that the log does not have."""


class WalPages:
    """The pages of a log, each as the last committed transaction left it."""

    def __init__(self, file: IO[bytes], size: int, offsets: dict[int, int]) -> None:
        self._file = file
        self._size = size
        self._offsets = offsets

    def records(self) -> Iterator[WalRecord]:
        """Yield every row on every page that is a leaf of a table.

        A page of text may look like a leaf, so callers must check what they get.
        """
        for number in sorted(self._offsets.keys() - self._free()):
            page = self._page(number)
            start = 100 if number == 1 else 0
            if page is None or page[start] != _LEAF_OF_A_TABLE:
                continue
            (count,) = struct.unpack_from(">H", page, start + 3)
            for place in range(start + 8, start + 8 + 2 * count, 2):
                # Not a leaf after all, if it cannot be parsed.
                with contextlib.suppress(IndexError, struct.error, ValueError, OverflowError):
                    yield self._record(page, struct.unpack_from(">H", page, place)[0])

    def _free(self) -> set[int]:
        """Return the pages on the free list: their rows were deleted."""
        found: set[int] = set()
        first = self._page(1)
        number = 0 if first is None else struct.unpack_from(">I", first, 32)[0]
        while number not in found and (trunk := self._page(number)) is not None:
            found.add(number)
            number, count = struct.unpack_from(">II", trunk)
            count = min(count, self._size // 4 - 2)
            found.update(struct.unpack_from(f">{count}I", trunk, 8))
        return found

    def _page(self, number: int) -> bytes | None:
        if number not in self._offsets:
            return None
        self._file.seek(self._offsets[number])
        return self._file.read(self._size)

    def _record(self, page: bytes, place: int) -> WalRecord:
        length, place = _varint(page, place)
        rowid, place = _varint(page, place)
        local = self._local(length)
        payload = page[place : place + local]
        kinds, body = _kinds(payload)
        if local < length:
            (following,) = struct.unpack_from(">I", page, place + local)
            rest = self._overflow(following, length - local)
            if rest is None:
                return WalRecord(rowid, len(kinds), None)
            payload += rest
        return WalRecord(rowid, len(kinds), _values(payload, kinds, body))

    def _local(self, length: int) -> int:
        """Return the bytes of a payload that are on its leaf, by the rule of the file format."""
        most, least = self._size - 35, (self._size - 12) * 32 // 255 - 23
        if length <= most:
            return length
        fitting = least + (length - least) % (self._size - 4)
        return fitting if fitting <= most else least

    def _overflow(self, number: int, length: int) -> bytes | None:
        if length > len(self._offsets) * self._size:
            return None  # a page that is not a leaf; following it could loop
        parts = bytearray()
        while len(parts) < length:
            page = self._page(number)
            if page is None:
                return None
            (number,) = struct.unpack_from(">I", page)
            parts += page[4:]
        # A chain that continues is another one: its pages were reused.
        return bytes(parts[:length]) if number == 0 else None


@contextlib.contextmanager
def committed_pages(log: Path) -> Iterator[WalPages]:
    """Open the pages of all committed transactions of *log*, for the block.

    Raises :class:`NotADatabase` if it is not a write-ahead log.
    """
    with log.open("rb") as file:
        yield WalPages(file, *_frames(file, log))


def _frames(file: IO[bytes], log: Path) -> tuple[int, dict[int, int]]:
    """Return the page size of a log, and the offset of the last committed version of each page."""
    found: dict[int, int] = {}
    open_: dict[int, int] = {}
    header = file.read(_HEADER)
    if not header:  # truncated by a checkpoint
        return 0, found
    magic, _, size = struct.unpack_from(">III", header.ljust(_HEADER, b"\0"))
    if len(header) < _HEADER or magic not in _ORDERS or size not in _PAGE_SIZES:
        raise NotADatabase(f"{log} is not a write-ahead log")
    order, check = _ORDERS[magic], struct.unpack_from(">II", header, 24)
    # Older frames follow the last one; their salt differs, or their checksum does not continue.
    while len(frame := file.read(_FRAME + size)) == _FRAME + size and frame[8:16] == header[16:24]:
        check = _sum(_sum(check, frame[:8], order), frame[_FRAME:], order)
        if check != struct.unpack_from(">II", frame, 16):
            break
        number, pages_after_commit = struct.unpack_from(">II", frame)
        open_[number] = file.tell() - size
        if pages_after_commit:
            found |= open_
            open_.clear()
    return size, found


def _sum(so_far: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    first, second = so_far
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for one, other in zip(words, words, strict=True):
        first = first + one + second & 0xFFFFFFFF
        second = second + other + first & 0xFFFFFFFF
    return first, second


# --- the format of a record ------------------------------------------------------------------


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for n in range(8):
        byte = data[place + n]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + n + 1
    return value << 8 | data[place + 8], place + 9


def _kinds(payload: bytes) -> tuple[list[int], int]:
    """Return the serial types of a record, and the offset of its first value."""
    end, place = _varint(payload, 0)
    kinds = []
    while place < end:
        kind, place = _varint(payload, place)
        kinds.append(kind)
    return kinds, end


def _values(payload: bytes, kinds: list[int], place: int) -> list[Any]:
    values = []
    for kind in kinds:
        value, length = _value(payload, place, kind)
        values.append(value)
        place += length
    if place != len(payload):
        raise ValueError("not a record")
    return values


def _value(payload: bytes, place: int, kind: int) -> tuple[Any, int]:
    if kind in _INTEGER_BYTES:
        length = _INTEGER_BYTES[kind]
        return int.from_bytes(payload[place : place + length], "big", signed=True), length
    if kind == 7:
        return struct.unpack_from(">d", payload, place)[0], 8
    if kind >= 12:
        length = (kind - 12) // 2
        data = payload[place : place + length]
        return (data.decode("utf-8", "replace") if kind % 2 else data), length
    if kind in (8, 9):
        return kind - 8, 0
    if kind == 0:
        return None, 0
    raise ValueError("not a record")
