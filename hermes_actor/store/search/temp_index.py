"""Temporary full-text table for messages that no index holds, when no owner can index them.

It is the reader's own, temporary, with the tokenizer of the table that it completes, and lives for
one search. Its size is bounded by the time that the search has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_actor import limits
from hermes_actor.errors import IndexBehind
from hermes_actor.sqlite import Connection
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema import INDEXED_TEXT
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.search.coverage import last_of_next

__all__ = ["unindexed"]

_REST = "hermes_actor_rest"


@contextmanager
def unindexed(conn: Connection, table: str, until: float) -> Iterator[str]:
    """Give the name of a temporary table with all rows that *table* lacks, for the block.

    Also those for which it is noted that *table* may hold the wrong text. Needs a snapshot. Raises
    :class:`IndexBehind` if it is not complete at *until*, a time of ``time.monotonic``.
    """
    tokenize = ", tokenize='trigram'" if table == "messages_fts_trigram" else ""
    conn.execute(f"CREATE VIRTUAL TABLE temp.{_REST} USING fts5(content{tokenize})")
    try:
        _fill(conn, table, until)
        yield _REST
    finally:
        conn.execute(f"DROP TABLE temp.{_REST}")


def _fill(conn: Connection, table: str, until: float) -> None:
    newest: int = scalar(conn, "SELECT MAX(id) FROM messages") or 0
    # Holes below the watermark are there too, if a foreign program has recreated the table.
    above = (scalar(conn, "SELECT MIN(id) FROM messages") or 1) - 1
    noted = (
        " OR m.id IN (SELECT id FROM main.hermes_actor_stale)" if features_of(conn).stale else ""
    )
    while (through := last_of_next(conn, above, limits.FILL_STEP_ROWS)) is not None:
        if time.monotonic() > until:
            raise IndexBehind(
                f"no actor indexes this store now, and {newest - above} messages could not be"
                " searched in time; search again, or allow a longer timeout",
                done=above,
                total=newest,
            )
        conn.execute(
            f"INSERT INTO temp.{_REST}(rowid, content)"
            f" SELECT m.id, {INDEXED_TEXT.format('m.')} FROM messages m"
            f" WHERE m.id > ? AND m.id <= ?"
            f" AND (NOT EXISTS (SELECT 1 FROM main.{table}_docsize d WHERE d.id = m.id){noted})",
            (above, through),
        )
        above = through
