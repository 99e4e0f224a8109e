"""Validation: every value against its column, before anything is written.

The rules are the same for every provider, so what one store takes every other takes too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hermes_actor.agents.documents import check_depth, dumps
from hermes_actor.agents.tables import LONGEST_VALUE, TABLES, WILDCARD, Column, Form, Table
from hermes_actor.agents.times import is_canonical
from hermes_actor.errors import BadValue, ValueTooLarge

__all__ = [
    "check_text", "checked", "checked_row", "complete_row", "scope_of", "shown", "table_named",
    "whole_number",
]  # fmt: skip


def table_named(name: str) -> Table:
    """Return the table of the registry. Raises :class:`BadValue`."""
    table = TABLES.get(name)
    if table is None:
        raise BadValue(f"there is no table {shown(name)}; there are: {', '.join(TABLES)}")
    return table


def scope_of(table: Table, agent_id: str | None) -> dict[str, str]:
    """Return the column and value that every statement on *table* must have.

    Raises :class:`BadValue` for a scope that the table does not know.
    """
    if not table.scoped:
        if agent_id is not None:
            raise BadValue(f"{table.name} belongs to no agent: leave agent_id out")
        return {}
    if agent_id is None or not agent_id:
        raise BadValue(f"{table.name} belongs to agents: name one")
    if agent_id == WILDCARD and table.scope != "wildcard":
        raise BadValue(f"{table.name} knows no agent '*': name one agent")
    column = table.column("agent_id")
    assert column is not None
    return {"agent_id": checked(table, column, agent_id)}


def checked_row(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return *row* in its stored form. Raises :class:`BadValue` that names table and column."""
    found = {}
    for name, value in row.items():
        column = table.column(name)
        if name == "agent_id" and table.scoped:
            raise BadValue(f"{table.name}: agent_id is the scope and cannot be set")
        if column is None or (column.form is Form.SERIAL and name not in table.key):
            raise BadValue(f"{table.name} has no column {shown(name)} that can be set")
        found[name] = checked(table, column, value)
    return found


def complete_row(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return *row* with the defaults of the columns that it leaves out."""
    whole: dict[str, Any] = {}
    for column in table.columns:
        if column.form is Form.SERIAL:
            continue
        value = row.get(column.name)
        if value is None and column.default is not None:
            value = bool(column.default) if column.form is Form.FLAG else column.default
        if value is None and not column.null:
            raise BadValue(f"{table.name}: {column.name} is missing")
        whole[column.name] = value
    return whole


def checked(table: Table, column: Column, value: Any) -> Any:
    """Return *value* in the form in which *column* stores it. Raises :class:`BadValue`."""
    where = f"{table.name}.{column.name}"
    if value is None:
        # A default is filled in for a whole row; a patch cannot clear such a column.
        if column.null or column.default is not None:
            return None
        raise BadValue(f"{where} cannot be empty")
    if column.form in (Form.NUMBER, Form.SERIAL):
        return whole_number(where, value)
    if column.form is Form.FLAG:
        if not isinstance(value, int) or value not in (0, 1):
            raise BadValue(f"{where} is yes or no, not {shown(value)}")
        return bool(value)
    if not isinstance(value, str):
        raise BadValue(f"{where} is a {column.form.value}, not {shown(value)}")
    if column.form is Form.TIME and not is_canonical(value):
        raise BadValue(f"{where} is a time such as 2026-01-31T09:00:00.000Z, not {shown(value)}")
    check_text(where, value)
    if column.form is Form.JSON:
        return _json(where, value)
    if column.length and len(value) > column.length:
        raise BadValue(f"{where} has {len(value)} characters; the most is {column.length}")
    if column.name in table.key and not value:
        raise BadValue(f"{where} cannot be empty")
    if column.values and value not in column.values:
        raise BadValue(f"{where} is one of {', '.join(column.values)}, not {shown(value)}")
    return value


def check_text(where: str, value: str) -> None:
    """Raise :class:`BadValue` that names *where* for a text that some provider cannot store."""
    if "\0" in value:
        raise BadValue(f"{where} holds the character U+0000, which cannot be stored")
    if len(value) > LONGEST_VALUE:
        raise ValueTooLarge(f"{where} has {len(value)} characters; the most is {LONGEST_VALUE}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadValue(f"{where} holds half of a surrogate pair, which is no character") from None


def _json(where: str, value: str) -> str:
    try:
        parsed = json.loads(value)
        check_depth(parsed)
        text = dumps(parsed)
    except (ValueError, RecursionError):
        raise BadValue(f"{where} is not JSON: {shown(value)}") from None
    except BadValue as error:
        raise BadValue(f"{where}: {error}") from None
    check_text(where, text)
    return text


def whole_number(where: str, value: Any) -> int:
    """Return *value* if it is a number that every provider stores. Raises :class:`BadValue`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValue(f"{where} is a whole number, not {shown(value)}")
    if not -(2**63) <= value < 2**63:
        raise BadValue(f"{where}: {shown(value)} does not fit into 64 bits")
    return value


def shown(value: Any) -> str:
    """Return what a message shows of *value*."""
    text = repr(value) if not isinstance(value, str | bytes) else repr(value[:60])
    return text if len(text) <= 60 else f"{text[:57]}..."
