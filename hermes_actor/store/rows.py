"""Rows as plain dicts, keys in table order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["Row", "dicts", "first", "in_list", "scalar"]

Row = dict[str, Any]


def dicts(conn: Connection, sql: str, parameters: Iterable[Any] = ()) -> list[Row]:
    """All rows of a query. The cursor is finished on return, so no snapshot is left pinned."""
    cursor = conn.execute(sql, tuple(parameters))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def first(conn: Connection, sql: str, parameters: Iterable[Any] = ()) -> Row | None:
    """The first row of a query, or ``None``."""
    cursor = conn.execute(sql, tuple(parameters))
    row = cursor.fetchone()
    if row is None:
        return None
    found = dict(zip([column[0] for column in cursor.description], row, strict=True))
    cursor.close()
    return found


def scalar(conn: Connection, sql: str, parameters: Iterable[Any] = ()) -> Any:
    """The first column of the first row, or ``None``."""
    cursor = conn.execute(sql, tuple(parameters))
    row = cursor.fetchone()
    cursor.close()
    return None if row is None else row[0]


def in_list(count: int) -> str:
    """``(?, ?, …)`` with *count* places."""
    return "(" + ", ".join("?" * count) + ")"


def chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    """Slices of at most *size*: SQLite bounds the number of variables of one statement."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
