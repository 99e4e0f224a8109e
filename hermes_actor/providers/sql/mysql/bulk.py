"""Bulk copy into a store on MySQL or MariaDB: joined inserts, and search indexes afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Table, text
from sqlalchemy import insert as insert_into

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.mysql import search as searching
from hermes_actor.providers.sql.tables import messages

if TYPE_CHECKING:
    from hermes_actor.providers.sql.database import Database

__all__ = ["build_search", "drop_search", "identity", "insert", "keep_last_id", "last_id"]

_INDEX = "hermes_actor_messages_words"
_HAS_INDEX = text(
    "SELECT 1 FROM information_schema.statistics WHERE table_schema = DATABASE()"
    f" AND table_name = 'messages' AND index_name = '{_INDEX}'"
)


def identity(conn: ServerConnection) -> str:
    """Return host, port, data directory and database: one text per store, whatever its address."""
    where = conn.scalar(text("SELECT CONCAT_WS(' ', @@hostname, @@port, @@datadir, DATABASE())"))
    return f"mysql {where}"


def insert(
    conn: ServerConnection, table: Table, columns: Sequence[str], rows: list[list[Any]]
) -> None:
    """Insert rows in bulk: the driver joins them into statements of about a megabyte."""
    values = [dict(zip(columns, row, strict=True)) for row in rows]
    if table is messages:
        table = conn.dialect.messages
        values = [conn.dialect.message_values(one) for one in values]
    conn.execute(insert_into(table), values)


def last_id(conn: ServerConnection) -> int:
    """Return the highest message id ever assigned, as far as the server's cached figure shows."""
    # What the server tells may be from its cache; the newest id is known besides.
    found = conn.scalar(
        text(
            "SELECT auto_increment FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_name = 'messages'"
        )
    )
    return max(0, (found or 1) - 1)


def keep_last_id(conn: ServerConnection, last: int) -> None:
    """Have later messages get ids above *last*. Without any session nothing is done."""
    # A row that comes and goes: ALTER TABLE would commit. The server never gives its number again.
    taken = conn.scalar(text("SELECT 1 FROM messages WHERE id = :last"), {"last": last})
    session = conn.scalar(text("SELECT id FROM sessions LIMIT 1"))
    if taken is None and session is not None and last > last_id(conn):
        conn.execute(
            text(
                "INSERT INTO messages (id, session_id, role, timestamp)"
                " VALUES (:last, :session, '', 0)"
            ),
            {"last": last, "session": session},
        )
        conn.execute(text("DELETE FROM messages WHERE id = :last"), {"last": last})


def drop_search(conn: Connection) -> None:
    """Drop the FULLTEXT index, rebuilding the table; harmless if there is none."""
    # The table is rebuilt: otherwise a hidden column of the index stays, rows that come now get
    # no number in it, and an index that is added later finds none of them.
    if conn.execute(_HAS_INDEX).scalar() is not None:
        conn.execute(text(f"ALTER TABLE messages DROP INDEX {_INDEX}, ALGORITHM=COPY"))


def build_search(database: Database) -> None:
    """Create missing tables and the FULLTEXT index, and update the planner's statistics."""
    with database.dialect.schema_lock(database.engine) as conn:
        database.dialect.create(conn)
        if conn.execute(_HAS_INDEX).scalar() is None:
            conn.execute(text(f"ALTER TABLE messages ADD FULLTEXT INDEX {_INDEX} (words)"))
        assert searching.has_words(conn)
        conn.execute(text("ANALYZE TABLE messages, sessions")).close()
