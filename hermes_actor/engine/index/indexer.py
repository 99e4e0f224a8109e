"""Full-text indexing apart from the write.

The triggers of version 11 index every message twice inside the write and are nine tenths of its
cost. They stay in the file for other programs; on the write connection they have no effect, and
rows are indexed in bulk later. The *watermark* is the highest message id that both indexes cover.

Rules. (1) What is changed or deleted is noted in the same transaction, and so is a large text that
the watermark passes: see :mod:`hermes_actor.engine.index.notes`. (2) Only in files whose tables and
triggers have exactly the known shape. (3) Rows that are already indexed, by another program or by
an update, are skipped by an anti-join on the document sizes, never by OR IGNORE. (4) A file that is
opened for the first time starts at its newest message if both indexes end there, else at 0; gaps
below are searched in idle slices. (5) A watermark beyond the newest id ever given is derived again;
one whose messages the indexes lack begins again at 0. (6) New messages have ids above the
watermark: the sequence of ids never lies below the newest message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.health import IndexFailed, may_be_the_index
from hermes_actor.engine.meta_table import get_internal, set_internal
from hermes_actor.sqlite import sqlite3
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import INDEXED_TEXT
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.search.coverage import TABLES, covers, is_usable, last_of_next

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.sqlite import Connection

__all__ = [
    "index_until",
    "check_watermark",
    "index_all",
    "forget_index",
    "index_gaps",
    "mark_gaps_unchecked",
    "keep_ids_rising",
    "newest_id",
    "note_schema",
    "settle_watermark",
    "TEXT_BYTES",
]

_log = logging.getLogger("hermes_actor.engine")


# In bytes: LENGTH of a text counts characters, and only up to the first NUL.
TEXT_BYTES = (
    "COALESCE(LENGTH(CAST(m.content AS BLOB)), 0) + COALESCE(LENGTH(CAST(m.tool_calls AS BLOB)), 0)"
)


def newest_id(conn: Connection) -> int:
    """Return the highest id of a message, 0 if there is none."""
    return scalar(conn, "SELECT MAX(id) FROM messages") or 0


def keep_ids_rising(conn: Connection) -> None:
    """Raise the sequence of ids to the newest message, inside the open transaction.

    SQLite does so by itself, unless the sequence was taken back by hand, or a message was moved to
    another id. Then, once the newest messages are deleted, an append would get an id below the
    watermark, where rows are neither noted nor visited again. The present messages keep their ids.
    """
    newest = newest_id(conn)
    if newest <= _highest_ever(conn):
        return
    done = conn.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'messages'", (newest,))
    if not done.rowcount:
        conn.execute("INSERT INTO sqlite_sequence VALUES ('messages', ?)", (newest,))


def settle_watermark(conn: Connection) -> int:
    """Return the watermark, derived again inside the open transaction if it cannot be true.

    It cannot if it lies above every id that was ever given, as in a file that came from elsewhere:
    the next messages would get ids below it.
    """
    newest = newest_id(conn)
    stored = get_internal(conn, "watermark")
    # The highest id ever given, not only the newest one: once the last messages are deleted, a true
    # watermark lies above all that are left.
    if stored is not None and stored <= max(newest, _highest_ever(conn)):
        return stored
    nothing = forget_index(conn)
    # Rule 4: indexes that end where the messages end were kept by the triggers of the file.
    if not all(_last(conn, table) >= newest for table in _usable(conn)):
        return nothing
    set_internal(conn, "watermark", newest)
    return newest


def check_watermark(conn: Connection) -> int:
    """Return the watermark, after a check of what other programs may have done to the indexes.

    An index that was emptied or replaced is recognised, and every message counts as unindexed.
    """
    watermark = settle_watermark(conn)
    if not covers(conn, watermark):
        _log.warning("the full-text indexes lack messages that they held; indexing them again")
        watermark = forget_index(conn)
    return watermark


def note_schema(conn: Connection) -> bool:
    """Store the present schema cookie, in the open transaction; True if it was another one."""
    (cookie,) = conn.execute("PRAGMA schema_version").fetchone()
    if get_internal(conn, "schema") == cookie:
        return False
    set_internal(conn, "schema", cookie)
    return True


def forget_index(conn: Connection) -> int:
    """Set the watermark, inside an open transaction, so that every message counts as unindexed."""
    nothing = mark_gaps_unchecked(conn)
    set_internal(conn, "watermark", nothing)
    return nothing


def mark_gaps_unchecked(conn: Connection) -> int:
    """Have all messages searched for gaps in idle time; returns the id above which that begins."""
    lowest = scalar(conn, "SELECT MIN(id) FROM messages")
    # Other programs may give ids below 1.
    nothing: int = min(0, 0 if lowest is None else lowest - 1)
    set_internal(conn, "holes_checked", nothing)
    return nothing


def _highest_ever(conn: Connection) -> int:
    known = scalar(conn, "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'")
    if not known:
        return 0
    return scalar(conn, "SELECT seq FROM sqlite_sequence WHERE name = 'messages'") or 0


def _usable(conn: Connection) -> list[str]:
    return [table for table in TABLES if is_usable(conn, table)]


def _last(conn: Connection, table: str) -> int:
    return scalar(conn, f"SELECT MAX(id) FROM {table}_docsize") or 0


def index_until(conn: Connection, watermark: int, env: Environment, until: float) -> int:
    """Index rows above *watermark* in the open transaction until *until*; the new watermark."""
    tables = _usable(conn)
    # One step at least, however short the time: every slice gets on.
    while (upper := _index_next(conn, tables, watermark)) is not None:
        watermark = upper
        if env.monotonic() >= until:
            break
    # In the transaction of the entries: the watermark can never be ahead of the indexes.
    set_internal(conn, "watermark", watermark)
    return watermark


def _index_next(conn: Connection, tables: Sequence[str], above: int) -> int | None:
    """Index the rows of one step; returns the last id, ``None`` if there are none."""
    upper = _step(conn, above)
    if upper is not None:
        _index(conn, tables, above, upper)
    return upper


def _step(conn: Connection, watermark: int) -> int | None:
    """Return the last id of the next step: a few rows, fewer if they are large, at least one."""
    upper, size = None, 0
    for message_id, length in conn.execute(
        f"SELECT id, {TEXT_BYTES} FROM messages m WHERE id > ? ORDER BY id LIMIT ?",
        (watermark, limits.INDEX_STEP_ROWS),
    ):
        # A large text is only noted here, which takes no time.
        size += length if length <= limits.INDEX_ASIDE_BYTES else 0
        if upper is not None and size > limits.INDEX_STEP_BYTES:
            break
        upper = message_id
    return upper


def index_all(conn: Connection, progress: Callable[[float], None]) -> None:
    """Index every message that is not, inside the open transaction of a migration."""
    tables, rows = _usable(conn), scalar(conn, "SELECT COUNT(*) FROM messages") or 1
    above, done = (scalar(conn, "SELECT MIN(id) FROM messages") or 1) - 1, 0
    while (through := last_of_next(conn, above, limits.FILL_STEP_ROWS)) is not None:
        _index(conn, tables, above, through)
        above, done = through, done + limits.FILL_STEP_ROWS
        progress(min(1.0, done / rows))


def index_gaps(conn: Connection, above: int, watermark: int, env: Environment, until: float) -> int:
    """Index what is missing below the watermark until *until*; returns the last id searched.

    A program that has emptied the tables in part, or recreated them, leaves such gaps.
    """
    tables = _usable(conn)
    while above < watermark:
        through = min(last_of_next(conn, above, limits.HOLES_STEP_ROWS) or watermark, watermark)
        gap = _first_gap(conn, tables, above, through)
        # From the gap on by the bounded step of any slice: thousands of rows may be missing.
        above = through if gap is None else _index_next(conn, tables, gap - 1) or through
        if env.monotonic() >= until:
            break
    return above


def _first_gap(conn: Connection, tables: Sequence[str], above: int, through: int) -> int | None:
    lacking = " OR ".join(
        f"NOT EXISTS (SELECT 1 FROM {table}_docsize d WHERE d.id = m.id)" for table in tables
    )
    gap: int | None = scalar(
        conn,
        f"SELECT MIN(m.id) FROM messages m WHERE m.id > ? AND m.id <= ? AND ({lacking or 0})",
        (above, through),
    )
    return gap


def _index(conn: Connection, tables: Sequence[str], above: int, through: int) -> None:
    """Index the rows in a range that are not, and note the large ones among them.

    A table of another shape may hold anything; what is large is indexed at once there. Raises
    :class:`IndexFailed`.
    """
    # In files of another shape nothing settles notes of large texts, so none are made there.
    most = limits.INDEX_ASIDE_BYTES if features_of(conn).deferrable else 1 << 62
    text, rows = INDEXED_TEXT.format("m."), "FROM messages m WHERE m.id > ? AND m.id <= ?"
    for table in tables:
        # Rule 3. By id: FTS5 writes out a segment whenever an id goes back.
        missing = (
            f"{rows} AND ({TEXT_BYTES}) {{}} ?"
            f" AND NOT EXISTS (SELECT 1 FROM {table}_docsize d WHERE d.id = m.id) ORDER BY m.id"
        )
        try:
            conn.execute(
                f"INSERT INTO {table}(rowid, content) SELECT m.id, {text} {missing.format('<=')}",
                (above, through, most),
            )
            conn.execute(
                # OR IGNORE: one note serves both tables, and both may ask for it.
                f"INSERT OR IGNORE INTO hermes_actor_stale SELECT 1, m.id {missing.format('>')}",
                (above, through, most),
            )
        except sqlite3.Error as error:
            if not may_be_the_index(error):
                raise
            # If the messages themselves cannot be read, a rebuilt index would fail as well.
            conn.execute(f"SELECT TOTAL(LENGTH({text})) {rows}", (above, through)).fetchall()
            raise IndexFailed(error) from error
