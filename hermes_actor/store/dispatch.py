"""Dispatch of operations: the one function that embedded mode, actor and simulation share."""

from __future__ import annotations

from typing import Any, TypeVar

from hermes_actor.errors import ConstraintFailed, NotAllowed, missing_session
from hermes_actor.sqlite import Connection, sqlite3

# Imported for their registrations.
from hermes_actor.store import guest_sql, messages, meta, row_transfer
from hermes_actor.store.gateway import files
from hermes_actor.store.registry import APPLY
from hermes_actor.store.search import merge
from hermes_actor.store.sessions import archive, deletion, sessions, telegram_topics, titles
from hermes_protocol.operations import MessageAppend, Operation

__all__ = ["apply"]

_SUBJECTS = (
    archive, deletion, files, guest_sql, merge, messages, meta, row_transfer, sessions,
    telegram_topics, titles,
)  # fmt: skip

R = TypeVar("R")


def apply(conn: Connection, operation: Operation[R]) -> R:
    """Apply *operation* inside the open transaction of *conn* and return its result.

    Raises a :class:`RequestError` or an ``sqlite3.Error``; the caller then undoes what the
    operation did so far.
    """
    function = APPLY.get(type(operation))
    if function is None:
        raise NotAllowed(f"{type(operation).__name__} is not a change of rows")
    rules = conn.rules
    if getattr(operation, "turn", 0):
        files.fence_operation(conn, operation)
    elif rules is not None and rules.turns_required:
        files.require_turn(conn, operation, rules.turns_required)
    if rules is not None and rules.merges_doubles and isinstance(operation, MessageAppend):
        double: Any = files.double_of(conn, operation)
        if double is not None:
            return double  # type: ignore[no-any-return]
    try:
        result: Any = function(conn, operation)
    except sqlite3.IntegrityError as error:
        missing = _missing_session(conn, operation, error)
        if missing is None:
            raise
        raise missing from error
    return result  # type: ignore[no-any-return]


def _missing_session(
    conn: Connection, operation: Operation[Any], error: sqlite3.IntegrityError
) -> ConstraintFailed | None:
    """The typed error if *operation* refers to a session that does not exist.

    SQLite does not say which row a foreign key looked for, and this is the most frequent mistake
    of callers: it gets a sentence of its own.
    """
    code = getattr(error, "sqlite_errorcode", None)  # errors of our own are IntegrityErrors, too
    if code != sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        return None
    for name in ("session_id", "parent_session_id"):
        key = getattr(operation, name, None)
        there = "SELECT 1 FROM sessions WHERE id = ?"
        if key is not None and conn.execute(there, (key,)).fetchone() is None:
            (_, _, file), *_ = conn.execute("PRAGMA database_list")
            return missing_session(key, file)
    return None
