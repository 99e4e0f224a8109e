"""Operations that are larger than a frame: kept in parts, put together in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hermes_actor import limits
from hermes_actor.errors import BadValue, ValueTooLarge
from hermes_actor.store.rows import scalar
from hermes_protocol.framing import OperationError, decode_operation
from hermes_protocol.operations import Staged, StagePart

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection
    from hermes_protocol.operations import Operation

__all__ = ["LeaseParts", "Stage", "discard_parts", "encode_result", "keep_part", "take_parts"]

encode_result = msgspec.msgpack.Encoder().encode


def keep_part(conn: Connection, client: bytes, commit_no: int, op: StagePart) -> None:
    """Keep one part until the whole is applied or refused, or its client adds no more."""
    conn.execute(
        "INSERT OR REPLACE INTO hermes_actor_stage (client, key, part, commit_no, data)"
        " VALUES (?, ?, ?, ?, ?)",
        (client, op.key, op.part, commit_no, op.data),
    )
    sql = "SELECT SUM(LENGTH(data)) FROM hermes_actor_stage WHERE client = ? AND key = ?"
    # At each part, by what is stored: the client's own word about the size is not relied upon.
    if scalar(conn, sql, (client, op.key)) > limits.STAGED_MAX_BYTES:
        raise _too_big()


def take_parts(conn: Connection, client: bytes, op: Staged) -> Operation[Any]:
    """Return the operation that the parts are; they go in the transaction that applies it."""
    whole, parts = bytearray(), 0
    # One part at a time: an operation of this size is in memory often enough.
    for (data,) in conn.execute(
        "SELECT data FROM hermes_actor_stage WHERE client = ? AND key = ? ORDER BY part",
        (client, op.key),
    ):
        whole += data
        parts += 1
    operation = _put_together(whole, parts, op)
    # In the transaction that applies: after a rollback the parts are there for another try.
    discard_parts(conn, client, op.key)
    return operation


def _put_together(whole: bytes | bytearray, parts: int, op: Staged) -> Operation[Any]:
    if parts != op.parts:
        raise BadValue(f"{parts} of {op.parts} parts are here; send the whole operation again")
    try:
        operation = decode_operation(whole)
    except OperationError as error:
        raise BadValue(f"the parts are no operation: {error}") from None
    # One level: the bound on the size holds for what is put together, not for what that names.
    if isinstance(operation, StagePart | Staged):
        raise BadValue("a staged operation cannot stage another one")
    return operation


def _too_big() -> ValueTooLarge:
    return ValueTooLarge(
        f"an operation may have {limits.STAGED_MAX_BYTES} bytes in all, and this one has more;"
        f" send several smaller ones"
    )


class LeaseParts:
    """The parts of one statement of a lease. In memory: a lease is short, and there is only one."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def keep(self, op: StagePart) -> None:
        """Keep one part. Parts come in their order; the first begins another statement."""
        if op.part == 0:
            self._parts.clear()
        if op.part != len(self._parts):
            raise BadValue(f"part {op.part} comes behind {len(self._parts)} parts; send all again")
        if sum(map(len, self._parts)) + len(op.data) > limits.STAGED_MAX_BYTES:
            raise _too_big()
        self._parts.append(op.data)

    def take(self, op: Staged) -> Operation[Any]:
        """Return the operation that the parts are, and forget them."""
        parts, self._parts = self._parts, []
        return _put_together(b"".join(parts), len(parts), op)


def discard_parts(conn: Connection, client: bytes, key: int) -> None:
    """Remove the parts of one operation."""
    conn.execute("DELETE FROM hermes_actor_stage WHERE client = ? AND key = ?", (client, key))


class Stage:
    """Finds the parts that no client will ever put together.

    A client that still sends an operation adds parts to it. One that was killed, or that gave up,
    adds none; but one that reconnects after a crash may. So parts stay between two looks, and go
    when their client has added none in between. To remove them is never wrong: an operation whose
    parts are gone is refused, and was not executed.
    """

    def __init__(self, now: float) -> None:
        self._looked = now
        self._before: int | None = None
        self._through: int | None = None

    def sweep_is_due(self, now: float) -> bool:
        """Return True if it is time for the next look."""
        return now - self._looked >= limits.STAGE_KEPT_SECONDS

    def begin_look(self, now: float, commit_no: int) -> None:
        """Begin a look at *now*, when the newest change is *commit_no*."""
        self._looked = now
        # By numbers of changes: what is not above the look before this one has been there for a
        # whole interval.
        self._before, self._through = self._through, commit_no

    def has_leftovers(self, conn: Connection) -> bool:
        """Return True if there are parts that were there at the look before. Takes no lock."""
        return self._before is not None and bool(
            scalar(conn, "SELECT 1 FROM hermes_actor_stage WHERE commit_no <= ?", (self._before,))
        )

    def sweep(self, conn: Connection) -> None:
        """Remove, inside a transaction, the parts of clients that have added none."""
        conn.execute(
            "DELETE FROM hermes_actor_stage WHERE client NOT IN"
            " (SELECT client FROM hermes_actor_stage WHERE commit_no > ?)",
            (self._before,),
        )
