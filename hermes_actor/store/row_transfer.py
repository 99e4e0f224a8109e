"""Rows of another store, written unchanged: a file as the target of a migration.

What is written here bypasses everything that other operations keep in order (counters, titles of
a lineage, times), because the store that the rows come from has kept it. Names of tables and
columns come from outside, so they are looked up and never trusted.
"""

from __future__ import annotations

from typing import Any

from hermes_actor.errors import BadValue, ConstraintFailed
from hermes_actor.sqlite import Connection
from hermes_actor.store.registry import applies
from hermes_actor.store.rows import placeholders, scalar, upsert
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.sessions.deletion import remove
from hermes_actor.store.sessions.telegram_topics import migrate as make_topics
from hermes_protocol.operations import RowsCopy, TopicsMigrate
from hermes_protocol.values import from_value

__all__ = ["BOOKMARK", "COPIED_TABLES", "TOPIC_TABLES", "check_resume_token", "resume_token_of"]

TOPIC_TABLES = ("telegram_dm_topic_mode", "telegram_dm_topic_bindings")
COPIED_TABLES = (
    "sessions", "messages", "state_meta", *TOPIC_TABLES,
    "hermes_actor_archived", "hermes_actor_titles",
)  # fmt: skip

BOOKMARK = "migration_"
"""Keys of ``hermes_actor_meta`` that hold how far a migration has come begin with it."""


def resume_token_of(conn: Connection) -> dict[str, str]:
    """Return how far the last migration into this file has come; empty if there was none."""
    found = conn.execute(
        "SELECT key, value FROM hermes_actor_meta WHERE key GLOB ?", (f"{BOOKMARK}*",)
    ).fetchall()
    return {key.removeprefix(BOOKMARK): value for key, value in found}


def check_resume_token(op: RowsCopy, kept: dict[str, str]) -> None:
    """Refuse a part that does not follow the one before it.

    Raises :class:`ConstraintFailed` unless *kept*, the bookmark in the target, is as the part
    expects.
    """
    for key, value in op.expect.items():
        if kept.get(key, "") != value:
            raise ConstraintFailed(
                "another migration into this store has begun, or the part before this one failed"
            )


@applies(RowsCopy)
def copy_rows(conn: Connection, op: RowsCopy) -> int:
    """Write one part of a migration with its bookmark; return the number of rows.

    Raises :class:`BadValue` for a table or column that is not copied, and :class:`ConstraintFailed`
    if the part does not follow the one before it.
    """
    if op.table not in COPIED_TABLES:
        raise BadValue(f"no table named {op.table!r} is ever copied")
    check_resume_token(op, resume_token_of(conn))
    if op.table in TOPIC_TABLES:
        make_topics(conn, TopicsMigrate())
    _make_room(conn, op)
    known = {row[1] for row in conn.execute(f"PRAGMA table_info({op.table})")}
    unknown = [name for name in op.columns if name not in known | {"rowid"}]
    if unknown:
        raise BadValue(f"{op.table} has no column {unknown[0]!r}")
    rows = [[from_value(value) for value in row] for row in op.rows]
    if op.update:
        _update(conn, op, rows)
    elif rows:
        names = ", ".join(op.columns)
        sql = f"INSERT INTO {op.table} ({names}) VALUES {placeholders(len(op.columns))}"
        conn.executemany(sql, rows)
    if op.table == "messages":
        _note_below_the_watermark(conn, op, rows)
        _keep_last_id(conn, op.last_id)
    for key, value in op.bookmark.items():
        upsert(conn, "hermes_actor_meta", {"key": BOOKMARK + key, "value": value}, ("key",))
    return len(rows)


def _make_room(conn: Connection, op: RowsCopy) -> None:
    if op.clear:
        conn.execute(f"DELETE FROM {op.table}")
    for session_id in op.remove:
        if op.table == "sessions":
            remove(conn, session_id)
        else:
            conn.execute("DELETE FROM messages WHERE session_id = ?", (session_id,))


def _update(conn: Connection, op: RowsCopy, rows: list[list[Any]]) -> None:
    key, *others = op.columns
    sets = ", ".join(f"{name} = ?" for name in others)
    conn.executemany(
        f"UPDATE {op.table} SET {sets} WHERE {key} = ?", [[*row[1:], row[0]] for row in rows]
    )


def _note_below_the_watermark(conn: Connection, op: RowsCopy, rows: list[list[Any]]) -> None:
    """Note copied messages below the watermark, which the indexer would never visit again."""
    features = features_of(conn)
    if not (rows and features.deferrable and features.stale and "id" in op.columns):
        return
    watermark = scalar(conn, "SELECT value FROM hermes_actor_meta WHERE key = 'watermark'") or 0
    place = op.columns.index("id")
    conn.executemany(
        "INSERT OR IGNORE INTO hermes_actor_stale VALUES (0, ?)",
        [(row[place],) for row in rows if row[place] <= watermark],
    )


def _keep_last_id(conn: Connection, last_id: int) -> None:
    """Have the next message get an id that no message ever had, in either store."""
    if last_id:
        done = conn.execute(
            "UPDATE sqlite_sequence SET seq = MAX(seq, ?) WHERE name = 'messages'", (last_id,)
        )
        if not done.rowcount:
            conn.execute("INSERT INTO sqlite_sequence VALUES ('messages', ?)", (last_id,))
