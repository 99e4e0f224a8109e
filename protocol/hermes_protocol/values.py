"""The values of a column on the wire.

MessagePack tells text from bytes, but a typed union of both cannot be decoded, so bytes travel
inside a :class:`Blob`, and so does text that is not UTF-8. Everything else is itself.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

__all__ = ["Blob", "RawText", "Scalar", "Stored", "Value", "from_value", "to_value"]


class Blob(Struct, frozen=True, omit_defaults=True):
    """Bytes, stored as an SQLite BLOB; with ``text`` as a TEXT that is not UTF-8."""

    b: bytes
    text: bool = False


class RawText(bytes):
    """The bytes of a TEXT that is not UTF-8. A connection can return it, but not bind it."""


Scalar: TypeAlias = str | bool | int | float | None
"""A column value other than bytes."""

Value: TypeAlias = str | bool | int | float | Blob | None
"""Any column value as it travels."""

Stored: TypeAlias = str | bytes | bool | int | float | None
"""Any column value as SQLite binds and returns it."""


def to_value(stored: Stored) -> Value:
    """The wire form of *stored*. Types that SQLite cannot bind are refused."""
    if stored is None or isinstance(stored, str | bool | int | float):
        return stored
    if isinstance(stored, bytes | bytearray | memoryview):
        return Blob(bytes(stored), text=isinstance(stored, RawText))
    raise TypeError(f"type {type(stored).__name__!r} cannot be stored in SQLite")


def from_value(value: Value) -> Stored:
    """The form in which a connection has *value*."""
    if not isinstance(value, Blob):
        return value
    return RawText(value.b) if value.text else value.b
