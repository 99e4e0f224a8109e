"""Notes: messages for which the full-text indexes may hold the wrong text.

Indexing is apart from writing: on the write connection the triggers of the file that maintain the
indexes have no effect (see :mod:`hermes_actor.engine.authorizer`). Temporary triggers, which exist
on this connection only, note what is deleted, changed, or inserted below the watermark, in the same
transaction; slices settle the notes later. A note says no more than that there is something to
compare. So it does not matter how often a message is noted, nor what becomes of it meanwhile.

Searches join messages, so what is indexed of a deleted one is never found; for any other note they
wait. A note with ``aside`` set is of a large text, which
:mod:`hermes_actor.engine.index.large_texts` settles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.engine.index.entries import change, entry_of, is_large
from hermes_actor.store.rows import scalar
from hermes_actor.store.search.coverage import TABLES, is_usable

if TYPE_CHECKING:
    from hermes_actor.engine.environment import Environment
    from hermes_actor.sqlite import Connection

__all__ = ["has_notes", "is_noted", "note", "remove_notes", "settle", "take_notes"]

# IS NOT: each of them may be NULL. The id is among them, because an UPDATE can move a row.
_TEXT_CHANGED = " OR ".join(
    f"old.{column} IS NOT new.{column}" for column in ("id", "content", "tool_name", "tool_calls")
)


def _noting(row: str, condition: str = "1") -> str:
    # Not OR IGNORE: the conflict clause of the statement that fires a trigger replaces its own.
    return (
        f"INSERT INTO hermes_actor_stale SELECT 0, {row}.id WHERE {condition} AND NOT EXISTS"
        f" (SELECT 1 FROM hermes_actor_stale WHERE aside = 0 AND id = {row}.id);"
    )


def take_notes(conn: Connection, prefix: str) -> None:
    """Create the temporary triggers, named with *prefix*, inside the open transaction."""
    below = "new.id <= (SELECT value FROM hermes_actor_meta WHERE key = 'watermark')"
    for event, when, body in (
        ("insert", "", _noting("new", below)),
        ("delete", "", _noting("old")),
        # Both rows: under its old id a message that was moved leaves an entry behind.
        ("update", f"WHEN {_TEXT_CHANGED}", _noting("old") + _noting("new")),
    ):
        conn.execute(
            f"CREATE TEMP TRIGGER IF NOT EXISTS {prefix}_{event}"
            f" AFTER {event} ON main.messages {when} BEGIN {body} END"
        )


def has_notes(conn: Connection, *, aside: bool = False) -> bool:
    """Return True if there is a note: of a large text if *aside*, else of any other."""
    sql = "SELECT 1 FROM hermes_actor_stale WHERE aside = ? LIMIT 1"
    return bool(scalar(conn, sql, (aside,)))


def is_noted(conn: Connection, message_id: int, *, aside: bool) -> bool:
    """Return True if the message has a note of this kind."""
    sql = "SELECT 1 FROM hermes_actor_stale WHERE aside = ? AND id = ?"
    return bool(scalar(conn, sql, (aside, message_id)))


def note(conn: Connection, message_id: int, *, aside: bool) -> None:
    """Note a message, inside the open transaction. Noting it again changes nothing."""
    conn.execute("INSERT OR IGNORE INTO hermes_actor_stale VALUES (?, ?)", (aside, message_id))


def remove_notes(conn: Connection, ids: list[int], *, aside: bool) -> None:
    """Remove the notes of this kind of *ids*, inside the transaction that has settled them."""
    conn.executemany(
        "DELETE FROM hermes_actor_stale WHERE aside = ? AND id = ?", [(aside, n) for n in ids]
    )


def settle(conn: Connection, env: Environment, until: float) -> bool:
    """Settle notes in the open transaction until *until*; returns True if some are left.

    Notes of large texts become notes for later, which do not count here.
    """
    tables = [table for table in TABLES if is_usable(conn, table)]
    first = "SELECT id FROM hermes_actor_stale WHERE aside = 0 ORDER BY id LIMIT ?"
    while ids := [n for (n,) in conn.execute(first, (limits.INDEX_STEP_ROWS,)).fetchall()]:
        done, size = 0, 0
        while done < len(ids) and size < limits.INDEX_STEP_BYTES:
            size += _settle_one(conn, tables, ids[done])
            done += 1
        # In the transaction that settles them: after a crash they are there again.
        remove_notes(conn, ids[:done], aside=False)
        if env.monotonic() >= until:
            return bool(conn.execute(first, (1,)).fetchall())
    return False


def _settle_one(conn: Connection, tables: list[str], message_id: int) -> int:
    """Settle one note; returns how many bytes FTS5 had to read."""
    if is_large(conn, tables, message_id):
        # Only moved to the other kind: the message stays noted, and searches wait for it.
        note(conn, message_id, aside=True)
        return 0
    size = 0
    for table in tables:
        entry = entry_of(conn, table, message_id)
        change(conn, table, entry)
        if entry.old != entry.new:
            size += len(entry.old or b"") + len(entry.new or b"")
    return size // len(tables)
