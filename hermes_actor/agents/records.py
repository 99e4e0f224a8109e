"""Records: rows as callers get them, without nulls, ciphertext and columns made for search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_actor.agents.documents import loads
from hermes_actor.agents.tables import Form, Table

__all__ = ["record"]


def record(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return *row* as a record: JSON decoded, flags as booleans, nulls left out."""
    made: dict[str, Any] = {}
    for column in table.columns:
        if column.secret or column.derived or column.name not in row:
            continue
        value = row[column.name]
        if value is None:
            if table.nulls:
                made[column.name] = None
        elif column.form is Form.JSON:
            made[column.name] = loads(value)
        elif column.form is Form.FLAG:
            made[column.name] = bool(value)
        else:
            made[column.name] = value
    return made
