"""Applying operations: the one function that embedded mode, actor and simulation share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from hermes_actor.errors import NotAllowed

# Imported for their registrations.
from hermes_actor.store import (
    archive,
    copying,
    indexes,
    messages,
    meta,
    removal,
    sessions,
    sql,
    titles,
    topics,
)
from hermes_actor.store.registry import APPLY

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection
    from hermes_protocol.operations import Operation

__all__ = ["apply"]

_SUBJECTS = (archive, copying, indexes, messages, meta, removal, sessions, sql, titles, topics)

R = TypeVar("R")


def apply(conn: Connection, operation: Operation[R]) -> R:
    """Apply *operation* inside the open transaction of *conn* and return its result.

    Raises a :class:`RequestError` or an ``sqlite3.Error``; the caller then undoes what the
    operation did so far.
    """
    function = APPLY.get(type(operation))
    if function is None:
        raise NotAllowed(f"{type(operation).__name__} is not a change of rows")
    result: Any = function(conn, operation)
    return result  # type: ignore[no-any-return]
