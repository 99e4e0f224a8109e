"""Statements of guests: callers that bring SQL of their own.

Those that reach into ``SessionDB._conn`` send one statement each; connections of programs send runs
of them, and get what the statements do exactly as ``sqlite3`` would show it.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hermes_actor import limits
from hermes_actor.errors import ValueTooLarge
from hermes_actor.sqlite import Connection, sqlite3
from hermes_actor.store.registry import applies
from hermes_actor.store.rows import scalar
from hermes_protocol.operations import (
    NamedParameters,
    Parameters,
    SqlError,
    SqlResult,
    SqlStatement,
    SqlStep,
)
from hermes_protocol.values import RawText, Stored, Value, from_value, to_value

__all__ = [
    "STATEMENT_ERRORS",
    "RowBudget",
    "counters",
    "error_value",
    "first_word",
    "keeps_a_part",
    "names_index",
    "names_messages",
    "quoted",
    "raw_text",
    "run_statement",
    "run_step",
]

STATEMENT_ERRORS = (
    sqlite3.Error,
    sqlite3.Warning,
    ValueError,
    TypeError,
    OverflowError,
)
"""Errors that ``sqlite3`` raises for a statement or its values."""

_SKIPPED = re.compile(r"(?:[\s;]+|--[^\n]*(?:\n|$)|/\*.*?(?:\*/|$))*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z]+")
_OR_FAIL = re.compile(r"\bOR\s+FAIL\b", re.IGNORECASE)

_HEAD = 80
"""Characters in which the first word of nearly all statements is."""

GUEST_MARK = "/* guest */ "
"""Put before every such statement, so that it never shares a compiled one of the writer."""


def first_word(sql: str) -> str:
    """Return the first keyword of a statement, upper case, comments skipped; or an empty string."""
    return _word_of(sql[:_HEAD]) or _word_of.__wrapped__(f"{sql};")


@lru_cache(256)
def _word_of(head: str) -> str:
    """Return the first keyword of *head*, if it ends there."""
    skipped = _SKIPPED.match(head)
    word = _WORD.match(head, skipped.end() if skipped else 0)
    return word.group(0).upper() if word and word.end() < len(head) else ""


def quoted(sql: str) -> str:
    """Return the beginning of a statement in one line, for people."""
    line = " ".join(sql[: 4 * limits.STATEMENT_SHOWN_CHARACTERS].split())
    shown = line[: limits.STATEMENT_SHOWN_CHARACTERS]
    return shown if shown == line else f"{shown}…"


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
    before = conn.total_changes
    cursor = _execute(conn, SqlStep(sql=op.sql, parameters=op.parameters, named=op.named))
    rows = RowBudget().rows(cursor)
    return SqlResult(
        columns=_columns(cursor),
        rows=rows,
        rowcount=_rowcount(conn, cursor, before),
        lastrowid=cursor.lastrowid,
    )


def run_step(conn: Connection, step: SqlStep, budget: RowBudget) -> SqlResult:
    """Run one statement of a run to its end and return its rows and counters.

    ``lastrowid`` is that of the connection. Raises :class:`ValueTooLarge` if the rows are too large
    for what is left of *budget*, and the error of ``sqlite3``.
    """
    before = conn.total_changes
    cursor = _execute(conn, step)
    rows = budget.rows(cursor)
    rowcount = _rowcount(conn, cursor, before)
    return counters(conn, before, columns=_columns(cursor), rows=rows, rowcount=rowcount)


def counters(
    conn: Connection,
    before: int,
    *,
    columns: list[str] | None = None,
    rows: list[list[Value]] | None = None,
    rowcount: int = -1,
) -> SqlResult:
    """Return the result of a statement that began when ``total_changes`` was *before*."""
    ((changes, lastrowid),) = conn.execute("SELECT changes(), last_insert_rowid()").fetchall()
    if columns is not None and rowcount < 0:
        changes = 0  # it was no change: the number is that of another one, perhaps another guest's
    return SqlResult(
        columns=columns or [],
        rows=rows or [],
        rowcount=rowcount,
        lastrowid=lastrowid,
        changes=changes,
        total_changes=conn.total_changes - before,
    )


def error_value(error: BaseException) -> SqlError:
    """Return *error*, one of :data:`STATEMENT_ERRORS`, as it travels."""
    return SqlError(
        kind=type(error).__name__,
        message=str(error).encode(errors="replace").decode(),
        code=getattr(error, "sqlite_errorcode", None),
        name=getattr(error, "sqlite_errorname", None),
    )


def raw_text(data: bytes) -> str | RawText:
    """Return a TEXT as SQLite has it: the text factory of connections that lose nothing."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return RawText(data)


def _execute(conn: Connection, step: SqlStep) -> sqlite3.Cursor:
    sql = GUEST_MARK + step.sql
    if step.rows is not None:
        return conn.executemany(sql, map(_bound, step.rows))
    if step.named_rows is not None:
        return conn.executemany(sql, map(_bound_names, step.named_rows))
    if step.named is not None:
        return conn.execute(sql, _bound_names(step.named))
    return conn.execute(sql, _bound(step.parameters))


def _bound(parameters: Parameters) -> list[Stored]:
    return [from_value(value) for value in parameters]


def _bound_names(named: NamedParameters) -> dict[str, Stored]:
    return {name: from_value(value) for name, value in named.items()}


def _columns(cursor: sqlite3.Cursor) -> list[str]:
    return [column[0] for column in cursor.description or ()]


def _rowcount(conn: Connection, cursor: sqlite3.Cursor, before: int) -> int:
    # Python does not count the rows of a change that begins with WITH.
    if cursor.rowcount < 0 and conn.total_changes != before:
        return scalar(conn, "SELECT changes()")  # type: ignore[no-any-return]
    return cursor.rowcount


class RowBudget:
    """Memory that the rows of one answer may take."""

    def __init__(self) -> None:
        self._left = limits.ANSWER_MAX_BYTES

    def rows(self, cursor: sqlite3.Cursor) -> list[list[Value]]:
        """Return all rows. Raises :class:`ValueTooLarge` for too many; the statement has run."""
        rows: list[list[Value]] = []
        for row in cursor:
            rows.append([to_value(value) for value in row])
            # What they take here, not on the wire: a row of small things is mostly objects.
            self._left -= 100 + sum(50 + len(v) if isinstance(v, str | bytes) else 40 for v in row)
            if self._left < 0:
                cursor.close()
                rows.clear()  # before the error: it keeps this frame for a while
                raise ValueTooLarge(
                    f"the rows of a statement may take {limits.ANSWER_MAX_BYTES} bytes, and these"
                    f" take more; ask for fewer rows, or read them outside of the transaction"
                )
        return rows
