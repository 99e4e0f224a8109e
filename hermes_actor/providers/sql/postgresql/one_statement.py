"""The most frequent changes in one statement each, their receipts included.

An agent appends messages and books tokens all day. Statement by statement each of these takes
seven round trips to the server, and as many passes through SQLAlchemy. Here the update of the
session is the first part of the statement, and the rest selects from it: so the row of the session
is locked before the id of a message is drawn, and a session that is not there changes nothing.

The receipt has no ON CONFLICT. If it exists, the whole statement is rolled back, and the general
way finds the receipt and returns its result.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    CTE,
    ColumnElement,
    Executable,
    LargeBinary,
    Select,
    bindparam,
    func,
    insert,
    literal_column,
    select,
    update,
)

from hermes_actor.providers.sql.messages import COUNTED, message_values
from hermes_actor.providers.sql.postgresql.notify import TELL
from hermes_actor.providers.sql.postgresql.search import messages_with_words
from hermes_actor.providers.sql.receipts import NIL, Ticket, note_of
from hermes_actor.providers.sql.sessions.session_row import BY_ID
from hermes_actor.providers.sql.sessions.sessions import booked
from hermes_actor.providers.sql.tables import changes, sessions
from hermes_actor.write_rules import NO_RULES
from hermes_protocol.operations import MessageAppend, SessionTokens

if TYPE_CHECKING:
    from hermes_actor.providers.sql.dialect import ServerDialect

__all__ = ["OneStatement", "one_statement"]


class OneStatement(NamedTuple):
    """A statement that makes a change and its receipt, and returns one row with the result.

    No row: the session does not exist, and nothing was changed.
    """

    statement: Executable
    values: dict[str, Any]


def one_statement(dialect: ServerDialect, ticket: Ticket) -> OneStatement | None:
    """Return the change of *ticket* as one statement; ``None`` if it takes several."""
    make = _MAKERS.get(type(ticket.operation))
    if make is None:
        return None
    if getattr(ticket.operation, "turn", 0) or dialect.settings.rules != NO_RULES:
        return None  # what is looked at first is read in the general way, under its lock
    statement, values = make(dialect, ticket.operation)
    note = {f"note_{name}": value for name, value in note_of(ticket).items()}
    return OneStatement(statement, {**values, **note})


# A msgpack int64: its mark and eight bytes, the most significant first.
_MSGPACK_INT64 = literal_column("'\\xd3'::bytea", LargeBinary)


def _append(dialect: ServerDialect, op: MessageAppend) -> tuple[Executable, dict[str, Any]]:
    values = message_values(dialect, op.session_id, op.message)
    del values["session_id"]
    given = {f"new_{name}": value for name, value in values.items()}
    return _append_statement(tuple(values)), {
        **given, "key": op.session_id, "calls": op.message.calls,
    }  # fmt: skip


@cache
def _append_statement(columns: tuple[str, ...]) -> Executable:
    table = messages_with_words
    counted = COUNTED.returning(sessions.c.id).cte("counted")
    given = [bindparam(f"new_{name}", type_=table.c[name].type) for name in columns]
    row = select(counted.c.id, *given)
    # The server draws the id for each row of "counted", and so after the session was locked.
    insertion = insert(table).from_select(["session_id", *columns], row)
    added = insertion.returning(table.c.id).cte("added")
    result = _MSGPACK_INT64.op("||")(func.int8send(added.c.id))
    return _with_receipt(added, result, added.c.id)


def _book(dialect: ServerDialect, op: SessionTokens) -> tuple[Executable, dict[str, Any]]:
    changed = update(sessions).where(BY_ID).values(booked(op)).returning(sessions.c.id)
    return _with_receipt(changed.cte("booked"), bindparam("nil", NIL), None), {"key": op.id}


def _with_receipt(
    changed: CTE, result: ColumnElement[Any], answer: ColumnElement[Any] | None
) -> Select[Any]:
    """Return the select of *answer* from *changed*, which adds the receipt and wakes followers."""
    names = [name for name in _NOTED if name != "result"]
    given = [bindparam(f"note_{name}", type_=changes.c[name].type) for name in names]
    # From *changed*: what changed nothing leaves no receipt.
    note = select(*given, result).select_from(changed)
    noted = insert(changes).from_select([*names, "result"], note)
    shown = literal_column("NULL") if answer is None else answer
    return select(shown, TELL.scalar_subquery()).select_from(changed).add_cte(noted.cte("noted"))


_NOTED = ("client", "seq", "digest", "result", "op", "session_id")
_MAKERS: dict[type, Callable[[ServerDialect, Any], tuple[Executable, dict[str, Any]]]] = {
    MessageAppend: _append,
    SessionTokens: _book,
}
