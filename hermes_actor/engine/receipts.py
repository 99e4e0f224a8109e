"""Exactly once: durable notes of what was applied for whom.

Each request of a client has the next number of its own sequence. Its receipt is written in the
transaction of the change, so the two cannot disagree. Rules:

1. A seq at or below the highest executed one of its client is never executed again. It is
   answered from its receipt; a receipt with another digest means that a number was used twice.
2. At first contact the highest seq is read from the receipts. The newest receipt of a client is
   therefore never removed while the client may come back.
3. Receipts go when the client has its answers (``acked_through``, good-bye). What crashed clients
   leave is swept by distance in commits, never by the clock, and the sweep raises
   ``swept_through``.
4. A seq without receipt from a client without receipts was never applied if the client knew a
   ``commit_no`` at or above ``swept_through`` when it first sent it, or one at or above the floor
   of its connection: then it was first sent on this connection. Otherwise its outcome is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hermes_actor import limits
from hermes_actor.engine.jobs import Outcome
from hermes_actor.engine.meta_table import set_internal
from hermes_actor.errors import (
    HermesActorError,
    KeyReused,
    OutcomeUnknown,
    RequestError,
    without_origin,
)
from hermes_actor.store.rows import scalar

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["NO_FLOOR", "Receipts", "Ticket"]

NO_FLOOR = 2**63 - 1
"""The floor of a connection without a Welcome: what it sends may have been sent before."""


class Ticket(NamedTuple):
    """The client and number of a request: the key under which it is applied at most once.

    Nothing has a default: a host that forgets one of these decides wrongly about old requests.
    """

    client: bytes
    seq: int
    digest: bytes
    after: int
    acked_through: int
    floor: int
    """The ``commit_no`` that the Welcome of its connection named, or :data:`NO_FLOOR`."""


@dataclass(slots=True)
class _Client:
    highest: int
    pruned: int = 0


class Receipts:
    """The receipts of one database, with what must be remembered of its clients."""

    def __init__(self, swept_through: int = 0) -> None:
        self.replayed = 0
        self.swept_through = swept_through
        self._clients: dict[bytes, _Client] = {}
        self._pending: dict[bytes, int] = {}
        self._refusals: dict[tuple[bytes, int], HermesActorError] = {}

    def find(self, conn: Connection, ticket: Ticket, *, again: bool = False) -> Outcome | None:
        """Return the answer that a request has had before; ``None``: it is to be applied now.

        *again*: one that was never applied may be applied behind later ones of its client.
        """
        client = self._clients.get(ticket.client) or self._meet(conn, ticket.client)
        # What the open transaction has recorded counts: one number may come twice in a batch.
        highest = self._pending.get(ticket.client, client.highest)
        if ticket.seq > highest:
            # Above a receipt that is there, nothing was ever applied (rule 2). First sent on this
            # connection ``after`` is not below the floor. Sent again it may be, and then only what
            # was never swept is known never to have been applied.
            if client.highest or ticket.after >= min(ticket.floor, self.swept_through):
                return None
            return Outcome(error=_unknown(ticket))
        receipt = conn.execute(
            "SELECT commit_no, digest, result FROM hermes_actor_receipts"
            " WHERE client = ? AND seq = ?",
            (ticket.client, ticket.seq),
        ).fetchall()
        self.replayed += 1
        if receipt:
            commit_no, digest, result = receipt[0]
            if digest != ticket.digest:
                return Outcome(error=KeyReused(f"request {ticket.seq} was another one before"))
            return Outcome(msgspec.Raw(result), None, commit_no, replayed=True)
        refusal = self._refusals.get((ticket.client, ticket.seq))
        if refusal is not None:
            return Outcome(error=refusal, replayed=True)
        # No receipt, and none was removed that could have been its own: it was not applied.
        if ticket.seq > client.pruned and ticket.after >= self.swept_through:
            if again:
                return None
            return Outcome(error=RequestError("it was refused before; the reason is lost"))
        return Outcome(error=_unknown(ticket))

    def _meet(self, conn: Connection, client_id: bytes) -> _Client:
        highest = scalar(
            conn, "SELECT MAX(seq) FROM hermes_actor_receipts WHERE client = ?", (client_id,)
        )
        # What was pruned is not known any more, and need not be: its client has the answer, and
        # what it had sent before went with the connections of the last actor.
        client = self._clients[client_id] = _Client(highest or 0)
        return client

    def record(self, conn: Connection, ticket: Ticket, commit_no: int, result: bytes) -> None:
        """Write the receipt of a request inside the transaction that applies it."""
        conn.execute(
            "INSERT INTO hermes_actor_receipts VALUES (?, ?, ?, ?, ?)",
            (ticket.client, ticket.seq, commit_no, ticket.digest, result),
        )
        known = self._pending.get(ticket.client, self._clients[ticket.client].highest)
        self._pending[ticket.client] = max(known, ticket.seq)
        if self._refusals:
            # Refused once, sent again and applied: from here on only its receipt may answer.
            self._refusals.pop((ticket.client, ticket.seq), None)
        client = self._clients[ticket.client]
        if ticket.acked_through - client.pruned >= limits.RECEIPTS_PRUNED_AT_ONCE:
            conn.execute(
                "DELETE FROM hermes_actor_receipts WHERE client = ? AND seq <= ?",
                # Never its own, whatever the client claims: by the newest one the next owner knows
                # what was applied (rule 2).
                (ticket.client, min(ticket.acked_through, ticket.seq - 1)),
            )

    def refused(self, ticket: Ticket, error: BaseException) -> HermesActorError:
        """Remember why a request failed, for a client that asks again; the error to answer with.

        Neither keeps anything of the request: an exception holds on to the frames in which it was
        raised, and they to the values of the operation. Of all refusals the latest are kept; one
        that is forgotten is still answered with ``executed = "no"``.
        """
        plain = without_origin(error)
        # So that it goes to the end: the oldest are forgotten first.
        self._refusals.pop((ticket.client, ticket.seq), None)
        self._refusals[ticket.client, ticket.seq] = plain
        while len(self._refusals) > limits.REFUSALS_KEPT:
            del self._refusals[next(iter(self._refusals))]
        return plain

    def committed(self, tickets: list[Ticket]) -> None:
        """Remember what the committed transaction of these requests holds."""
        for ticket in tickets:
            client = self._clients.get(ticket.client)  # not met: its request could not be read
            if client is None:
                continue
            # Here, not in record(): until the commit the receipts are there.
            if ticket.acked_through - client.pruned >= limits.RECEIPTS_PRUNED_AT_ONCE:
                client.pruned = ticket.acked_through
        for client_id, highest in self._pending.items():
            self._clients[client_id].highest = highest
        self._settled()

    def rolled_back(self) -> None:
        """Forget what the open transaction would have held."""
        self._settled()

    def _settled(self) -> None:
        self._pending.clear()
        if len(self._clients) > limits.CLIENTS_KNOWN:
            # Each is met again when it asks; what has crashed never does.
            self._clients.clear()

    def forget(self, conn: Connection, client_id: bytes) -> None:
        """Remove the receipts of a client that will not come back, inside a transaction."""
        conn.execute("DELETE FROM hermes_actor_receipts WHERE client = ?", (client_id,))
        conn.execute("DELETE FROM hermes_actor_stage WHERE client = ?", (client_id,))
        self._clients.pop(client_id, None)

    def sweep_is_due(self, commit_no: int) -> bool:
        """Return True if a sweep at *commit_no* would remove enough to be worth its reading."""
        distance = commit_no - limits.RECEIPTS_KEPT_COMMITS - self.swept_through
        return distance >= limits.RECEIPTS_SWEEP_EVERY_COMMITS

    def sweep(self, conn: Connection, commit_no: int) -> int:
        """Remove, inside a transaction, what was not asked for over many commits; through where.

        After its commit the caller calls :meth:`swept`: until then the receipts are there.
        """
        through = commit_no - limits.RECEIPTS_KEPT_COMMITS
        conn.execute("DELETE FROM hermes_actor_receipts WHERE commit_no <= ?", (through,))
        conn.execute("DELETE FROM hermes_actor_stage WHERE commit_no <= ?", (through,))
        # In the same transaction: without it, a receipt that was swept would look like a change
        # that was never made, and the change would be made twice (G2).
        set_internal(conn, "swept_through", through)
        return through

    def swept(self, through: int) -> None:
        """Remember a sweep, once it is committed."""
        self.swept_through = through
        # What memory knows of clients is read again from what is left; those that are gone go.
        self._clients.clear()


def _unknown(ticket: Ticket) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"request {ticket.seq} may have been executed long ago; its receipt has been swept"
    )
