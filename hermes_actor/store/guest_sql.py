"""Statements of callers that reach into ``SessionDB._conn``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hermes_actor import limits
from hermes_actor.errors import ValueTooLarge
from hermes_actor.store.registry import applies
from hermes_actor.store.rows import scalar
from hermes_protocol.operations import SqlResult, SqlStatement
from hermes_protocol.values import from_value, to_value

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection, sqlite3
    from hermes_protocol.values import Value

__all__ = ["first_word", "keeps_a_part", "names_index", "names_messages", "run_statement"]

_SKIPPED = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")
_OR_FAIL = re.compile(r"\bOR\s+FAIL\b", re.IGNORECASE)

GUEST_MARK = "/* guest */ "
"""Put before every such statement, so that it never shares a compiled one of the writer."""


def first_word(sql: str) -> str:
    """Return the first keyword of a statement, upper case, comments skipped; or an empty string."""
    skipped = _SKIPPED.match(sql)
    word = _WORD.match(sql, skipped.end() if skipped else 0)
    return word.group(0).upper() if word else ""


def names_index(sql: str) -> bool:
    """Return True if a statement may look at a full-text index, which must be complete then."""
    return "messages_fts" in sql.lower()


def names_messages(sql: str) -> bool:
    """Return True if a statement may change messages, and so run the triggers of the indexes."""
    return "messages" in sql.lower()


def keeps_a_part(sql: str) -> bool:
    """Return True if a statement that fails may leave a part of its changes behind."""
    return _OR_FAIL.search(sql) is not None


@applies(SqlStatement)
def run_statement(conn: Connection, op: SqlStatement) -> SqlResult:
    """Run one statement to its end and return its rows and counters.

    The authorizer of the writer decides what it may do. Raises :class:`ValueTooLarge` if the rows
    are too large.
    """
    sql, before = GUEST_MARK + op.sql, conn.total_changes
    if op.named is not None:
        cursor = conn.execute(sql, {key: from_value(v) for key, v in op.named.items()})
    else:
        cursor = conn.execute(sql, [from_value(value) for value in op.parameters])
    rows = _rows(cursor)
    return SqlResult(
        columns=[column[0] for column in cursor.description or ()],
        rows=rows,
        # Python does not count the rows of a change that begins with WITH.
        rowcount=scalar(conn, "SELECT changes()")
        if cursor.rowcount < 0 and conn.total_changes != before
        else cursor.rowcount,
        lastrowid=cursor.lastrowid,
    )


def _rows(cursor: sqlite3.Cursor) -> list[list[Value]]:
    """Return all rows. Raises :class:`ValueTooLarge` if they are too large; it has run then."""
    rows: list[list[Value]] = []
    size = 0
    for row in cursor:
        rows.append([to_value(value) for value in row])
        # What they take here, not on the wire: a row of small things is mostly objects.
        size += 100 + sum(50 + len(v) if isinstance(v, str | bytes) else 40 for v in row)
        if size > limits.ANSWER_MAX_BYTES:
            cursor.close()
            rows.clear()  # before the error: it keeps this frame for a while
            raise ValueTooLarge(
                f"the rows of a statement may take {limits.ANSWER_MAX_BYTES} bytes, and these take"
                f" more; ask for fewer rows, or read them outside of the transaction"
            )
    return rows
