"""Checksums of what a store holds: one per session, the same on every provider.

A row is hashed with its key, and the checksum of a session is the sum of its rows. A sum does not
depend on the order of reading, grows with every row that arrives, and takes sixteen bytes however
long the session is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from hermes_actor.store.raw_rows import StoredRow

__all__ = ["Checksums", "digest_of", "hexadecimal"]

_BYTES = 16
_MODULUS = 1 << 8 * _BYTES
_encode = msgspec.msgpack.Encoder().encode


def digest_of(row: StoredRow) -> int:
    """Hash a row to 128 bits; equal rows have equal digests on every provider."""
    return int.from_bytes(hashlib.blake2b(_encode(row), digest_size=_BYTES).digest())


def hexadecimal(checksum: int) -> str:
    """Format a checksum as 32 hexadecimal digits."""
    return checksum.to_bytes(_BYTES).hex()


class Checksums:
    """Checksums of one store: its session rows, their messages, and the counts of messages."""

    def __init__(self) -> None:
        self.sessions: dict[str, int] = {}
        self.messages: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.others = 0
        """Of all other tables."""

    def add_session(self, session_id: str, row: StoredRow) -> int:
        """Record the row of a session and return its digest; an earlier row is replaced."""
        self.sessions[session_id] = digest = digest_of(row)
        return digest

    def add_messages(self, rows: Iterable[StoredRow], place: int) -> None:
        """Add messages to the sums of their sessions; *place* is the index of the session id."""
        messages, counts = self.messages, self.counts
        for row in rows:
            of = row[place]
            messages[of] = (messages.get(of, 0) + digest_of(row)) % _MODULUS
            counts[of] = counts.get(of, 0) + 1

    def forget_messages(self, session_id: str) -> None:
        """Drop the sum and the count of a session's messages, so that they can be added again."""
        self.messages.pop(session_id, None)
        self.counts.pop(session_id, None)

    def add_table(self, table: str, rows: Iterable[StoredRow]) -> None:
        """Add the rows of another table, each hashed with the name of the table."""
        for row in rows:
            self.others = (self.others + digest_of((table, *row))) % _MODULUS

    def of(self, session_id: str) -> int:
        """Return the checksum of a session with its messages; 0 if the session is unknown."""
        if session_id not in self.sessions:
            return 0
        return (self.sessions[session_id] + self.messages.get(session_id, 0)) % _MODULUS

    def total(self) -> int:
        """Return one checksum of everything that was added."""
        return (sum(map(self.of, self.sessions)) + self.others) % _MODULUS

    def differing(self, other: Checksums) -> Iterator[str]:
        """Yield the sessions that differ between the two stores, or are only in one."""
        for session_id in self.sessions | other.sessions:
            if self.of(session_id) != other.of(session_id):
                yield session_id

    def differing_messages(self, other: Checksums) -> Iterator[str]:
        """Yield the sessions whose messages differ between the two stores."""
        for session_id in self.messages | other.messages:
            if self.messages.get(session_id, 0) != other.messages.get(session_id, 0):
                yield session_id
