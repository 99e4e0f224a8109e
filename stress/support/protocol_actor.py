"""A small actor made of the real frames: the other end of the client's protocol in tests."""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any

import msgspec
import pytest

from hermes_actor import limits
from hermes_actor.client.protocol import encode, error_from
from hermes_actor.engine.kinds import SESSIONS
from hermes_actor.engine.meta_table import create_meta_tables, get_internal
from hermes_actor.engine.receipts import Receipts, Ticket
from hermes_actor.errors import HermesActorError
from hermes_actor.sqlite import Connection
from hermes_protocol import messages as wire
from hermes_protocol import operations as ops
from hermes_protocol.framing import (
    FrameBuffer,
    decode_client,
    decode_operation,
    frame,
)

pack = msgspec.msgpack.encode
unpack = msgspec.msgpack.decode

MANY = 2 * limits.RECEIPTS_SWEEP_EVERY_COMMITS
"""Changes after which the next sweep is due for certain."""


class PlainLedger:
    """Receipts by the rules of ``protocol/README.md``, § 6. A restart forgets all but them."""

    def __init__(self) -> None:
        self.receipts: dict[tuple[bytes, int], tuple[int, bytes, bytes]] = {}
        self.swept = 0
        self.highest: dict[bytes, int] = {}
        self.swept_at: dict[bytes, int] = {}
        self.pruned: dict[bytes, int] = {}
        self.refusals: dict[tuple[bytes, int], wire.Failed] = {}

    def restart(self) -> None:
        self.highest, self.swept_at, self.pruned, self.refusals = {}, {}, {}, {}

    def find(self, ticket: Ticket) -> wire.Ok | wire.Failed | None:
        """The answer that a request has had; ``None`` if it is to be applied."""
        client, seq = ticket.client, ticket.seq
        if client not in self.highest:
            known = [s for c, s in self.receipts if c == client]
            self.highest[client], self.swept_at[client] = max(known, default=0), self.swept
        if seq > self.highest[client]:
            never = self.highest[client] or ticket.after >= self.swept_at[client]
            return None if never else unknown(seq)
        if (client, seq) in self.receipts:
            commit_no, digest, result = self.receipts[client, seq]
            if digest != ticket.digest:
                return wire.Failed(seq=seq, code="key-reused", message="another one")
            return wire.Ok(seq=seq, commit_no=commit_no, result=msgspec.Raw(result))
        if (client, seq) in self.refusals:
            return self.refusals[client, seq]
        if seq > self.pruned.get(client, 0) and ticket.after >= self.swept:
            return wire.Failed(seq=seq, code="request", message="refused before")
        return unknown(seq)

    def record(self, ticket: Ticket, commit_no: int, result: bytes) -> None:
        self.receipts[ticket.client, ticket.seq] = commit_no, ticket.digest, result
        self.highest[ticket.client] = ticket.seq
        # At once, where the real one waits for 64 of them: the stricter the better.
        self.pruned[ticket.client] = ticket.acked_through
        for client, seq in list(self.receipts):
            if client == ticket.client and seq <= min(ticket.acked_through, ticket.seq - 1):
                del self.receipts[client, seq]

    def refuse(self, ticket: Ticket, failed: wire.Failed) -> None:
        self.refusals[ticket.client, ticket.seq] = failed

    def sweep(self, through: int) -> None:
        self.swept = through
        self.receipts = {k: r for k, r in self.receipts.items() if r[0] > through}

    def close(self) -> None:
        pass


def unknown(seq: int) -> wire.Failed:
    return wire.Failed(seq=seq, code="unknown", message="swept", executed="unknown")


