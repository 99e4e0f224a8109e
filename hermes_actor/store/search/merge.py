"""Merge of the full-text indexes into fewer segments, step by step."""

from __future__ import annotations

from hermes_actor.errors import BadValue
from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.registry import answers, applies
from hermes_actor.store.rows import scalar
from hermes_protocol.operations import IndexMerge

__all__ = ["fulltext_tables"]

_NAMES = ("messages_fts", "messages_fts_trigram")


@answers(queries.fulltext_tables)
def fulltext_tables(conn: Connection) -> list[str]:
    """Return the names of the full-text tables that exist in the file."""
    sql = "SELECT 1 FROM sqlite_master WHERE name = ? AND type = 'table'"
    return [name for name in _NAMES if scalar(conn, sql, (name,))]


@applies(IndexMerge)
def merge(conn: Connection, op: IndexMerge) -> bool:
    """Run one step of a merge; return True if there is more to do.

    Raises :class:`BadValue` if the file has no such index.
    """
    if op.table not in fulltext_tables(conn):
        raise BadValue(f"{op.table!r} is no full-text index of this file")
    # A negative number gives all segments to one merge; positive ones carry it on. FTS5 tells that
    # there was nothing to do by changing fewer than two rows.
    before = conn.total_changes
    pages = -op.pages if op.begin else op.pages
    conn.execute(f"INSERT INTO {op.table}({op.table}, rank) VALUES ('merge', ?)", (pages,))
    return conn.total_changes - before >= 2
