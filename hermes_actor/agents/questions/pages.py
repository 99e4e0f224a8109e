"""Pages of a whole table, in the order of its key, for copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes_actor.agents.documents import loads
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.schema import quoted
from hermes_actor.agents.tables import TABLES, Form, Table

__all__ = ["comparable", "page"]


def page(rows: Rows, name: str, after: Sequence[Any] | None, limit: int) -> list[Row]:
    """Return the next rows of every agent after the key *after*, as they are stored."""
    table = TABLES[name]
    key = ", ".join(map(quoted, table.whole_key))
    columns = ", ".join(map(quoted, table.names))
    values = {f"k{place}": value for place, value in enumerate(after or ())}
    marks = ", ".join(f":{name}" for name in values)
    where = f" WHERE ({key}) > ({marks})" if values else ""
    return rows.all(
        f"SELECT {columns} FROM @{name}{where} ORDER BY {key} LIMIT {int(limit)}", values
    )


def comparable(table: Table, row: Row) -> Row:
    """Return *row* in a form that is the same for every provider."""
    made = {}
    for column in table.columns:
        value = row[column.name]
        if value is not None and column.form is Form.JSON:
            value = loads(value)
        made[column.name] = bool(value) if column.form is Form.FLAG else value
    return made
