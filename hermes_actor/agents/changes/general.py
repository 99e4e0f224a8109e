"""The five general changes, on any table of the registry, and the copy of whole rows."""

from __future__ import annotations

from hermes_actor.agents import verbs
from hermes_actor.agents.changes.keys import end_pause, pause, replace_key
from hermes_actor.agents.changes.registry import applies
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.schema import quoted
from hermes_actor.agents.tables import TABLES, Table
from hermes_actor.agents.values import checked, complete_row, scope_of, shown, table_named
from hermes_actor.errors import BadValue, Conflict
from hermes_protocol.agents import (
    AgentsCompare,
    AgentsCopy,
    AgentsDelete,
    AgentsPatch,
    AgentsPut,
    AgentsReplace,
    PutResult,
)

__all__: list[str] = []


@applies(AgentsPut)
def put(rows: Rows, op: AgentsPut) -> PutResult:
    """Insert or update rows."""
    table, inserted, keys = table_named(op.table), 0, []
    for row in op.rows:
        if op.mode == "insert":
            keys.append(verbs.insert(rows, table, op.agent_id, row))
            inserted += 1
        else:
            key, new = verbs.upsert(rows, table, op.agent_id, row, keep=op.mode == "ignore")
            keys.append(key)
            inserted += new
    if not op.returning:
        return PutResult(inserted=inserted)
    stored = [verbs.find(rows, table, op.agent_id, key) for key in keys]
    return PutResult(inserted=inserted, rows=[row for row in stored if row is not None])


@applies(AgentsPatch)
def patch(rows: Rows, op: AgentsPatch) -> Row | None:
    """Change one row."""
    table = table_named(op.table)
    found = verbs.update(rows, table, op.agent_id, op.key, op.set, op.add, op.expect)
    if found is None and op.missing == "error":
        raise verbs.missing(table, op.key or {"agent_id": op.agent_id})
    return found


@applies(AgentsDelete)
def delete(rows: Rows, op: AgentsDelete) -> dict[str, int]:
    """Delete rows by their key, or by a part of it."""
    table = table_named(op.table)
    _check_prefix(table, op.key)
    return verbs.delete(rows, table, op.agent_id, op.key)


@applies(AgentsReplace)
def replace(rows: Rows, op: AgentsReplace) -> int:
    """Replace all rows that have a part of the key."""
    table = table_named(op.table)
    _check_prefix(table, op.key)
    removed = verbs.delete(rows, table, op.agent_id, op.key)
    for row in op.rows:
        verbs.insert(rows, table, op.agent_id, row)
    return int(removed.get(table.name, 0))


@applies(AgentsCompare)
def compare(rows: Rows, op: AgentsCompare) -> int:
    """Change values that are as expected; a single other one undoes all."""
    if op.complete and op.old_key_id is not None:
        replace_key(rows, op.old_key_id, op.new_key_id)
    elif op.old_key_id is not None:
        pause(rows, op.old_key_id)
    elif op.new_key_id is not None:
        end_pause(rows)
    if op.complete:
        _check_complete(rows, len(op.items))
    for item in op.items:
        table = table_named(item.table)
        column = table.column(item.column)
        if column is None or not column.secret:
            raise BadValue(f"{table.name}: {shown(item.column)} holds no ciphertext")
        found = verbs.find(rows, table, item.agent_id, item.key, lock=True)
        if found is None or found[item.column] != item.old:
            named = ", ".join(str(value) for value in item.key.values())
            raise Conflict(f"{table.thing} {named} of {item.agent_id} has changed meanwhile")
        verbs.update(rows, table, item.agent_id, item.key, {item.column: item.new})
    return len(op.items)


def _check_complete(rows: Rows, wanted: int) -> None:
    """Raise :class:`Conflict` unless the store has as many ciphertexts as the caller has seen."""
    sealed = [(t.name, c.name) for t in TABLES.values() for c in t.columns if c.secret]
    for table, _ in sealed:
        rows.keep_from_growing(table)
    there = sum(
        int(rows.value(f'SELECT COUNT(*) AS n FROM @{table} WHERE "{column}" IS NOT NULL'))
        for table, column in sealed
    )
    if there != wanted:
        raise Conflict(
            f"the store has {there} secrets, tokens and credentials, and {wanted} a moment ago:"
            " nothing was changed; try again"
        )


@applies(AgentsCopy)
def copy(rows: Rows, op: AgentsCopy) -> int:
    """Insert whole rows, the numbers of the store and the agents included."""
    table, copied = table_named(op.table), 0
    for row in op.rows:
        whole = _copied(table, row)
        key = {name: whole[name] for name in table.whole_key}
        if rows.value(f"SELECT 1 AS n FROM @{table.name} WHERE {verbs.condition(key)}", key):
            continue
        verbs.check_rules(rows, table, whole)
        names = ", ".join(map(quoted, whole))
        values = ", ".join(f":{name}" for name in whole)
        rows.run(f"INSERT INTO @{table.name} ({names}) VALUES ({values})", whole)
        copied += 1
    if table.serial is not None and copied:
        rows.raise_serial(table.name, table.serial)
    return copied


def _copied(table: Table, row: Row) -> Row:
    """Return *row* in its stored form. Raises :class:`BadValue`, as for any other row."""
    for name in row:
        if table.column(name) is None:
            raise BadValue(f"{table.name} has no column {shown(name)}")
    given = {c.name: checked(table, c, row.get(c.name)) for c in table.columns if c.name in row}
    if table.scoped:
        scope_of(table, given.get("agent_id"))
    whole = complete_row(table, given)
    if table.serial is not None:
        whole[table.serial] = given.get(table.serial)
        # MariaDB takes 0 as: give it a number.
        if whole[table.serial] is None or whole[table.serial] < 1:
            raise BadValue(f"{table.name}.{table.serial} is a number from 1")
    return whole


def _check_prefix(table: Table, key: Row) -> None:
    """Raise :class:`BadValue` unless *key* is made of columns that rows are named or owned by."""
    allowed = {*table.key, *(name for link in table.foreign for name in link.columns)}
    allowed |= {name for rule in table.uniques for name in rule.columns}
    for name in key:
        if name not in allowed:
            raise BadValue(f"{table.name}: rows are not deleted by {shown(name)}")
        if key[name] is None:
            raise BadValue(f"{table.name}: {name} names the rows to delete; it cannot be empty")
    if not key and not table.scoped:
        raise BadValue(f"{table.name}: name the rows to delete")
