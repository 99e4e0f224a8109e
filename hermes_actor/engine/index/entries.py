"""Entries of the full-text tables: the text held for one message, and the text to be held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor import limits
from hermes_actor.engine.health import failing_index
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import INDEXED_TEXT

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["Entry", "change", "entries_of", "entry_of", "is_large"]

# As bytes: what other programs have stored as text need not be UTF-8. In parts, joined in Python:
# SQLite keeps a copy of the text for each operator between them until the statement has ended.
_PARTS = [f"CAST({part} AS BLOB)" for part in INDEXED_TEXT.format("").split(" || ")]
_LENGTH = " + ".join(f"LENGTH({part})" for part in _PARTS)


class Entry(NamedTuple):
    """Texts of a row: in the table, and as it should be; ``None`` for no row."""

    id: int
    old: bytes | None
    new: bytes | None


def entry_of(conn: Connection, table: str, message_id: int) -> Entry:
    """Return the entry of one message. Raises :class:`IndexFailed` if the table is damaged."""
    return entries_of(conn, (table,), message_id)[table]


def entries_of(conn: Connection, tables: Iterable[str], message_id: int) -> dict[str, Entry]:
    """Return the entries of one message. Texts that are equal exist once in memory.

    Raises :class:`IndexFailed` if a table is damaged.
    """
    new = _text_of(conn, message_id)
    entries, known = dict[str, Entry](), [new]
    for table in tables:
        with failing_index():
            held = f"SELECT CAST(c0 AS BLOB) FROM {table}_content WHERE id = ?"
            old = scalar(conn, held, (message_id,))
        # Equal texts become one object: a text of many megabytes is in both tables and the message.
        known.append(old)
        entries[table] = Entry(message_id, known[known.index(old)], new)
    return entries


def _text_of(conn: Connection, message_id: int) -> bytes | None:
    sql = f"SELECT {', '.join(_PARTS)} FROM messages WHERE id = ?"
    rows = conn.execute(sql, (message_id,)).fetchall()
    return b"".join(rows.pop()) if rows else None


def is_large(conn: Connection, tables: Sequence[str], message_id: int) -> bool:
    """Return True if indexing a message, or removing its entry, would take too long.

    Raises :class:`IndexFailed` if a table is damaged.
    """
    size = scalar(conn, f"SELECT {_LENGTH} FROM messages WHERE id = ?", (message_id,)) or 0
    with failing_index():
        for table in tables:
            held = f"SELECT LENGTH(CAST(c0 AS BLOB)) FROM {table}_content WHERE id = ?"
            size = max(size, scalar(conn, held, (message_id,)) or 0)
    return bool(size > limits.INDEX_ASIDE_BYTES)


def change(conn: Connection, table: str, entry: Entry) -> None:
    """Change *table* in the ordinary way, inside the open transaction.

    Raises :class:`IndexFailed`.
    """
    if entry.old == entry.new:
        return
    with failing_index():
        if entry.old is not None:
            conn.execute(f"DELETE FROM {table} WHERE rowid = ?", (entry.id,))
        if entry.new is not None:
            conn.execute(
                f"INSERT INTO {table}(rowid, content) VALUES (?, CAST(? AS TEXT))",
                (entry.id, entry.new),
            )
