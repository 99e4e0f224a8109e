"""Exactly once on a server: a receipt of every change, in the transaction of the change.

Each process chooses a client id and numbers its changes. The receipt is inserted before anything
else. If it exists already, an earlier attempt committed the change, and the receipt holds its
result. If the connection of that attempt is gone but its transaction is not, the insert waits for
the end of it, because the key is unique. So a change that is sent again after a lost connection is
recognised, whatever became of the first attempt.

Receipts are also what subscribers read. They are removed when they are old in both ways: many
changes ago, and longer ago than any caller waits.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import Engine, bindparam, delete, func, insert, select, update

from hermes_actor.errors import KeyReused, Unsupported
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import APPLY
from hermes_actor.providers.sql.schema import ensure_schema
from hermes_actor.providers.sql.tables import changes
from hermes_actor.store.changes import change_of
from hermes_protocol.decoders import decoder
from hermes_protocol.operations import MessageAppend, Operation, result_type

if TYPE_CHECKING:
    from hermes_actor.providers.sql.dialect import ServerDialect

__all__ = [
    "KEPT_CHANGES", "NIL", "SESSIONS", "About", "Served", "Ticket", "Tickets", "apply_and_note",
    "apply_once", "note_of",
]  # fmt: skip

KEPT_CHANGES = 100_000
"""Receipts that are always kept: a subscriber may be that many changes behind."""
_SWEEP_EVERY = 1_000
_encode = msgspec.msgpack.Encoder().encode


class About(NamedTuple):
    """The words of a change that subscribers read."""

    op: str
    subject: str | None


class Served(NamedTuple):
    """The use of a database: a session store, or an agent store."""

    name: str
    ensure: Callable[[Engine, ServerDialect], None]
    """Creates or migrates the tables."""
    apply: Callable[[ServerConnection, Operation[Any]], Any]
    about: Callable[[Operation[Any]], About]


class Ticket(NamedTuple):
    """One change and the key under which it is applied at most once."""

    client: str
    seq: int
    digest: str
    operation: Operation[Any]


class Tickets:
    """Issuer of tickets: one client id per process, and consecutive numbers."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.client = os.urandom(16).hex()
        self._seq = 0

    def issue(self, operation: Operation[Any]) -> Ticket:
        """Return the ticket for a change, under the next number of this client.

        Raises ``UnicodeEncodeError`` for text with lone surrogates, and ``TypeError`` for a value
        that msgpack cannot encode.
        """
        digest = hashlib.blake2b(_encode(operation), digest_size=16).hexdigest()
        with self._guard:
            self._seq += 1
            return Ticket(self.client, self._seq, digest, operation)

    def after_fork(self) -> None:
        """Take a new client id in a forked child: the numbers of the old one are the parent's."""
        self.__init__()  # type: ignore[misc]


NIL = _encode(None)
"""The result of a change that has none."""
_BY_TICKET = (changes.c.client == bindparam("of_client"), changes.c.seq == bindparam("of_seq"))
_FIND = select(changes.c.digest, changes.c.result).where(*_BY_TICKET)
_NOTE_RESULT = update(changes).where(*_BY_TICKET).values(result=bindparam("answer"))


def _apply(conn: ServerConnection, operation: Operation[Any]) -> Any:
    function = APPLY.get(type(operation))
    if function is None:
        name = type(operation).__name__
        raise Unsupported(f"{name} is an operation on files; this store is on a server")
    return function(conn, operation)


def _about(operation: Operation[Any]) -> About:
    note = change_of(operation, 0)
    return About(note.op, note.session_id)


SESSIONS = Served("sessions", ensure_schema, _apply, _about)


def note_of(ticket: Ticket, served: Served = SESSIONS) -> dict[str, Any]:
    """Return the columns of the receipt of *ticket*, but the result."""
    about = served.about(ticket.operation)
    return {
        "client": ticket.client,
        "seq": ticket.seq,
        "digest": ticket.digest,
        "op": about.op,
        "session_id": about.subject,
    }


def apply_once(conn: ServerConnection, ticket: Ticket, served: Served = SESSIONS) -> Any:
    """Apply the change of *ticket* unless it was applied before; return its result in both cases.

    Raises :class:`KeyReused` if another change has this key, :class:`Unsupported` for an operation
    on files.
    """
    kind = type(ticket.operation)
    key = {"of_client": ticket.client, "of_seq": ticket.seq}
    note = {**note_of(ticket, served), "result": NIL}
    if not conn.dialect.insert_if_absent(conn, changes, note):
        ((digest, result),) = conn.tuples(_FIND, key)
        if digest != ticket.digest:
            raise KeyReused(f"change {ticket.seq} was another one before")
        return decoder(result_type(kind)).decode(result)
    _check_turn(conn, ticket.operation)
    result = _double_of(conn, ticket.operation)
    if result is None:
        result = served.apply(conn, ticket.operation)
    if result is not None:
        conn.execute(_NOTE_RESULT, {**key, "answer": _encode(result)})
    conn.dialect.notify_subscribers(conn)
    return result


def apply_and_note(conn: ServerConnection, ticket: Ticket, served: Served = SESSIONS) -> Any:
    """Apply the change of *ticket*, and then insert its receipt with the result; return that.

    Raises ``IntegrityError`` if there is a receipt already. The change was then made once more, and
    its transaction has to be rolled back.
    """
    result = served.apply(conn, ticket.operation)
    conn.execute(insert(changes), {**note_of(ticket, served), "result": _encode(result)})
    conn.dialect.notify_subscribers(conn)
    return result


def _check_turn(conn: ServerConnection, operation: Any) -> None:
    """Compare the turn of a change, or raise :class:`TurnRequired` if there has to be one."""
    required = conn.dialect.settings.rules.turns_required
    if not required and not getattr(operation, "turn", 0):
        return
    # Late: it uses the modules that apply operations.
    from hermes_actor.providers.sql import gateway

    if getattr(operation, "turn", 0):
        gateway.fence_operation(conn, operation)
    else:
        gateway.require_turn(conn, operation, required)


def _double_of(conn: ServerConnection, operation: Any) -> int | None:
    """Return the message that an append repeats, where the settings merge the two."""
    if not conn.dialect.settings.rules.merges_doubles or type(operation) is not MessageAppend:
        return None
    from hermes_actor.providers.sql import gateway

    return gateway.double_of(conn, operation)


def sweep_is_due(ticket: Ticket) -> bool:
    """Return True for every thousandth change of a client."""
    return ticket.seq % _SWEEP_EVERY == 0


def sweep(conn: ServerConnection) -> None:
    """Remove receipts that are older than an hour and at least 100,000 changes back."""
    newest = conn.scalar(select(func.max(changes.c.commit_no))) or 0
    conn.execute(
        delete(changes).where(
            changes.c.commit_no <= newest - KEPT_CHANGES, changes.c.at < conn.dialect.one_hour_ago()
        )
    )
