"""The verbs: select, insert, upsert, update and delete rows of any table of the registry.

Every statement on a table of agents has the scope in its condition, and every row gets it filled
in; so no caller can name or reach a row of another agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_actor.agents.documents import loads
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.schema import quoted
from hermes_actor.agents.tables import TABLES, Form, Table
from hermes_actor.agents.values import checked_row, complete_row, scope_of, shown, whole_number
from hermes_actor.errors import BadValue, Conflict, NotFound

__all__ = [
    "check_rules", "condition", "delete", "find", "insert", "missing", "select", "update", "upsert",
]  # fmt: skip


def condition(values: Mapping[str, Any], of: str = "") -> str:
    """Return the SQL of: every column has its value, which is null for ``None``.

    *of* is the prefix of the columns.
    """
    parts = [
        f"{of}{quoted(name)} IS NULL" if value is None else f"{of}{quoted(name)} = :{name}"
        for name, value in values.items()
    ]
    return " AND ".join(parts) or "1 = 1"


def missing(table: Table, key: Mapping[str, Any]) -> NotFound:
    """Return the error that names a row that is not there."""
    named = ", ".join(str(value) for value in key.values())
    return NotFound(f"{table.thing} not found: {named}")


def select(
    rows: Rows,
    table: Table,
    agent_id: str | None,
    key: Mapping[str, Any],
    *,
    lock: bool = False,
    limit: int | None = None,
) -> list[Row]:
    """Return the rows of the scope that have all values of *key*, in the order of the table."""
    where = {**_key(table, key), **scope_of(table, agent_id)}
    order = ", ".join(
        f"{quoted(name.lstrip('-'))}{' DESC' if name.startswith('-') else ''}"
        for name in table.order
    )
    sql = (
        f"SELECT {_columns(table)} FROM @{table.name} WHERE {condition(where)} ORDER BY {order}"
        f"{f' LIMIT {int(limit)}' if limit is not None else ''}{rows.lock if lock else ''}"
    )
    return rows.all(sql, where)


def find(
    rows: Rows, table: Table, agent_id: str | None, key: Mapping[str, Any], *, lock: bool = False
) -> Row | None:
    """Return the one row that has *key*, or ``None``."""
    where = {**_key(table, key), **scope_of(table, agent_id)}
    sql = (
        f"SELECT {_columns(table)} FROM @{table.name} WHERE {condition(where)}"
        f"{rows.lock if lock else ''}"
    )
    return rows.one(sql, where)


def insert(rows: Rows, table: Table, agent_id: str | None, row: Mapping[str, Any]) -> Row:
    """Insert a row and return its key. Raises :class:`Conflict` if there is one of its key."""
    whole = _whole(table, agent_id, row)
    key = {name: whole[name] for name in table.key if name in whole}
    if len(key) == len(table.key) and find(rows, table, agent_id, key) is not None:
        named = ", ".join(str(value) for value in (key or {"id": agent_id}).values())
        raise Conflict(f"{table.thing} exists already: {named}")
    return _insert(rows, table, whole)


def upsert(
    rows: Rows, table: Table, agent_id: str | None, row: Mapping[str, Any], *, keep: bool = False
) -> tuple[Row, bool]:
    """Insert a row, or change that of its key except for what is set once; with *keep* not at all.

    Returns the key, and whether the row is new.
    """
    given = checked_row(table, row)
    try:
        key = {name: given[name] for name in table.key}
    except KeyError as error:
        raise BadValue(f"{table.name}: {error.args[0]} is missing") from None
    found = find(rows, table, agent_id, key, lock=True)
    if found is None:
        whole = _whole(table, agent_id, row)
        if rows.dialect.name == "sqlite" or _insert_unless_there(rows, table, whole):
            return (_insert(rows, table, whole) if rows.dialect.name == "sqlite" else key), True
        # Another transaction was quicker; its row is committed now.
        found = find(rows, table, agent_id, key, lock=True)
        if found is None:
            raise Conflict(f"{table.name}: another row has what must be unique")
    once = {column.name for column in table.columns if column.once}
    changed = {name: v for name, v in given.items() if name not in key and name not in once}
    if not keep and changed and found is not None:
        _set(rows, table, agent_id, key, _with_defaults(table, changed), {}, found)
    return key, False


def update(
    rows: Rows,
    table: Table,
    agent_id: str | None,
    key: Mapping[str, Any],
    values: Mapping[str, Any],
    add: Mapping[str, int] | None = None,
    expect: Mapping[str, Any] | None = None,
) -> Row | None:
    """Change one row and return it; ``None`` if it is missing.

    Raises :class:`Conflict` if a value is not as *expect* says, and nothing has changed then.
    """
    if set(key) != set(table.key):
        raise BadValue(f"{table.name}: a row is named by {', '.join(table.key) or 'its scope'}")
    changed, expected = checked_row(table, values), checked_row(table, expect or {})
    for name in (*changed, *(add or {})):
        if name in table.key:
            raise BadValue(f"{table.name}: {name} names the row and cannot be changed")
    added = {name: _checked_delta(table, name, by, changed) for name, by in (add or {}).items()}
    found = find(rows, table, agent_id, key, lock=True)
    if found is None:
        return None
    for name, value in expected.items():
        if _comparable(table, name, found[name]) != _comparable(table, name, value):
            raise Conflict(f"{table.thing} has changed: {name} is not {shown(value)} any more")
    for name, by in added.items():
        if found[name] is None:
            raise BadValue(f"{table.name}.{name} is empty, so nothing can be added to it")
        whole_number(f"{table.name}.{name}", found[name] + by)
    _set(rows, table, agent_id, dict(key), _with_defaults(table, changed), added, found)
    return find(rows, table, agent_id, key)


def _checked_delta(table: Table, name: str, by: Any, changed: Row) -> int:
    """Return *by* if it can be added to a column. Raises :class:`BadValue`."""
    column = table.column(name)
    if column is None or column.form is not Form.NUMBER:
        raise BadValue(f"{table.name}: {shown(name)} is no number that can be added to")
    if name in changed:
        raise BadValue(f"{table.name}.{name} is set already; it cannot be added to as well")
    return whole_number(f"{table.name}.{name}", by)


def _comparable(table: Table, name: str, value: Any) -> Any:
    """Return a stored value in a form that is equal for what is the same."""
    column = table.column(name)
    if value is not None and column is not None and column.form is Form.JSON:
        return loads(value)
    return value


def delete(
    rows: Rows, table: Table, agent_id: str | None, key: Mapping[str, Any]
) -> dict[str, int]:
    """Delete the rows that have all values of *key*; return how many of each table went."""
    where = {**_key(table, key), **scope_of(table, agent_id)}
    counts: dict[str, int] = {}
    for child in TABLES.values():
        for link in child.foreign:
            if link.table == table.name:
                joined = " AND ".join(
                    f"c.{quoted(a)} = p.{quoted(b)}"
                    for a, b in zip(link.columns, link.names, strict=True)
                )
                inner = condition(where, "p.")
                counts[child.name] = rows.value(
                    f"SELECT COUNT(*) AS n FROM @{child.name} c JOIN @{table.name} p ON {joined}"
                    f" WHERE {inner}",
                    where,
                )
    counts[table.name] = rows.run(f"DELETE FROM @{table.name} WHERE {condition(where)}", where)
    return {name: int(count) for name, count in counts.items() if count}


def _key(table: Table, key: Mapping[str, Any]) -> Row:
    return checked_row(table, key)


def _columns(table: Table) -> str:
    return ", ".join(map(quoted, table.names))


def _whole(table: Table, agent_id: str | None, row: Mapping[str, Any]) -> Row:
    given = {**checked_row(table, row), **scope_of(table, agent_id)}
    return complete_row(table, given)


def _with_defaults(table: Table, values: Row) -> Row:
    """Return *values* with the default for what cannot be null."""
    filled = {}
    for name, value in values.items():
        column = table.column(name)
        if value is None and column is not None and not column.null:
            value = column.default
        filled[name] = value
    return filled


def _insert(rows: Rows, table: Table, whole: Row) -> Row:
    check_rules(rows, table, whole)
    sql = _insert_sql(table, tuple(whole))
    if table.serial is None:
        rows.run(sql, whole)
        return {name: whole[name] for name in table.key}
    number = rows.insert_numbered(sql, table.serial, whole)
    return {name: number if name == table.serial else whole[name] for name in table.key}


def _insert_unless_there(rows: Rows, table: Table, whole: Row) -> bool:
    check_rules(rows, table, whole)
    sql = _insert_sql(table, tuple(whole))
    if rows.dialect.name == "mysql":
        # Parents and values are checked above, so a duplicate is all that can be ignored.
        return rows.run(sql.replace("INSERT", "INSERT IGNORE", 1), whole) == 1
    key = ", ".join(map(quoted, table.whole_key))
    return rows.run(f"{sql} ON CONFLICT ({key}) DO NOTHING", whole) == 1


def _insert_sql(table: Table, names: Sequence[str]) -> str:
    columns, values = ", ".join(map(quoted, names)), ", ".join(f":{name}" for name in names)
    return f"INSERT INTO @{table.name} ({columns}) VALUES ({values})"


def _set(
    rows: Rows,
    table: Table,
    agent_id: str | None,
    key: Row,
    changed: Row,
    add: Mapping[str, int],
    found: Row,
) -> None:
    if not changed and not add:
        return
    check_rules(rows, table, {**found, **changed}, found)
    where = {**_key(table, key), **scope_of(table, agent_id)}
    # Values under names of their own: a column may be in the key and in the set.
    parts = [f"{quoted(name)} = :set_{name}" for name in changed]
    parts += [f"{quoted(name)} = {quoted(name)} + :add_{name}" for name in add]
    values = {f"set_{name}": value for name, value in changed.items()}
    values |= {f"add_{name}": int(value) for name, value in add.items()}
    rows.run(
        f"UPDATE @{table.name} SET {', '.join(parts)} WHERE {condition(where)}", {**where, **values}
    )


def check_rules(
    rows: Rows, table: Table, whole: Mapping[str, Any], found: Mapping[str, Any] | None = None
) -> None:
    """Raise :class:`NotFound` or :class:`Conflict` for a row that other rows do not allow.

    *found* is the row as it is now, if there is one.
    """
    _check_parents(rows, table, whole)
    _check_uniques(rows, table, whole, found)


def _check_parents(rows: Rows, table: Table, whole: Mapping[str, Any]) -> None:
    """Raise :class:`NotFound` for a row that refers to one that is missing."""
    for link in table.foreign:
        key = {name: whole[own] for own, name in zip(link.columns, link.names, strict=True)}
        there = f"SELECT 1 AS there FROM @{link.table} WHERE {condition(key)}"
        if rows.value(there, key) is None:
            raise missing(TABLES[link.table], {k: v for k, v in key.items() if k != "agent_id"})


def _check_uniques(
    rows: Rows, table: Table, whole: Mapping[str, Any], found: Mapping[str, Any] | None
) -> None:
    """Raise :class:`Conflict`, naming the holder, where another row has what must be unique."""
    for rule in table.uniques:
        if not all(one.holds(whole[one.column]) for one in rule.where):
            continue
        wanted = {name: whole[name] for name in rule.columns}
        where = " AND ".join([condition(wanted), *(one.sql for one in rule.where)])
        for holder in rows.all(
            f"SELECT {_columns(table)} FROM @{table.name} WHERE {where}", wanted
        ):
            if found is None or any(holder[name] != found[name] for name in table.whole_key):
                raise Conflict(f"{table.name}: {rule.conflict.format(**holder)}")
