"""The open requests of one client: what its messages become, and the replies to them.

The thread that reads a connection brings its messages; the writer thread finishes the jobs that
they become. A request counts as open from its admission until its reply is in the outbox.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.actor.replies import done, failed, ok
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Outcome, Request, lease_lost
from hermes_actor.engine.receipts import NO_FLOOR, Ticket
from hermes_protocol.operations import SqlLease

if TYPE_CHECKING:
    from collections import deque

    from hermes_actor.actor.mailbox import Mailbox
    from hermes_actor.actor.metrics import Metrics

__all__ = ["LeaseMessage", "RequestTracker"]

LeaseMessage = wire.LeaseOpen | wire.LeaseRun | wire.LeaseCommit | wire.LeaseRollback


class Replies(Protocol):
    """The way out: an :class:`~hermes_actor.actor.outbox.Outbox`."""

    def add(self, frame: bytes) -> None:
        """Put a frame in; it leaves when the outbox is flushed. Safe in any thread."""
        ...


R = TypeVar("R", bound=Replies)


class RequestTracker(Generic[R]):
    """The open requests, asks and leases of one client."""

    def __init__(
        self,
        mailbox: Mailbox,
        metrics: Metrics,
        outbox: R,
        unflushed: deque[R],
        *,
        is_there: Callable[[], bool] = lambda: True,
        describe: Callable[[], str] = lambda: "a client",
        holder: Callable[[], jobs.LeaseHolder] = lambda: jobs.LeaseHolder("a client", 0),
        favour: Callable[[bytes | None], None] = lambda _client: None,
    ) -> None:
        """Replies go into *outbox*, which joins *unflushed* until the end of the batch.

        *is_there* returns True if the client still listens, in any thread; *describe* names it for
        people, *holder* for its leases. *favour* gets the client while it holds a lease, and
        ``None`` after that.
        """
        self.client_id = b""
        self.highest_seq = 0
        self.admitted = 0
        self.floor = NO_FLOOR
        self.on_room: Callable[[], None] = lambda: None
        """Called in either thread when a full window has room again."""
        self._mailbox = mailbox
        self._metrics = metrics
        self._outbox = outbox
        self._unflushed = unflushed
        self._is_there = is_there
        self._describe = describe
        self._holder = holder
        self._favour = favour
        self._window = limits.WINDOW_REQUESTS
        # Counts change in both threads: the event loop admits, the writer thread finishes.
        self._guard = threading.Lock()
        self._requests = 0
        self._asks = 0
        self._leases: dict[int, jobs.Lease] = {}
        self._hold: jobs.Hold | None = None
        # The latest: what is older was answered long ago.
        self._interrupted: dict[int, None] = {}
        self._on_settled: Callable[[], None] | None = None
        self._on_empty: Callable[[], None] | None = None

    @property
    def is_full(self) -> bool:
        """True if the window is full: nothing more is read until a reply is in the outbox."""
        return self._requests + self._asks >= self._window

    @property
    def is_settled(self) -> bool:
        """True if every request is answered."""
        return not self._requests

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call *call*, in either thread, when every request is answered; at once if that is so."""
        with self._guard:
            self._on_settled = call
        self._notify_if_done()

    def when_empty(self, call: Callable[[], None]) -> None:
        """Call *call*, in either thread, when every request and every ask is answered."""
        with self._guard:
            self._on_empty = call
        self._notify_if_done()

    def _notify_if_done(self) -> None:
        settled = empty = None
        with self._guard:
            if not self._requests:
                settled, self._on_settled = self._on_settled, None
                if not self._asks:
                    empty, self._on_empty = self._on_empty, None
        # Outside of the guard: they call into other objects, with locks of their own.
        for call in (settled, empty):
            if call is not None:
                call()

    # --- requests --------------------------------------------------------------------------------

    def admit(self, message: wire.Request, landed: Callable[[], None]) -> jobs.Call:
        """Return the job of a request, which is open from now on; the caller puts it in the
        mailbox.

        *landed* is called, in the writer thread, when the request is answered.
        """
        self.admitted += 1
        self.highest_seq = max(self.highest_seq, message.seq)
        # Kept in the receipt: a number that comes again with another operation is refused instead
        # of being answered with a result that is not its own. 8 bytes: against mistakes, not
        # attacks.
        digest = hashlib.blake2b(message.operation, digest_size=8).digest()
        ticket = self._ticket(message, digest)
        arrived = time.monotonic()

        def finish(outcome: Outcome) -> None:
            # The reply is in the outbox before its bytes are given back and the request counts as
            # answered: what is answered is bounded as well as what waits (G8). Both happen whatever
            # the reply raises, or else the window would stay one place smaller for ever.
            try:
                self._reply(message.seq, outcome)
                self._metrics.answered(outcome, time.monotonic() - arrived)
            finally:
                landed()
                self._request_ended()

        deadline = _deadline(message.timeout)
        # Before the caller puts the job in the mailbox: the writer may finish it at once.
        self._request_began()
        stops = partial(self._interrupted.__contains__, message.seq)
        return jobs.Call(finish, Request(message.operation, deadline, ticket, stops))

    def _ticket(self, message: wire.Request | wire.LeaseCommit, digest: bytes) -> Ticket:
        return Ticket(
            self.client_id, message.seq, digest, message.after, message.acked_through, self.floor
        )

    def _reply(self, seq: int, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._outbox.add(failed(seq, outcome.error))
        else:
            self._outbox.add(ok(seq, outcome.commit_no, outcome.result))
        self._unflushed.append(self._outbox)

    def _request_began(self) -> None:
        with self._guard:
            self._requests += 1

    def _request_ended(self) -> None:
        with self._guard:
            was_full = self.is_full
            self._requests -= 1
        self._less_open(was_full)

    def _less_open(self, was_full: bool) -> None:
        # Only then: each call is a turn of the event loop.
        if was_full:
            self.on_room()
        if self._on_settled is not None or self._on_empty is not None:
            self._notify_if_done()

    def interrupt(self, number: int) -> None:
        """Have the statement of a request or an ask end, if it runs or is yet to run."""
        self._interrupted[number] = None
        if len(self._interrupted) > limits.WINDOW_REQUESTS * 2:
            del self._interrupted[next(iter(self._interrupted))]

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
        """Have a piece of maintenance done, behind what this client has sent before."""
        finish = self._asked(message.ask, landed)
        deadline = _deadline(message.timeout)
        if message.task == "hold":
            self._hold = jobs.Hold(finish, deadline, self._describe(), self._is_there)
            self._mailbox.put(self.client_id, self._hold)
            return
        job = jobs.Maintain(
            finish, deadline, message.task, message.path, message.expected, self._is_there
        )
        # The writer does not look into the mailbox while it is held: there, this would wait for its
        # own hold to end.
        if self._hold is not None and not self._hold.ended:
            self._hold.put(job)
        else:
            self._mailbox.put(self.client_id, job)

    def forget(self) -> None:
        """Forget a client that has sent Bye: it will not ask for its receipts again."""
        # In the client's own lane, so behind its last requests, whose receipts go with the others.
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
            self._outbox.add(failed(ask, outcome.error))
        else:
            self._outbox.add(done(ask, outcome.result))
        # Once for each reply: to look for it there costs more than an empty flush.
        self._unflushed.append(self._outbox)

    # --- leases ----------------------------------------------------------------------------------

    def lease(self, message: LeaseMessage, landed: Callable[[], None]) -> jobs.Job | None:
        """Take a step of an interactive transaction; it counts as an ask, its commit as a request.

        Returns the job that the caller puts in the mailbox, if it is one for there. In the thread
        that reads the connection. The holder of a lease has a second window. What it has sent
        behind the lease waits for the lease: if that kept its commands out, the lease could only
        run out.
        """
        if isinstance(message, wire.LeaseOpen):
            return self._open_lease(message, landed)
        lease = self._leases.get(message.lease)
        if isinstance(message, wire.LeaseCommit):
            return self._commit_lease(message, lease, landed)
        finish = self._asked(message.ask, landed)
        if lease is None:
            finish(Outcome(error=lease_lost()))
            return None
        statement = None
        if isinstance(message, wire.LeaseRun):
            self._metrics.statements += 1
            statement = message.statement
        stops = partial(self._interrupted.__contains__, message.ask)
        lease.put(jobs.LeaseStep(statement, None, finish, stops))
        return None

    def _open_lease(self, message: wire.LeaseOpen, landed: Callable[[], None]) -> jobs.Lease:
        finish = self._asked(message.ask, landed)
        self._metrics.leases += 1
        # Leases that ended without another message of their client would pile up here. The latest
        # stay: they know why they have ended.
        over = [number for number, lease in self._leases.items() if lease.ended]
        for number in over[: -limits.LEASES_REMEMBERED]:
            del self._leases[number]
        first = None if message.first == wire.NIL else message.first
        stops = partial(self._interrupted.__contains__, message.ask)
        terms = jobs.LeaseTerms(first, message.settings, message.seconds, message.pause, stops)
        lease = jobs.Lease(
            finish,
            _deadline(message.timeout),
            self._lead,
            terms,
            self._holder(),
            self._mailbox.notice_step,
        )
        self._leases[message.lease] = lease
        return lease

    def _lead(self, leads: bool) -> None:
        """Widen the window while a lease is granted, and restore it. Writer thread only."""
        self._window = limits.WINDOW_REQUESTS * (2 if leads else 1)
        self._favour(self.client_id if leads else None)
        # The reader may be waiting at the smaller window, before the next command.
        if leads:
            self.on_room()

    def _commit_lease(
        self, message: wire.LeaseCommit, lease: jobs.Lease | None, landed: Callable[[], None]
    ) -> jobs.Call | None:
        # A commit has no operation to compare; the lease that it ends identifies it as well.
        digest = hashlib.blake2b(b"lease %d" % message.lease, digest_size=8).digest()
        self.highest_seq = max(self.highest_seq, message.seq)
        ticket = self._ticket(message, digest)
        request = Request(SqlLease(lease=message.lease), _deadline(None), ticket)

        def finish(outcome: Outcome) -> None:
            self._reply(message.seq, outcome)
            landed()
            self._request_ended()

        self._request_began()
        if lease is not None and not lease.has_commit:
            # Also if it is over: it says why.
            lease.has_commit = True
            last = None if message.last == wire.NIL else message.last
            stops = partial(self._interrupted.__contains__, message.seq)
            lease.put(jobs.LeaseStep(last, request, finish, stops))
            return None
        # The lease was another connection's, or was committed: only its receipt can answer.
        return jobs.Call(finish, request)

    def abandon(self) -> None:
        """End the leases and the hold of a client that has left or must leave, at once."""
        for lease in self._leases.values():
            lease.abandon()
        if self._hold is not None:
            self._hold.abandon()


def _deadline(timeout: float | None) -> float:
    # Any float may come over the wire. A deadline of NaN is never in the past, so the request would
    # wait for ever.
    if timeout is None or math.isnan(timeout):
        timeout = limits.DEFAULT_TIMEOUT_SECONDS
    return time.monotonic() + min(timeout, limits.TIMEOUT_MAX_SECONDS)
