"""Rows as plain dicts, keys in table order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hermes_actor.sqlite import Connection

__all__ = [
    "Row", "chunks", "dicts", "first", "is_there", "lenient_text", "placeholders",
    "read_transaction", "scalar", "upsert",
]  # fmt: skip

Row = dict[str, Any]


def dicts(conn: Connection, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
    """Return all rows of a query. The cursor is finished on return: it pins no snapshot."""
    cursor = conn.execute(sql, parameters)
    names = [column[0] for column in cursor.description]
    # Equally long by nature; asking zip to check it would cost as much as the rest.
    return [dict(zip(names, row)) for row in cursor.fetchall()]  # noqa: B905


def first(conn: Connection, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
    """Return the row of a query that gives at most one, or ``None``."""
    cursor = conn.execute(sql, parameters)
    rows = cursor.fetchall()
    if not rows:
        return None
    return dict(zip([c[0] for c in cursor.description], rows[0]))  # noqa: B905


def scalar(conn: Connection, sql: str, parameters: Sequence[Any] = ()) -> Any:
    """Return the value of a query that gives at most one row, or ``None``."""
    rows = conn.execute(sql, parameters).fetchall()
    return rows[0][0] if rows else None


def is_there(conn: Connection, session_id: Any) -> bool:
    """Return True if the session exists."""
    return scalar(conn, "SELECT 1 FROM sessions WHERE id = ?", (session_id,)) is not None


def upsert(
    conn: Connection, table: str, values: Row, key: Sequence[str], kept: Sequence[str] = ()
) -> None:
    """Insert a row, or set all columns but *key* and *kept* of the row that has its key."""
    changed = (f"{name} = excluded.{name}" for name in values if name not in (*key, *kept))
    conn.execute(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES {placeholders(len(values))}"
        f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {', '.join(changed)}",
        list(values.values()),
    )


@contextmanager
def lenient_text(conn: Connection) -> Iterator[None]:
    """Read text that is not UTF-8 with replacement characters, for the block.

    A message may be bytes; what full-text functions cut from it is text all the same. Slower than
    SQLite's own decoding, so it is for pages of rows, not for whole tables.
    """
    conn.text_factory = _decode
    try:
        yield
    finally:
        conn.text_factory = str


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@contextmanager
def read_transaction(conn: Connection) -> Iterator[None]:
    """Have all statements of the block see one state of the file."""
    conn.execute("BEGIN")
    try:
        yield
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")


def placeholders(count: int) -> str:
    """Return ``(?, ?, …)`` with *count* places."""
    return "(" + ", ".join("?" * count) + ")"


def chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    """Yield slices of at most *size*: SQLite limits the number of variables of one statement."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
