"""Statements that cannot fail by themselves, as SQLite's own programs for them show.

A change whose program has no way to an error, no constraint, no trigger and no function, needs no
answer before the program goes on: whatever is raised at it is about the disk or the transaction,
and may be raised at the commit as well. So it can wait for the next request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hermes_actor.dbapi.parameters import size_of
from hermes_actor.dbapi.private_objects import ask, explain
from hermes_actor.sqlite import sqlite3

__all__ = ["SureStatements", "is_small", "schema_version"]

_SAFE = frozenset({
    "Abortable", "Add", "Affinity", "And", "BeginSubrtn", "BitAnd", "BitNot", "BitOr", "Blob",
    "Cast", "Clear", "Close", "CollSeq", "Column", "Compare", "Copy", "CursorHint", "DecrJumpZero",
    "DeferredSeek", "Delete", "Divide", "ElseEq", "EndCoroutine", "Eq", "Explain", "Filter",
    "FilterAdd", "FinishSeek", "Found", "Ge", "Gosub", "Goto", "Gt", "IdxDelete", "IdxGE", "IdxGT",
    "IdxInsert", "IdxLE", "IdxLT", "IdxRowid", "If", "IfNoHope", "IfNot", "IfNotOpen", "IfNotZero",
    "IfPos", "Init", "InitCoroutine", "Insert", "Int64", "IntCopy", "Integer", "IsNull", "IsTrue",
    "IsType", "Jump", "Last", "Le", "Lt", "MakeRecord", "Move", "Multiply", "Ne", "Next",
    "NoConflict", "Noop", "Not", "NotExists", "NotFound", "NotNull", "Null", "NullRow", "Once",
    "OpenDup", "OpenEphemeral", "OpenRead", "Or", "Permutation", "Prev", "Real",
    "RealAffinity", "Remainder", "ReopenIdx", "ResetCount", "Return", "Rewind", "RowSetAdd",
    "RowSetRead", "RowSetTest", "Rowid", "SCopy", "SeekGE", "SeekGT", "SeekHit", "SeekLE", "SeekLT",
    "SeekRowid", "SeekScan", "Sequence", "ShiftLeft", "ShiftRight", "SoftNull", "String", "String8",
    "Subtract", "Transaction", "Variable", "Yield", "ZeroOrNull",
})  # fmt: skip
"""Instructions without an error of their own, beside a damaged file or a full disk. Those of other
builds of SQLite are simply not among them."""

_CHECKED = "SELECT rootpage FROM main.sqlite_master WHERE sql LIKE '%check%'"

_MOST_BYTES = 64 * 1024
"""Of the parameters: a value may be too large for a record."""

_MOST_KNOWN = 512


class SureStatements:
    """Knows which statements of one connection are such ones, under the schema that it has seen."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}
        """Statements with a form of values that fits; ``None`` for one that may fail."""
        self._schema: object = None
        self._checked: set[int] = set()
        """Root pages of tables with CHECK, which SQLite leaves out on a read-only connection."""

    def contains(self, conn: sqlite3.Connection, schema: object, sql: str, values: Any) -> bool:
        """Return True if *sql* with *values* surely works on *conn*, whose schema is *schema*.

        Never raises: what is wrong with a statement is said by who runs it.
        """
        if schema != self._schema or len(self._known) >= _MOST_KNOWN:
            self._known.clear()
            self._schema = schema
            self._checked = {page for (page,) in ask(conn, _CHECKED)}
        known, form = self._known.get(sql, _UNKNOWN), _form(values)
        if known is None:
            return False
        if known == form:
            return True
        try:
            program = explain(conn, sql, values)
        except (sqlite3.Error, sqlite3.Warning, ValueError, TypeError, OverflowError):
            return False
        is_sure = all(map(self._is_safe, program))
        self._known[sql] = form if is_sure else None
        return is_sure

    def _is_safe(self, row: tuple[Any, ...]) -> bool:
        """Return True for an instruction that cannot raise an error."""
        _, code, p1, p2, p3, *_ = row
        if code == "Halt":
            return bool(p1 == 0)
        if code == "MustBeInt":
            return bool(p2 != 0)
        if code == "NewRowid":
            return bool(p3 == 0)
        if code == "OpenWrite":
            return p2 not in self._checked
        return code in _SAFE


_UNKNOWN = object()


def _form(values: Any) -> object:
    """Return what values have in common that fit the same parameters."""
    return frozenset(values) if isinstance(values, dict) else len(values)


def schema_version(conn: sqlite3.Connection) -> int:
    """Return the version of the schema that *conn* sees, and has read."""
    # EXPLAIN alone believes what the connection remembers; a query looks.
    ask(conn, "SELECT 1 FROM main.sqlite_master WHERE 0")
    ((version,),) = ask(conn, "PRAGMA main.schema_version")
    return int(version)


def is_small(values: Iterable[Any]) -> bool:
    """Return True if no record with *values* can be too large."""
    return sum(map(size_of, values)) <= _MOST_BYTES
