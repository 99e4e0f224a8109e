"""One row of ``sessions`` on a server, by its id."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, bindparam, select, update

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.tables import messages, sessions

__all__ = ["BY_ID", "OF_SESSION", "is_there", "set_columns"]

BY_ID = sessions.c.id == bindparam("key")
"""``= NULL`` for ``None``, and so no row, as in SQLite."""
OF_SESSION = messages.c.session_id == bindparam("session")


def is_there(conn: ServerConnection, session_id: Any, *, lock: bool = False) -> bool:
    """Return True if the session exists; with *lock* no other transaction changes it then."""
    row = select(sessions.c.id).where(BY_ID)
    return conn.scalar(row.with_for_update() if lock else row, {"key": session_id}) is not None


def set_columns(
    conn: ServerConnection, session_id: Any, *conditions: ColumnElement[bool], **values: Any
) -> bool:
    """Set columns of a session; return False if it does not exist or meet *conditions*."""
    statement = update(sessions).where(BY_ID, *conditions).values(values)
    return conn.execute(statement, {"key": session_id}).rowcount > 0
