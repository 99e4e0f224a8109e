"""Message rows: append, replace, clear, and read."""

from __future__ import annotations

from functools import cache
from operator import attrgetter
from typing import Any

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.columns import MESSAGES
from hermes_actor.store.message_codec import decode_row
from hermes_actor.store.registry import answers, applies
from hermes_actor.store.rows import Row, dicts, first, scalar
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.sessions.sessions import get_session
from hermes_protocol.operations import MessageAppend, MessageRow, MessagesClear, MessagesReplace
from hermes_protocol.values import from_value

__all__ = ["export_session", "get_messages", "insert_all", "message_count"]

_COLUMNS = tuple(column.name for column in MESSAGES if column.name not in ("id", "session_id"))
_CONTENT = _COLUMNS.index("content")
_fields = attrgetter(*_COLUMNS)


@cache
def _insert_sql(active: bool) -> str:
    # Some newer files have the column without its default, so it is named when it is there.
    columns = ("session_id", *_COLUMNS) + (("active",) if active else ())
    places = ", ".join("?" * (1 + len(_COLUMNS))) + (", 1" if active else "")
    return f"INSERT INTO messages ({', '.join(columns)}) VALUES ({places})"


def _values(session_id: Any, row: MessageRow) -> list[Any]:
    values = [session_id, *_fields(row)]
    values[_CONTENT + 1] = from_value(row.content)
    return values


@applies(MessageAppend)
def append(conn: Connection, op: MessageAppend) -> int:
    """Insert a message, increment the counters of its session, and return the message id.

    A session that does not exist violates the foreign key.
    """
    done = conn.execute(_insert_sql(features_of(conn).active), _values(op.session_id, op.message))
    assert done.lastrowid is not None
    conn.execute(
        "UPDATE sessions SET message_count = message_count + 1,"
        " tool_call_count = tool_call_count + ? WHERE id = ?",
        (op.message.calls, op.session_id),
    )
    return done.lastrowid


@applies(MessagesReplace)
def replace(conn: Connection, op: MessagesReplace) -> None:
    """Replace the transcript of a session and set its counters.

    Messages that were taken back or summarised away are no part of it, and stay.
    """
    _remove(conn, op.session_id)
    insert_all(conn, op.session_id, op.messages)


def insert_all(conn: Connection, session_id: Any, rows: list[MessageRow]) -> None:
    """Insert the messages of a session that has none, and set its counters."""
    sql = _insert_sql(features_of(conn).active)
    conn.executemany(sql, [_values(session_id, row) for row in rows])
    _set_counters(conn, session_id, len(rows), sum(row.calls for row in rows))


@applies(MessagesClear)
def clear(conn: Connection, op: MessagesClear) -> None:
    """Remove the transcript of a session and zero its counters; hidden messages stay."""
    _remove(conn, op.session_id)
    _set_counters(conn, op.session_id, 0, 0)


def _remove(conn: Connection, session_id: Any) -> None:
    # Rows that were taken back or summarised away stay: only another program can bring them back.
    only = " AND active = 1" if features_of(conn).active else ""
    conn.execute(f"DELETE FROM messages WHERE session_id = ?{only}", (session_id,))


def _set_counters(conn: Connection, session_id: Any, messages: int, calls: int) -> None:
    conn.execute(
        "UPDATE sessions SET message_count = ?, tool_call_count = ? WHERE id = ?",
        (messages, calls, session_id),
    )


@answers(queries.get_messages)
def get_messages(conn: Connection, session_id: str) -> list[Row]:
    """Return every visible message of a session in the order of insertion, content decoded."""
    rows = dicts(conn, "SELECT * FROM messages WHERE session_id = ? ORDER BY id", (session_id,))
    if rows and "active" in rows[0]:
        rows = [row for row in rows if row["active"] == 1]
    return [decode_row(row) for row in rows]


@answers(queries.message_slice)
def message_slice(
    conn: Connection, session_id: str, after: int | None, before: int | None, limit: int
) -> list[Row]:
    """Return at most *limit* visible messages of a session in order: after an id, or before one.

    Without *after* and with *before* they are the last ones below it.
    """
    bounds = [(f"+id {sign} ?", key) for sign, key in ((">", after), ("<", before))]
    given = [(condition, key) for condition, key in bounds if key is not None]
    where = "".join(f" AND {condition}" for condition, _ in given)
    last = after is None and before is not None
    # The sign keeps SQLite from walking all ids; the ids of one session stand in an index, so
    # only the rows that are returned are read.
    inner = (
        f"SELECT id FROM messages WHERE session_id = ?{where}"
        f" ORDER BY +id {'DESC' if last else 'ASC'} LIMIT ?"
    )
    visible = features_of(conn).visible
    rows = dicts(
        conn,
        f"SELECT m.* FROM messages m WHERE m.id IN ({inner}) AND {visible} ORDER BY m.id",
        (session_id, *(key for _, key in given), limit),
    )
    return [decode_row(row) for row in rows]


@answers(queries.message)
def message(conn: Connection, session_id: str, message_id: int) -> Row | None:
    """Return one message of a session, content decoded; ``None`` if it has no such message."""
    sql = "SELECT * FROM messages WHERE id = ? AND session_id = ?"
    row = first(conn, sql, (message_id, session_id))
    return row and decode_row(row)


@answers(queries.export_session)
def export_session(conn: Connection, session_id: str) -> Row | None:
    """Return a session with its ``messages``; ``None`` if it does not exist."""
    row = get_session(conn, session_id)
    return row and {**row, "messages": get_messages(conn, session_id)}


@answers(queries.message_count)
def message_count(conn: Connection, session_id: str | None) -> int:
    """Count the messages of a session, hidden ones too; all messages without *session_id*."""
    if session_id:
        return int(
            scalar(conn, "SELECT COUNT(*) FROM messages WHERE session_id = ?", (session_id,))
        )
    return int(scalar(conn, "SELECT COUNT(*) FROM messages"))
