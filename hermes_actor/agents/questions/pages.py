"""Pages of a whole table, in the order of its key, for copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from hermes_actor.agents.documents import loads
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.schema import quoted
from hermes_actor.agents.tables import TABLES, Form, Table

__all__ = ["comparable", "page"]


def page(
    rows: Rows, name: str, after: Sequence[Any] | None, limit: int, most_bytes: int
) -> list[Row]:
    """Return the next rows of every agent after the key *after*, as they are stored.

    They have at most *most_bytes* together, unless a single row has more.
    """
    table = TABLES[name]
    key = ", ".join(map(quoted, table.whole_key))
    columns = ", ".join(map(quoted, table.names))
    values = {f"k{place}": value for place, value in enumerate(after or ())}
    marks = ", ".join(f":{name}" for name in values)
    where = f" WHERE ({key}) > ({marks})" if values else ""
    end = f"FROM @{name}{where} ORDER BY {key} LIMIT"
    sizes = rows.all(f"SELECT {_size(rows, table)} AS size {end} {int(limit)}", values)
    together = accumulate(int(row["size"]) for row in sizes)
    count = max(sum(size <= most_bytes for size in together), min(1, len(sizes)))
    return rows.all(f"SELECT {columns} {end} {count}", values) if count else []


def _size(rows: Rows, table: Table) -> str:
    """Return the SQL of the bytes of a row, without what is short in every row."""
    long = [c for c in table.columns if c.form in (Form.TEXT, Form.JSON) and not c.length]
    parts = [f"COALESCE({rows.size(quoted(column.name))}, 0)" for column in long]
    return " + ".join(parts) or "0"


def comparable(table: Table, row: Row) -> Row:
    """Return *row* in a form that is the same for every provider."""
    made = {}
    for column in table.columns:
        value = row[column.name]
        if value is not None and column.form is Form.JSON:
            value = loads(value)
        made[column.name] = bool(value) if column.form is Form.FLAG else value
    return made
