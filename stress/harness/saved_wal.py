"""What is in a WAL that an owner has saved, because the file it belonged to is not there any more.

The database itself has gone on without it, so SQLite cannot put the two together again. But every
frame holds a whole page, and whether a frame is valid and committed is shown by its checksum.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from hermes_actor.testing.history import Row
from hermes_actor.testing.records import Recorded

__all__ = ["committed_pages", "without_saved"]

_HEADER, _FRAME_HEADER = 32, 24


def committed_pages(wal: bytes) -> Iterator[bytes]:
    """The pages of all valid frames up to the last commit."""
    if len(wal) < _HEADER:
        return
    magic, _, size, _, salt, sums = *struct.unpack(">4I", wal[:16]), wal[16:24], (0, 0)
    words = f"{'>' if magic & 1 else '<'}{{}}I"
    sums = _sum(words, wal[:24], sums)
    waiting: list[bytes] = []
    for at in range(_HEADER, len(wal) - _FRAME_HEADER - size + 1, _FRAME_HEADER + size):
        head = wal[at : at + _FRAME_HEADER]
        page = wal[at + _FRAME_HEADER : at + _FRAME_HEADER + size]
        sums = _sum(words, page, _sum(words, head[:8], sums))
        if head[8:16] != salt or struct.unpack(">2I", head[16:]) != sums:
            return
        waiting.append(page)
        if head[4:8] != bytes(4):
            yield from waiting
            waiting.clear()


def _sum(words: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    one, two = sums
    numbers = iter(struct.unpack(words.format(len(data) // 4), data))
    for first in numbers:
        one = (one + first + two) & 0xFFFFFFFF
        two = (two + next(numbers) + one) & 0xFFFFFFFF
    return one, two


def without_saved(
    recorded: Recorded, rows: Collection[Row], wals: Collection[Path]
) -> tuple[Recorded, int]:
    """The history without acknowledged changes that are not in the file and are in a saved WAL.

    And how many they are. They count as changes that may or may not be there.
    """
    there = {(row.client, row.number) for row in rows}
    clients = sorted({write.client for write in recorded.writes}, key=len, reverse=True)
    # What writers of a history write, see :mod:`harness.client`.
    texts = re.compile(f"({'|'.join(map(re.escape, clients))}) ([0-9]+) x+".encode())
    found: set[tuple[str, int, int]] = set()
    for wal in wals:
        for page in committed_pages(wal.read_bytes()):
            for text in texts.finditer(page):
                client, number = text[1].decode(), int(text[2])
                found.add((client, number, zlib.crc32(text[0])))
    saved = [
        write.outcome == "ok"
        and (write.client, write.number) not in there
        and (write.client, write.number, write.payload) in found
        for write in recorded.writes
    ]
    writes = [
        write._replace(outcome="unknown", place=None, result=None) if out else write
        for write, out in zip(recorded.writes, saved, strict=True)
    ]
    return recorded._replace(writes=writes), sum(saved)