class RealLedger:
    """The receipts of the product, on tables in memory, pruned as soon as may be."""

    def __init__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(limits, "RECEIPTS_PRUNED_AT_ONCE", 1)
        self.conn = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
        create_meta_tables(self.conn, SESSIONS)
        self.restart()

    def restart(self) -> None:
        self.real = Receipts(get_internal(self.conn, "swept_through") or 0)

    def find(self, ticket: Ticket) -> wire.Ok | wire.Failed | None:
        outcome = self.real.find(self.conn, ticket)
        if outcome is None:
            return None
        if outcome.error is None:
            assert outcome.commit_no is not None
            return wire.Ok(seq=ticket.seq, commit_no=outcome.commit_no, result=outcome.result)
        assert isinstance(outcome.error, HermesActorError)
        code, executed = outcome.error.code, outcome.error.executed
        return wire.Failed(seq=ticket.seq, code=code, message="", executed=executed)

    def record(self, ticket: Ticket, commit_no: int, result: bytes) -> None:
        self.real.record(self.conn, ticket, commit_no, result)
        self.real.committed([ticket])

    def refuse(self, ticket: Ticket, failed: wire.Failed) -> None:
        self.real.refused(ticket, error_from(failed))

    def sweep(self, through: int) -> None:
        kept = limits.RECEIPTS_KEPT_COMMITS
        self.real.swept(self.real.sweep(self.conn, through + kept))
        assert get_internal(self.conn, "swept_through") == through

    def close(self) -> None:
        self.conn.close()
        self.patch.undo()


class Link:
    """One connection: bytes on their way, and what the actor's end remembers of it."""

    def __init__(self) -> None:
        self.to_actor = b""
        self.to_client = b""
        self.buffer = FrameBuffer(limits.FRAME_MAX_BYTES)
        self.client = b""
        self.queue: list[Any] = []
        self.answers: list[bytes] = []
        self.lease: int | None = None
        self.floor = 0
        self.open = True

    def pass_to_client(self, core: Any, amount: int | None = None) -> Any:
        data, self.to_client = cut(self.to_client, amount)
        return core.receive(data)


def cut(data: bytes, amount: int | None) -> tuple[bytes, bytes]:
    amount = len(data) if amount is None else amount
    return data[:amount], data[amount:]


