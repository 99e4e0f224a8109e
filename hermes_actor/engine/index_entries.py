"""What a full-text table holds for one message, and what it should hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hermes_actor import limits
from hermes_actor.engine.health import failing_index
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import INDEXED_TEXT

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["Entry", "change", "entry_of", "is_large"]

# As bytes: what other programs have stored as text need not be UTF-8.
_BYTES = f"CAST({INDEXED_TEXT.format('')} AS BLOB)"


class Entry(NamedTuple):
    """Texts of a row: in the table, and as it should be; ``None`` for no row."""

    id: int
    old: bytes | None
    new: bytes | None


def entry_of(conn: Connection, table: str, message_id: int) -> Entry:
    """Raises :class:`IndexFailed` if the table is damaged."""
    new = scalar(conn, f"SELECT {_BYTES} FROM messages WHERE id = ?", (message_id,))
    with failing_index():
        held = f"SELECT CAST(c0 AS BLOB) FROM {table}_content WHERE id = ?"
        return Entry(message_id, scalar(conn, held, (message_id,)), new)


def is_large(conn: Connection, tables: Sequence[str], message_id: int) -> bool:
    """Whether indexing a message, or removing what is indexed of it, would take too long.

    Raises :class:`IndexFailed` if a table is damaged.
    """
    size = scalar(conn, f"SELECT LENGTH({_BYTES}) FROM messages WHERE id = ?", (message_id,)) or 0
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
