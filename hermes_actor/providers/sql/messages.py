"""Message rows on a server: append, replace, clear, and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from hermes_actor.errors import ConstraintFailed, missing_session
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers, applies
from hermes_actor.providers.sql.sessions.session_row import BY_ID, OF_SESSION, set_columns
from hermes_actor.providers.sql.sessions.sessions import get_session
from hermes_actor.providers.sql.tables import MESSAGE_COLUMNS, messages, sessions
from hermes_actor.store import queries
from hermes_actor.store.columns import MESSAGES
from hermes_actor.store.message_codec import decode_row
from hermes_actor.store.rows import Row
from hermes_protocol.operations import MessageAppend, MessageRow, MessagesClear, MessagesReplace
from hermes_protocol.values import from_value

if TYPE_CHECKING:
    from hermes_actor.providers.sql.dialect import ServerDialect

__all__ = ["COUNTED", "insert_all", "message_values"]

_FIELDS = tuple(column.name for column in MESSAGES if column.name not in ("id", "session_id"))


def message_values(dialect: ServerDialect, session_id: Any, row: MessageRow) -> dict[str, Any]:
    """Return the columns of a message to insert.

    Raises :class:`ConstraintFailed` without a role.
    """
    values = {name: getattr(row, name) for name in _FIELDS}
    values["content"] = from_value(row.content)
    values["session_id"] = session_id
    if row.role is None:
        raise ConstraintFailed("NOT NULL constraint failed: messages.role")
    return dialect.message_values(values)


COUNTED = (
    update(sessions)
    .where(BY_ID)
    .values(
        message_count=sessions.c.message_count + 1,
        tool_call_count=sessions.c.tool_call_count + bindparam("calls"),
    )
)
"""Count one more message of the session *key*, with *calls* of tools."""


@applies(MessageAppend)
def append(conn: ServerConnection, op: MessageAppend) -> int:
    """Insert a message, increment the counters of its session, and return the message id.

    The ids of one session rise in commit order. Raises :class:`ConstraintFailed` if the session
    does not exist or there is no role.
    """
    values = message_values(conn.dialect, op.session_id, op.message)
    # The session first: the transaction that holds its row draws the next id, so the ids of one
    # session rise in the order of its commits.
    done = conn.execute(COUNTED, {"key": op.session_id, "calls": op.message.calls})
    if not done.rowcount:
        raise missing_session(op.session_id)
    inserted = conn.execute(insert(conn.dialect.messages), values)
    assert inserted.inserted_primary_key is not None
    return int(inserted.inserted_primary_key[0])


@applies(MessagesReplace)
def replace(conn: ServerConnection, op: MessagesReplace) -> None:
    """Replace the messages of a session and set its counters.

    Raises :class:`ConstraintFailed` if there are messages but no such session.
    """
    insert_all(conn, op.session_id, op.messages, replace=True)


def insert_all(
    conn: ServerConnection, session_id: Any, rows: list[MessageRow], *, replace: bool = False
) -> None:
    """Insert the messages of a session that has none, or *replace* them, and set its counters.

    Raises :class:`ConstraintFailed` if there are messages but no such session.
    """
    values = [message_values(conn.dialect, session_id, row) for row in rows]
    # The session first, as for an appended message: its row is locked from here on.
    there = _set_counters(conn, session_id, len(rows), sum(row.calls for row in rows))
    if rows and not there:
        raise missing_session(session_id)
    if replace:
        conn.execute(delete(messages).where(OF_SESSION), {"session": session_id})
    if rows:
        conn.execute(insert(conn.dialect.messages), values)


@applies(MessagesClear)
def clear(conn: ServerConnection, op: MessagesClear) -> None:
    """Remove the messages of a session and zero its counters."""
    _set_counters(conn, op.session_id, 0, 0)
    conn.execute(delete(messages).where(OF_SESSION), {"session": op.session_id})


def _set_counters(conn: ServerConnection, session_id: Any, count: int, calls: int) -> bool:
    return set_columns(conn, session_id, message_count=count, tool_call_count=calls)


_GET = select(*MESSAGE_COLUMNS).where(OF_SESSION).order_by(messages.c.id)


@answers(queries.get_messages)
def get_messages(conn: ServerConnection, session_id: str) -> list[Row]:
    """Return every message of a session in the order of insertion, content decoded."""
    return [decode_row(row) for row in conn.rows(_GET, {"session": session_id})]


@answers(queries.message_slice)
def message_slice(
    conn: ServerConnection, session_id: str, after: int | None, before: int | None, limit: int
) -> list[Row]:
    """Return at most *limit* messages of a session in order: after an id, or before one.

    Without *after* and with *before* they are the last ones below it.
    """
    statement = select(*MESSAGE_COLUMNS).where(OF_SESSION)
    if after is not None:
        statement = statement.where(messages.c.id > after)
    if before is not None:
        statement = statement.where(messages.c.id < before)
    last = after is None and before is not None
    statement = statement.order_by(messages.c.id.desc() if last else messages.c.id).limit(limit)
    rows = [decode_row(row) for row in conn.rows(statement, {"session": session_id})]
    return rows[::-1] if last else rows


@answers(queries.message)
def message(conn: ServerConnection, session_id: str, message_id: int) -> Row | None:
    """Return one message of a session, content decoded; ``None`` if it has no such message."""
    statement = select(*MESSAGE_COLUMNS).where(OF_SESSION, messages.c.id == message_id)
    row = conn.first(statement, {"session": session_id})
    return row and decode_row(row)


@answers(queries.export_session)
def export_session(conn: ServerConnection, session_id: str) -> Row | None:
    """Return a session with its ``messages``; ``None`` if it does not exist."""
    row = get_session(conn, session_id)
    return row and {**row, "messages": get_messages(conn, session_id)}


@answers(queries.message_count)
def message_count(conn: ServerConnection, session_id: str | None) -> int:
    """Count the messages of a session; all messages without *session_id*."""
    count = select(func.count()).select_from(messages)
    if session_id:
        return int(conn.scalar(count.where(OF_SESSION), {"session": session_id}))
    return int(conn.scalar(count))
