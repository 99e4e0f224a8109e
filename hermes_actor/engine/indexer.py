"""Full-text indexing apart from the write.

The insert triggers of version 11 index every message twice inside the write and are nine tenths
of its cost. They stay in the file for other programs; on our connection the authorizer lets their
inserts pass without effect, and rows are indexed in bulk later. The *watermark* is the highest
message id that both indexes cover.

Rules. (1) Only the inserts of the two insert triggers are deferred; updates and deletes run.
(2) Only in files whose tables and triggers have exactly the known shape. (3) Rows that are
already indexed, by another program or by an update, are skipped by an anti-join on the document
sizes, never by OR IGNORE. (4) A file met for the first time starts at its newest message if both
indexes end there, else at 0. (5) A watermark beyond the newest id ever given is derived again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.fulltext import is_usable
from hermes_actor.engine.own_tables import get_own, set_own
from hermes_actor.store.layout import layout_of
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import INDEXED_TEXT

if TYPE_CHECKING:
    from hermes_actor.engine.seams import Seams
    from hermes_actor.sqlite import Connection

__all__ = ["advance", "derive_watermark", "fill", "newest_id"]

_TABLES = ("messages_fts", "messages_fts_trigram")


def newest_id(conn: Connection) -> int:
    return scalar(conn, "SELECT MAX(id) FROM messages") or 0


def derive_watermark(conn: Connection) -> int:
    """Settle the watermark inside an open transaction and return it."""
    newest = newest_id(conn)
    if not layout_of(conn).deferrable:
        watermark = newest
    else:
        stored = get_own(conn, "watermark")
        ever = scalar(conn, "SELECT seq FROM sqlite_sequence WHERE name = 'messages'") or 0
        if stored is not None and 0 <= stored <= max(newest, ever):
            return stored
        watermark = newest if all(_last(conn, table) >= newest for table in _TABLES) else 0
    set_own(conn, "watermark", watermark)
    return watermark


def _last(conn: Connection, table: str) -> int:
    return scalar(conn, f"SELECT MAX(id) FROM {table}_docsize") or 0


def advance(conn: Connection, watermark: int, seams: Seams, until: float) -> int:
    """Index rows above *watermark* inside an open transaction, until a time; the new watermark."""
    while True:
        upper = scalar(
            conn,
            "SELECT MAX(id) FROM (SELECT id FROM messages WHERE id > ? ORDER BY id LIMIT ?)",
            (watermark, limits.INDEX_STEP_ROWS),
        )
        if upper is None:
            break
        for table in _TABLES:
            _index(conn, table, watermark, upper)
        watermark = upper
        if seams.monotonic() >= until:
            break
    set_own(conn, "watermark", watermark)
    return watermark


def fill(conn: Connection) -> None:
    """Index everything that is not, in one go, inside the open transaction of a migration."""
    newest = newest_id(conn)
    for table in _TABLES:
        if is_usable(conn, table):
            _index(conn, table, 0, newest)


def _index(conn: Connection, table: str, above: int, through: int) -> None:
    conn.execute(
        f"INSERT INTO {table}(rowid, content)"
        f" SELECT m.id, {INDEXED_TEXT.format('m.')} FROM messages m"
        f" WHERE m.id > ? AND m.id <= ?"
        f" AND NOT EXISTS (SELECT 1 FROM {table}_docsize d WHERE d.id = m.id) ORDER BY m.id",
        (above, through),
    )
