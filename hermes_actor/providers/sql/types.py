"""Column types: a server keeps what SQLite stores, and returns it unchanged.

Servers are stricter than SQLite in two ways, and each has one rule:

* *Text.* PostgreSQL cannot hold U+0000, and structured content begins with it; a text column of
  SQLite may hold bytes. So U+001A is an escape character: U+0000 is kept as U+001A U+001A, U+001A
  itself as U+001A U+001B, and bytes as U+001A U+001C and their hexadecimal digits. No part of the
  mark is a letter or a digit, so it never becomes part of a word.
* *Types.* A column of SQLite converts what it is given (its affinity) and keeps what it cannot
  convert. Here it converts in the same way, and refuses the rest with :class:`BadValue`.
"""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

from sqlalchemy import BigInteger, Dialect, Double, Text, TypeDecorator
from sqlalchemy.dialects.mysql import LONGTEXT, VARCHAR
from sqlalchemy.types import TypeEngine

from hermes_actor.errors import BadValue
from hermes_actor.sqlite import connect_alone
from hermes_actor.store.sessions.title_text import escape_like
from hermes_actor.system.fork import inside

__all__ = [
    "KEPT_NUL", "StoredInteger", "StoredReal", "StoredText", "decode_text", "encode_text",
    "like_literal", "mysql_collation",
]  # fmt: skip

_ESCAPE = "\x1a"
KEPT_NUL = "\x1a\x1a"
"""U+0000 as it is kept; SQLite's LIKE and SUBSTR end there."""
_KEPT_ESCAPE = "\x1a\x1b"
_BYTES = "\x1a\x1c"


def encode_text(value: Any) -> str | None:
    """Return *value* as a text column stores it: numbers as text, U+0000 and bytes escaped.

    Raises :class:`BadValue` for a type that SQLite could not store.
    """
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return _BYTES + bytes(value).hex()
    text = value if isinstance(value, str) else _as_sqlite_text(value)
    if _ESCAPE in text:
        text = text.replace(_ESCAPE, _KEPT_ESCAPE)
    return text.replace("\x00", KEPT_NUL) if "\x00" in text else text


def decode_text(kept: str | None) -> str | bytes | None:
    """Return the value that :func:`encode_text` was given; bytes as ``bytes``."""
    if kept is None or _ESCAPE not in kept:
        return kept
    if kept.startswith(_BYTES):
        digits = kept[len(_BYTES) :]
        return bytes.fromhex(digits[: len(digits) // 2 * 2])
    # Both marks are two characters that begin with the escape, so pairs are read from the left;
    # a text that was cut inside a mark loses the half of it.
    parts = iter(kept.split(_ESCAPE))
    text = [next(parts)]
    for part in parts:
        if part:
            text.append(_ESCAPE + part[1:])
        elif (rest := next(parts, None)) is not None:
            text.append("\x00" + rest)
    return "".join(text)


def _as_sqlite_text(value: Any) -> str:
    if isinstance(value, int):
        return str(int(value))
    if not isinstance(value, float):
        raise BadValue(f"type {type(value).__name__!r} cannot be stored")
    if math.isnan(value):
        return ""
    with closing(connect_alone()) as conn:
        (text,) = inside(lambda: conn.execute("SELECT CAST(? AS TEXT)", (value,)).fetchone())
    return str(text)


def like_literal(text: str) -> str:
    r"""Return *text* as it is stored, for a pattern of LIKE with the escape character ``\``."""
    return escape_like(encode_text(text) or "")


class StoredText(TypeDecorator[Any]):
    """A text column, with the escapes of this module. MySQL needs *length* to index it."""

    impl = Text
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            # Compared by code points, as SQLite does, whatever the locale of the database is.
            return dialect.type_descriptor(Text(collation="C"))
        collation = mysql_collation(dialect)
        kind = LONGTEXT(collation=collation)
        if self.length is not None:
            kind = VARCHAR(self.length, collation=collation)  # type: ignore[assignment]
        return dialect.type_descriptor(kind)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return encode_text(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return decode_text(value)


def mysql_collation(dialect: Dialect) -> str:
    """Return the collation that compares code points and does not ignore trailing blanks."""
    is_mariadb = getattr(dialect, "is_mariadb", False)
    return "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"


class StoredInteger(TypeDecorator[Any]):
    """An integer column: takes whole numbers, as text too; raises :class:`BadValue` for others."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> int | None:
        if value is None or type(value) is int:
            return value
        try:
            number = float(value) if isinstance(value, str | int | float) else math.nan
            if number.is_integer():
                return int(value) if not isinstance(value, str) else int(number)
        except (ValueError, OverflowError):
            pass
        raise BadValue(f"{value!r} is not a whole number")


class StoredReal(TypeDecorator[Any]):
    """A floating point column; NaN becomes NULL, as in SQLite."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> float | None:
        if value is None:
            return None
        try:
            number = float(value) if isinstance(value, str | int | float) else None
        except (ValueError, OverflowError):
            number = None
        if number is None:
            raise BadValue(f"{value!r} is not a number")
        return None if math.isnan(number) else number
