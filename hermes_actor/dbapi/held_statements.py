"""Statements of a transaction whose results are not needed yet: they wait for one that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor.dbapi.parameters import size_of
from hermes_actor.dbapi.statements import DML

if TYPE_CHECKING:
    from hermes_actor.dbapi.cursor import Cursor
    from hermes_protocol.operations import SqlReply, SqlStep

__all__ = ["Held", "HeldStatements", "may_wait", "show"]

_MOST_STATEMENTS = 64
_MOST_BYTES = 256 * 1024


class Held:
    """One statement that waits, with the cursor that shows its counters."""

    __slots__ = ("cursor", "step")

    def __init__(self, cursor: Cursor, step: SqlStep) -> None:
        self.cursor = cursor
        self.step = step


class HeldStatements:
    """The statements of one connection that wait, in their order."""

    def __init__(self) -> None:
        self._waiting: list[Held] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """True if the next one must not wait."""
        return len(self._waiting) >= _MOST_STATEMENTS or self._bytes > _MOST_BYTES

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, cursor: Cursor, step: SqlStep) -> None:
        """Have *step* wait; its counters will be those of *cursor*."""
        self._waiting.append(held := Held(cursor, step))
        values = step.parameters if step.named is None else step.named.values()
        self._bytes += len(step.sql) + sum(size_of(value) for value in values)
        cursor._held = held

    def take(self) -> list[Held]:
        """Return them, which wait no longer."""
        taken, self._waiting, self._bytes = self._waiting, [], 0
        return taken

    def drop(self) -> None:
        """Forget them: their transaction is rolled back."""
        for held in self.take():
            if held.cursor._held is held:
                held.cursor._held, held.cursor._rowcount = None, -1


def may_wait(first: str, sql: str) -> bool:
    """Return True if a statement that begins with *first* surely has no rows to show."""
    return first in DML and "returning" not in sql.lower()


def show(held: list[Held], reply: SqlReply, last_rowid: int) -> None:
    """Give the cursors of *held* their counters. *last_rowid* is that of before."""
    for position, one in enumerate(held):
        result = reply.results[position] if position < len(reply.results) else None
        if result is not None and result.lastrowid is not None:
            last_rowid = result.lastrowid
        if one.cursor._held is one:
            one.cursor._held = None
            one.cursor._rowcount = -1 if result is None else result.rowcount
            one.cursor._lastrowid = last_rowid
