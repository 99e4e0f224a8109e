"""Between one connection and the mailbox: brings requests in, and their answers out.

The event loop brings messages; the writer's thread finishes the jobs that they become. A request
counts as open from its admission until its answer is in the outbox.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.actor.replies import done, failed, ok
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Outcome, Request, lease_over
from hermes_actor.engine.receipts import NO_FLOOR, Ticket
from hermes_protocol.operations import SqlLease

if TYPE_CHECKING:
    from hermes_actor.actor.mailbox import Mailbox
    from hermes_actor.actor.metrics import Metrics

__all__ = ["LeaseMessage", "RequestTracker"]

LeaseMessage = wire.LeaseOpen | wire.LeaseRun | wire.LeaseCommit | wire.LeaseRollback


class RequestTracker:
    """The open business of one client."""

    def __init__(
        self,
        mailbox: Mailbox,
        metrics: Metrics,
        answer: Callable[[bytes], None],
        room: Callable[[], None],
        *,
        is_there: Callable[[], bool] = lambda: True,
        who: Callable[[], str] = lambda: "a client",
        leads: Callable[[bool], None] = lambda _leads: None,
    ) -> None:
        """*answer* takes a frame, in either thread; *room* is called when the window has room,
        *leads* when a lease of the client is granted (true), and when it has ended. *is_there*
        tells, in any thread, whether the client still listens; *who*, for people."""
        self.client_id = b""
        self.highest_seq = 0
        self.admitted = 0
        self.floor = NO_FLOOR
        self._mailbox = mailbox
        self._metrics = metrics
        self._answer = answer
        self._room = room
        self._is_there = is_there
        self._who = who
        self._leads = leads
        self._window = limits.WINDOW_REQUESTS
        self._guard = threading.Lock()
        self._requests = 0
        self._asks = 0
        self._leases: dict[int, jobs.Lease] = {}
        self._hold: jobs.Hold | None = None
        self._on_settled: Callable[[], None] | None = None
        self._on_empty: Callable[[], None] | None = None

    @property
    def is_full(self) -> bool:
        return self._requests + self._asks >= self._window

    @property
    def is_settled(self) -> bool:
        """Whether every request is answered."""
        return not self._requests

    def when_settled(self, call: Callable[[], None]) -> None:
        """Have *call* called, in either thread, when every request is answered; at once if so."""
        with self._guard:
            self._on_settled = call
        self._tell_if_done()

    def when_empty(self, call: Callable[[], None]) -> None:
        """The same when every ask is answered, too."""
        with self._guard:
            self._on_empty = call
        self._tell_if_done()

    def _tell_if_done(self) -> None:
        settled = empty = None
        with self._guard:
            if not self._requests:
                settled, self._on_settled = self._on_settled, None
                if not self._asks:
                    empty, self._on_empty = self._on_empty, None
        for call in (settled, empty):
            if call is not None:
                call()

    # --- requests --------------------------------------------------------------------------------

    def request(self, message: wire.Request, landed: Callable[[], None]) -> None:
        """Admit a request. *landed* is called, in the writer's thread, when it is answered."""
        self.admitted += 1
        self.highest_seq = max(self.highest_seq, message.seq)
        digest = hashlib.blake2b(message.operation, digest_size=8).digest()
        ticket = self._ticket(message, digest)
        arrived = time.monotonic()

        def finish(outcome: Outcome) -> None:
            try:
                self._reply(message.seq, outcome)
                self._metrics.answered(outcome, time.monotonic() - arrived)
            finally:
                landed()
                self._request_ended()

        deadline = _deadline(message.timeout)
        self._request_began()
        self._mailbox.put(
            self.client_id,
            jobs.Call(finish, Request(message.operation, deadline, ticket)),
        )

    def _ticket(self, message: wire.Request | wire.LeaseCommit, digest: bytes) -> Ticket:
        return Ticket(
            self.client_id, message.seq, digest, message.after, message.acked_through, self.floor
        )

    def _reply(self, seq: int, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._answer(failed(seq, outcome.error))
        else:
            self._answer(ok(seq, outcome.commit_no, outcome.result))

    def _request_began(self) -> None:
        with self._guard:
            self._requests += 1

    def _request_ended(self) -> None:
        with self._guard:
            was_full = self.is_full
            self._requests -= 1
        self._less_open(was_full)

    def _less_open(self, was_full: bool) -> None:
        if was_full:
            self._room()
        if self._on_settled is not None or self._on_empty is not None:
            self._tell_if_done()

    # --- asks ------------------------------------------------------------------------------------

    # An ask counts in the window, and keeps its credit, until it is answered; then *landed* is
    # called, in either thread.

    def catch_up(self, message: wire.CatchUp, landed: Callable[[], None]) -> None:
        """Bring the indexes up to a message, between batches."""
        finish = self._asked(message.ask, landed)
        deadline = _deadline(message.timeout)
        job = jobs.IndexBarrier(
            finish, deadline, message.through, damaged=message.damaged, verify=message.verify
        )
        self._mailbox.put(self.client_id, job)

    def maintain(self, message: wire.Maintain, landed: Callable[[], None]) -> None:
        """A piece of maintenance, behind what this client has sent before."""
        finish = self._asked(message.ask, landed)
        deadline = _deadline(message.timeout)
        if message.task == "hold":
            self._hold = jobs.Hold(finish, deadline, self._who(), self._is_there)
            self._mailbox.put(self.client_id, self._hold)
            return
        job = jobs.Maintain(
            finish, deadline, message.task, message.path, message.expected, self._is_there
        )
        if self._hold is not None and not self._hold.ended:
            self._hold.put(job)
        else:
            self._mailbox.put(self.client_id, job)

    def forget(self) -> None:
        """The client has said good-bye."""
        self._mailbox.put(self.client_id, jobs.ForgetClient(lambda _outcome: None, self.client_id))

    def _asked(self, ask: int, landed: Callable[[], None]) -> jobs.OnDone:
        with self._guard:
            self._asks += 1

        def finish(outcome: Outcome) -> None:
            try:
                self._answer_ask(ask, outcome)
            finally:
                landed()
                with self._guard:
                    was_full = self.is_full
                    self._asks -= 1
                self._less_open(was_full)

        return finish

    def _answer_ask(self, ask: int, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._answer(failed(ask, outcome.error))
        else:
            self._answer(done(ask, outcome.result))

    # --- leases ----------------------------------------------------------------------------------

    def lease(self, message: LeaseMessage, landed: Callable[[], None]) -> None:
        """One step of an interactive transaction; counted like an ask, its commit like a request.

        The holder of a lease has a second window. What it has sent behind the lease waits for the
        lease: if that kept its commands out, the lease could only run out.
        """
        if isinstance(message, wire.LeaseOpen):
            self._open_lease(message, landed)
            return
        lease = self._leases.get(message.lease)
        if lease is not None and lease.ended:
            del self._leases[message.lease]
            lease = None
        if isinstance(message, wire.LeaseCommit):
            self._commit_lease(message, lease, landed)
            return
        finish = self._asked(message.ask, landed)
        if lease is None:
            finish(Outcome(error=lease_over()))
            return
        statement = None
        if isinstance(message, wire.LeaseRun):
            self._metrics.statements += 1
            statement = message.statement
        lease.put(jobs.LeaseStep(statement, None, finish))

    @property
    def has_lease(self) -> bool:
        """Whether an interactive transaction is open, or waits for its turn."""
        return any(not lease.ended for lease in self._leases.values())

    def _open_lease(self, message: wire.LeaseOpen, landed: Callable[[], None]) -> None:
        finish = self._asked(message.ask, landed)
        self._metrics.leases += 1
        self._leases = {n: lease for n, lease in self._leases.items() if not lease.ended}
        lease = jobs.Lease(finish, _deadline(message.timeout), self._lead)
        self._leases[message.lease] = lease
        self._mailbox.put(self.client_id, lease)

    def _lead(self, leads: bool) -> None:
        """In the writer's thread: a lease is about to be granted, or has ended."""
        self._window = limits.WINDOW_REQUESTS * (2 if leads else 1)
        self._leads(leads)
        if leads:
            self._room()

    def _commit_lease(
        self, message: wire.LeaseCommit, lease: jobs.Lease | None, landed: Callable[[], None]
    ) -> None:
        digest = hashlib.blake2b(b"lease %d" % message.lease, digest_size=8).digest()
        self.highest_seq = max(self.highest_seq, message.seq)
        ticket = self._ticket(message, digest)
        request = Request(SqlLease(lease=message.lease), _deadline(None), ticket)

        def finish(outcome: Outcome) -> None:
            self._reply(message.seq, outcome)
            landed()
            self._request_ended()

        self._request_began()
        if lease is not None:
            lease.put(jobs.LeaseStep(None, request, finish))
        else:
            # The lease is over or was another connection's: only its receipt can answer.
            self._mailbox.put(self.client_id, jobs.Call(finish, request))

    def abandon(self) -> None:
        """The client is gone or must go: end its leases and its hold at once."""
        for lease in self._leases.values():
            lease.abandon()
        if self._hold is not None:
            self._hold.abandon()


def _deadline(timeout: float | None) -> float:
    if timeout is None or math.isnan(timeout):
        timeout = limits.DEFAULT_TIMEOUT_SECONDS
    return time.monotonic() + min(timeout, limits.TIMEOUT_MAX_SECONDS)
