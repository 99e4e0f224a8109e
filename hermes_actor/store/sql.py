"""Statements of callers that reach into ``SessionDB._conn``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes_actor.store.registry import applies
from hermes_protocol.operations import SqlResult, SqlStatement
from hermes_protocol.values import from_value, to_value

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["run_statement"]


@applies(SqlStatement)
def run_statement(conn: Connection, op: SqlStatement) -> SqlResult:
    """Run one statement to its end. What it may do is the writer's authorizer's business."""
    if op.named is not None:
        cursor = conn.execute(op.sql, {key: from_value(v) for key, v in op.named.items()})
    else:
        cursor = conn.execute(op.sql, [from_value(value) for value in op.parameters])
    rows = cursor.fetchall()
    return SqlResult(
        columns=[column[0] for column in cursor.description or ()],
        rows=[[to_value(value) for value in row] for row in rows],
        rowcount=cursor.rowcount,
        lastrowid=cursor.lastrowid,
    )
