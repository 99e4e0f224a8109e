"""Operations that are larger than a frame: kept in parts, put together in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hermes_actor.errors import BadValue
from hermes_protocol.framing import OperationError, decode_operation
from hermes_protocol.operations import Staged, StagePart

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection
    from hermes_protocol.operations import Operation

__all__ = ["encode_result", "keep_part", "take_parts"]

encode_result = msgspec.msgpack.Encoder().encode


def keep_part(conn: Connection, client: bytes, commit_no: int, op: StagePart) -> None:
    """Keep one part until the whole is applied, or its client is forgotten."""
    conn.execute(
        "INSERT OR REPLACE INTO hermes_actor_stage (client, key, part, commit_no, data)"
        " VALUES (?, ?, ?, ?, ?)",
        (client, op.key, op.part, commit_no, op.data),
    )


def take_parts(conn: Connection, client: bytes, op: Staged) -> Operation[Any]:
    """The operation that the parts are. They go in the transaction that applies it."""
    rows = conn.execute(
        "SELECT data FROM hermes_actor_stage WHERE client = ? AND key = ? ORDER BY part",
        (client, op.key),
    ).fetchall()
    if len(rows) != op.parts:
        raise BadValue(f"{len(rows)} of {op.parts} parts are here")
    try:
        whole = decode_operation(b"".join(data for (data,) in rows))
    except OperationError as error:
        raise BadValue(f"the parts are no operation: {error}") from error
    if isinstance(whole, StagePart | Staged):
        raise BadValue("a staged operation cannot stage another one")
    conn.execute("DELETE FROM hermes_actor_stage WHERE client = ? AND key = ?", (client, op.key))
    return whole
