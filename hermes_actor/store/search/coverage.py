"""Coverage and health of the full-text indexes, as any connection sees them.

The watermark says up to which message both indexes are complete. It is true only while no other
program empties, drops or replaces the tables; a look at a few rows shows whether one has.
"""

from __future__ import annotations

from hermes_actor.sqlite import Connection, primary_code, sqlite3
from hermes_actor.store.rows import placeholders, scalar
from hermes_actor.store.schema import FTS_SQL, FTS_TRIGRAM_SQL, statements
from hermes_actor.store.schema_features import features_of

__all__ = [
    "TABLES", "can_serve", "check_usable", "covers", "is_usable", "last_of_next", "read_indexes",
    "works",
]  # fmt: skip

TABLES = {"messages_fts": FTS_SQL, "messages_fts_trigram": FTS_TRIGRAM_SQL}

_PROBES = 16
_PROBE = "hermes_actor_probe"


def is_usable(conn: Connection, table: str) -> bool:
    """Return True if *table* exists and the linked SQLite can serve it."""
    return works(conn, f"SELECT rowid FROM {table} LIMIT 0")


def check_usable(conn: Connection) -> None:
    """Raise what FTS5 raises for a damaged index, if a table is there and cannot be opened.

    SQLite says ERROR then, as it does about a question that it cannot parse.
    """
    for table in TABLES:
        if not is_usable(conn, table) and can_serve(conn, table):
            error = sqlite3.DatabaseError(f"database disk image is malformed ({table})")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_VTAB
            error.sqlite_errorname = "SQLITE_CORRUPT_VTAB"
            raise error


def can_serve(conn: Connection, table: str) -> bool:
    """Return True if the linked SQLite has the module and the tokenizer of *table*."""
    create = statements(TABLES[table])[0].replace(f"EXISTS {table} ", f"EXISTS temp.{_PROBE} ")
    return works(conn, create) and works(conn, f"DROP TABLE temp.{_PROBE}")


def works(conn: Connection, sql: str) -> bool:
    """Return True if a statement about a full-text table runs. Raises errors of other causes."""
    try:
        conn.execute(sql).fetchall()
    except sqlite3.DatabaseError as error:
        # Damage shows as CORRUPT or ERROR; a missing module or tokenizer as ERROR.
        if primary_code(error) not in (0, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT):
            raise
        return False
    return True


def read_indexes(conn: Connection) -> None:
    """Read everything that the indexes store; raises the error of SQLite if it cannot be read."""
    for table in TABLES:
        for shadow in ("data", "idx", "content", "docsize", "config"):
            name = f"{table}_{shadow}"
            if scalar(conn, "SELECT 1 FROM sqlite_master WHERE name = ?", (name,)):
                columns = [row[1] for row in conn.execute(f"PRAGMA table_info({name})")]
                conn.execute(f"SELECT TOTAL(LENGTH({columns[-1]})) FROM {name}").fetchall()


def covers(conn: Connection, watermark: int) -> bool:
    """Return True if both indexes hold samples of the messages up to *watermark*.

    The first, the last, and others evenly between these two are looked up, so a gap of a sixteenth
    of all ids does not pass. Costs the same however many messages there are. Messages with a note
    do not count: the indexes may lack them. Tables of another shape may leave out anything.
    """
    if not features_of(conn).deferrable:
        return True
    probes = _spread(conn, watermark)
    held = f"WHERE id IN {placeholders(len(probes))}"
    if features_of(conn).stale:
        sql = f"SELECT id FROM hermes_actor_stale {held} AND aside IN (0, 1)"
        noted = conn.execute(sql, probes).fetchall()
        probes = [probe for probe in probes if (probe,) not in noted]
        held = f"WHERE id IN {placeholders(len(probes))}"
    return all(
        scalar(conn, f"SELECT COUNT(*) FROM {table}_docsize {held}", probes) == len(probes)
        for table in TABLES
    )


def _spread(conn: Connection, watermark: int) -> list[int]:
    """Return ids of existing messages up to *watermark*, evenly spread; empty if there is none."""
    last = scalar(conn, "SELECT MAX(id) FROM messages WHERE id <= ?", (watermark,))
    if last is None:
        return []
    first = scalar(conn, "SELECT MIN(id) FROM messages")
    probes = {last}
    for n in range(_PROBES):
        at_least = first + (last - first) * n // _PROBES
        probes.add(scalar(conn, "SELECT MIN(id) FROM messages WHERE id >= ?", (at_least,)))
    return sorted(probes)


def last_of_next(conn: Connection, above: int, rows: int) -> int | None:
    """Return the last id of the next *rows* messages above an id; ``None`` if there is none."""
    # By rows, because ids may lie far apart.
    step = "SELECT MAX(id) FROM (SELECT id FROM messages WHERE id > ? ORDER BY id LIMIT ?)"
    last: int | None = scalar(conn, step, (above, rows))
    return last
