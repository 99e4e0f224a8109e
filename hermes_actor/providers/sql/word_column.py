"""The column of words of messages: filled for rows that came without it, or with an older one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Engine, bindparam, literal_column, select, update

from hermes_actor.providers.sql.tables import messages

if TYPE_CHECKING:
    from hermes_actor.providers.sql.dialect import ServerDialect

__all__ = ["IS_WORDLESS", "fill_words"]

IS_WORDLESS: ColumnElement[bool] = literal_column("messages.words").is_(None)

_AT_ONCE = 500
_COLUMNS = (messages.c.id, messages.c.content, messages.c.tool_name, messages.c.tool_calls)


def fill_words(engine: Engine, dialect: ServerDialect, which: ColumnElement[bool]) -> None:
    """Write the words of the messages *which*, oldest first.

    In short transactions: writers go on meanwhile, and a process that dies is followed by one that
    goes on where it was, or writes the same once more.
    """
    some = (
        select(*_COLUMNS)
        .where(which, messages.c.id > bindparam("last"))
        .order_by(messages.c.id)
        .limit(_AT_ONCE)
    )
    table = dialect.messages
    change = update(table).where(table.c.id == bindparam("row")).values(words=bindparam("text"))
    last = -(2**63)
    while True:
        with engine.begin() as conn:
            rows = conn.execute(some, {"last": last}).mappings().all()
            if not rows:
                return
            last = rows[-1]["id"]
            values = [dialect.message_values(dict(row)) for row in rows]
            conn.execute(change, [{"row": one["id"], "text": one["words"]} for one in values])