class FakeActor:
    """Keeps the rules of receipts, leases and superseding. ``file`` is what survives it.

    The result of an operation tells which one it was. A ``meta.set`` with value ``False`` is
    refused.
    """

    def __init__(
        self, ledger: PlainLedger | RealLedger | None = None, limits: wire.Limits | None = None
    ) -> None:
        self.ledger = ledger or PlainLedger()
        self.limits = limits or wire.Limits()
        self.file: list[tuple[bytes, int, Any]] = []
        self.commit_no = 0
        self.links: dict[bytes, Link] = {}
        self.parts: dict[tuple[bytes, int, int], bytes] = {}

    def restart(self) -> None:
        self.ledger.restart()
        for link in self.links.values():
            link.open = False
        self.links = {}

    # Bytes.

    def read(self, link: Link, amount: int | None = None) -> None:
        """Read from a connection. Frames become work; a Hello is answered at once."""
        data, link.to_actor = cut(link.to_actor, amount)
        if not link.open:
            return
        link.buffer.feed(data)
        while (body := link.buffer.next_body()) is not None:
            self._take(link, decode_client(body))

    def _take(self, link: Link, message: Any) -> None:
        if isinstance(message, wire.Hello):
            older = self.links.get(message.client_id)
            if older is not None:  # its unread bytes and its queue are dropped
                older.open, older.queue, older.lease = False, [], None
            self.links[message.client_id], link.client = link, message.client_id
            link.floor = self.commit_no
            link.to_client += frame(self._welcome())
        elif isinstance(message, wire.LeaseCommit) and link.lease == message.lease:
            link.lease = None
            self._apply(link, message, ("lease", message.lease))
        elif isinstance(message, wire.LeaseRollback):
            link.lease = None
            link.answers.append(frame(wire.Done(ask=message.ask)))
        else:
            link.queue.append(message)

    def _welcome(self) -> wire.Welcome:
        return wire.Welcome(
            protocol=1, phase="serving", epoch=1, file_id=b"file", limits=self.limits,
            durability="fsync", schema_version=11, build="0", pid=1, commit_no=self.commit_no,
        )  # fmt: skip

    # Work.

    def work(self, link: Link, amount: int | None = None) -> int:
        """Do queued work, as long as no lease is open."""
        done = 0
        while link.open and link.queue and link.lease is None and done != amount:
            done += 1
            message = link.queue.pop(0)
            if isinstance(message, wire.LeaseOpen):
                link.lease = message.lease
                link.answers.append(frame(wire.Done(ask=message.ask)))
            elif isinstance(message, wire.LeaseCommit):
                self._apply(link, message, None)
            elif isinstance(message, wire.Request):
                self._apply(link, message, decode_operation(message.operation))
            else:
                link.answers.append(frame(wire.Done(ask=message.ask)))
        return done

    def _apply(self, link: Link, message: Any, effect: Any) -> None:
        raw = getattr(message, "operation", b"lease %d" % getattr(message, "lease", 0))
        digest = hashlib.blake2b(raw, digest_size=8).digest()
        ticket = Ticket(
            link.client, message.seq, digest, message.after, message.acked_through, link.floor
        )
        answer = self.ledger.find(ticket)
        if answer is None:
            answer = self._do(ticket, effect)
        link.answers.append(frame(answer))

    def _do(self, ticket: Ticket, effect: Any) -> wire.Ok | wire.Failed:
        code = None
        if effect is None:
            code = "deadline"
        elif isinstance(effect, ops.MetaSet) and effect.value is False:
            code = "constraint"
        if code is not None:
            failed = wire.Failed(seq=ticket.seq, code=code, message=f"no: {code}", words="no")
            self.ledger.refuse(ticket, failed)
            return failed
        self.commit_no += 1
        self.file.append((ticket.client, ticket.seq, effect))
        result = pack(self._result(ticket, effect))
        self.ledger.record(ticket, self.commit_no, result)
        return wire.Ok(seq=ticket.seq, commit_no=self.commit_no, result=msgspec.Raw(result))

    def _result(self, ticket: Ticket, effect: Any) -> str | None:
        if isinstance(effect, ops.StagePart):
            self.parts[ticket.client, effect.key, effect.part] = effect.data
            return None
        if isinstance(effect, ops.Staged):
            parts = [self.parts.pop((ticket.client, effect.key, n)) for n in range(effect.parts)]
            whole = decode_operation(b"".join(parts))
            assert isinstance(whole, ops.MetaSet)
            return f"staged {whole.key}"
        return f"lease {ticket.seq}" if isinstance(effect, tuple) else f"set {effect.key}"

    def answer(self, link: Link, which: int = 0) -> None:
        link.to_client += link.answers.pop(which)

    def serve(self, link: Link) -> None:
        """Read, work and answer until nothing is left."""
        self.read(link)
        self.work(link)
        while link.answers:
            self.answer(link)

    def keys(self) -> list[str]:
        return [effect.key for _, _, effect in self.file]


def connect(core: Any, actor: FakeActor) -> Link:
    """A new connection of *core*, on which everything unanswered is on its way again."""
    link = Link()
    link.to_actor += core.hello()
    actor.read(link)
    link.pass_to_client(core)
    assert core.welcome is not None
    link.to_actor += core.resend()
    return link


def submit(
    core: Any,
    link: Link | None = None,
    key: str = "k",
    value: Any = None,
    timeout: float = 30.0,
) -> Any:
    operation = encode(ops.MetaSet(key=key, value=value))
    reply, data = core.request(operation, timeout)
    if link is not None:
        link.to_actor += data
    return reply


def open_lease(core: Any, link: Link) -> tuple[int, Any]:
    """Ask for a lease; its number, and the reply that says when it is granted."""
    number = core.reserve()
    granted, data = core.ask(lambda ask: wire.LeaseOpen(ask=ask, lease=number))
    link.to_actor += data
    return number, granted


def commit_lease(core: Any, link: Link, number: int) -> Any:
    reply, data = core.commit_lease(number)
    link.to_actor += data
    return reply


def sent(data: bytes) -> list[Any]:
    """The messages in some bytes of a client."""
    buffer = FrameBuffer(1 << 30)
    found: list[Any] = []
    buffer.feed(data)
    while (body := buffer.next_body()) is not None:
        found.append(decode_client(body))
    assert len(buffer) == 0
    return found


def ok(seq: int, commit_no: int = 1, result: Any = None) -> bytes:
    return frame(wire.Ok(seq=seq, commit_no=commit_no, result=msgspec.Raw(pack(result))))
