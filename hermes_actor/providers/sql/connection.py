"""A connection to a server inside a transaction, as operations and queries see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, CursorResult, Executable

from hermes_actor.store.rows import Row

if TYPE_CHECKING:
    from hermes_actor.providers.sql.dialect import ServerDialect

__all__ = ["ServerConnection"]

Values: TypeAlias = Mapping[str, Any]


class ServerConnection:
    """Connection that takes statements of SQLAlchemy Core and returns plain rows."""

    __slots__ = ("_sql", "dialect")

    def __init__(self, sql: Connection, dialect: ServerDialect) -> None:
        self._sql = sql
        self.dialect = dialect

    def execute(
        self, statement: Executable, parameters: Values | Sequence[Values] | None = None
    ) -> CursorResult[Any]:
        """Execute a statement, once for each mapping if *parameters* is a sequence.

        Raises the errors of SQLAlchemy, which :class:`Database` classifies.
        """
        return self._sql.execute(statement, parameters)

    @property
    def plain(self) -> Connection:
        """The connection of SQLAlchemy, for statements that only one dialect has."""
        return self._sql

    @contextmanager
    def stream(self, statement: Executable, held: int) -> Iterator[Iterator[Any]]:
        """Give an iterator over the rows, at most *held* in memory, for the block.

        Needs a transaction, and must be consumed inside the block.
        """
        options = {"stream_results": True, "max_row_buffer": held}
        with self._sql.execute(statement, execution_options=options) as result:
            yield iter(result)

    def rows(self, statement: Executable, parameters: Values | None = None) -> list[Row]:
        """Return all rows as dicts, keys in the order of the columns."""
        return [dict(row) for row in self._sql.execute(statement, parameters).mappings()]

    def tuples(
        self, statement: Executable, parameters: Values | None = None
    ) -> list[tuple[Any, ...]]:
        """Return all rows as tuples."""
        return [tuple(row) for row in self._sql.execute(statement, parameters)]

    def first(self, statement: Executable, parameters: Values | None = None) -> Row | None:
        """Return the first row as a dict, or ``None``."""
        row = self._sql.execute(statement, parameters).mappings().first()
        return None if row is None else dict(row)

    def scalar(self, statement: Executable, parameters: Values | None = None) -> Any:
        """Return the first value of the first row, or ``None``."""
        return self._sql.execute(statement, parameters).scalar()

    def column(self, statement: Executable, parameters: Values | None = None) -> list[Any]:
        """Return the first value of every row."""
        return list(self._sql.execute(statement, parameters).scalars())
