"""One connection to the actor, shared by all threads of a process.

No thread of its own. Of the threads that wait for a reply one reads for all, and wakes the others
when their replies are there. A thread with something to send waits for the kernel itself. A lost
connection is replaced, with an actor started if there is none, and everything unanswered is sent
again; callers notice nothing but the time.

A signal handler may raise at any instruction, in any of this. The rules that keep it sound:

* *lock* guards all state. It is entered by ``with`` alone, which the interpreter never leaves
  half-way, and nothing waits inside: calls of the kernel there are non-blocking.
* The stream guards itself (see :mod:`hermes_actor.client.exchange`).
* The reader is a hint that spares wake-ups, not a right. Any thread may read under *lock*, so two
  readers do no harm, and one that has gone without a word is replaced when its time is over.
* One thread connects at a time, by a lock that knows its owner (:class:`ConnectLock`).
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import hermes_protocol.messages as wire
from hermes_actor.client.connect import RetryPolicy, connect, program_name
from hermes_actor.client.exchange import Exchange, Sending
from hermes_actor.client.protocol import client_protocol
from hermes_actor.client.upgrade import handoff_request
from hermes_actor.errors import Closed, HermesActorError
from hermes_protocol.client import PendingReply
from hermes_protocol.framing import frame

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["ActorConnection"]

_now = time.monotonic

_LOOK_SECONDS = 0.25
"""Longest wait of a thread before it checks again. Bounds the cost of a lost wake-up."""


class ConnectLock:
    """A right that one thread has at a time, also while it waits for something else.

    The lock itself knows whose it is. So :meth:`leave` may be called twice, or in vain, and an
    exception between taking the turn and noting that it was taken does no harm.
    """

    def __init__(self) -> None:
        # An RLock although no thread takes it twice: it alone knows its owner, so that release() in
        # another thread raises instead of ending that thread's turn.
        self._lock = threading.RLock()

    def take(self, deadline: float) -> bool:
        """Wait for it; false if the time is over first."""
        seconds = min(max(0.0, deadline - _now()), threading.TIMEOUT_MAX)
        return self._lock.acquire(timeout=seconds)

    def leave(self) -> None:
        """Give it up if this thread has it. Harmless otherwise, and any number of times."""
        with contextlib.suppress(RuntimeError):  # it is not, or no longer, ours
            while True:
                self._lock.release()


class _Waiter:
    """One thread that waits: asleep for its bell, or for *events* of the socket."""

    __slots__ = ("bell", "done", "events", "fd", "steps", "until")

    def __init__(self, done: Callable[[], bool], steps: Sequence[PendingReply]) -> None:
        self.done = done
        self.steps = steps
        self.until = 0.0
        self.events = self.fd = 0
        self.bell: threading.Lock

    def wait(self, seconds: float) -> None:
        if self.events:
            ready = select.poll()
            ready.register(self.fd, self.events)
            # A millisecond more: woken just before its time, the thread would only wait again.
            ready.poll(seconds * 1000 + 1)
        else:
            self.bell.acquire(timeout=seconds)


class ActorConnection:
    """The exchange of a client, and its connection.

    Hold *lock* to use ``protocol`` or ``exchange``, and for every method that says so.
    """

    def __init__(self, paths: StorePaths, kind: str) -> None:
        self.paths = paths
        self.kind = kind
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self.lock = threading.RLock()
        self.protocol = client_protocol(
            program_name(), partial(handoff_request, self.paths), kind=self.kind
        )
        self.exchange = Exchange(self.paths, self.protocol)
        # Apart from *lock*: connecting waits, and nothing may wait inside *lock*.
        self._connecting = ConnectLock()
        self._reader: _Waiter | None = None
        self._asleep: dict[_Waiter, None] = {}

    # --- sending ---------------------------------------------------------------------------------

    def request(self, steps: list[PendingReply], operation: bytes, deadline: float) -> None:
        """Number an encoded operation, as the next of *steps*, once there is room for it.

        :meth:`flush` or :meth:`wait` sends it. Raises :class:`DeadlineExceeded` without room.
        """
        began = None
        while True:
            # In one step: between two, another thread could take the last place.
            with self.lock:
                if self.exchange.has_room():
                    self.exchange.request(steps, operation, deadline)
                    return
            # Outside of the lock from here on, so that others can send and read meanwhile.
            began = began or _now()
            if _now() >= deadline:
                raise self.exchange.no_room(began)
            self.ensure_connected(deadline)
            self._work(self.exchange.has_room, deadline)

    def ask(self, make: Any, deadline: float) -> PendingReply:
        """Queue an ask, and send it as far as the kernel takes it. Held."""
        reply = self.exchange.ask(make, deadline)
        self.flush()
        return reply

    def flush(self) -> None:
        """Give the kernel what it takes now, or leave it to the next connection. Held."""
        if self.exchange.sock is not None:
            try:
                self.exchange.send()
            except OSError:
                self._disconnect()

    def send(self, steps: Sequence[PendingReply], deadline: float) -> None:
        """Wait until the kernel has taken *steps*, the connection is lost, or the time is over."""
        with self.lock:
            self.flush()
            if not self.exchange.holds(steps):
                return
        self._work(lambda: not self.exchange.holds(steps), deadline, steps)

    def withdraw(self, steps: Sequence[PendingReply]) -> bool:
        """Take back what has not left; true if the operation of *steps* is not executed."""
        with self.lock:
            withdrawn = self.exchange.withdraw(steps)
            self._end_if_unused()
        return withdrawn

    def break_off(self, sendings: Sequence[Sending], error: BaseException) -> bool:
        """Stop sending half-way; see :meth:`Exchange.break_off`."""
        with self.lock:
            return self.exchange.break_off(sendings, error)

    def interrupt(self, steps: Sequence[PendingReply]) -> None:
        """Have the actor end what runs for *steps*, for which another thread waits."""
        with self.lock:
            self.exchange.interrupt(steps)
            self.flush()

    # --- answers ---------------------------------------------------------------------------------

    def wait(self, steps: Sequence[PendingReply]) -> bytes:
        """Return the result of the last of *steps*, or raise the first error.

        An error at the deadline says truthfully whether the operation was executed.
        """
        deadline = steps[-1].deadline
        for reply in steps:
            while not reply.done:
                self._work(reply.is_done, deadline, steps)
                if not reply.done:
                    self._retry_or_give_up(steps, deadline)
            # A closed client ends with the last of its calls, and this may be the last.
            if self.closed:
                with self.lock:
                    self._end_if_unused()
            if reply.error is not None:
                raise reply.error
        result = steps[-1].result
        assert result is not None
        return result

    def _retry_or_give_up(self, steps: Sequence[PendingReply], deadline: float) -> None:
        """Connect again, which sends the request again; raises if that fails or time is over."""
        cause: HermesActorError | None = None
        if self.exchange.sock is None:
            try:
                self._reconnect(deadline)
                return
            except HermesActorError as failed:
                cause = failed
        elif _now() < deadline:
            return
        with self.lock:
            error = self.exchange.give_up(steps, cause)
            if self.exchange.torn:
                self._disconnect()
            self._end_if_unused()
        raise error from cause

    def _work(
        self, done: Callable[[], bool], deadline: float, steps: Sequence[PendingReply] = ()
    ) -> None:
        """Send and read until *done*, until the connection is lost, or until the time is over."""
        me = _Waiter(done, steps)
        try:
            while True:
                with self.lock:
                    seconds = self._pump_once(me, deadline)
                if seconds is None:
                    return
                me.wait(seconds)
        except BaseException:
            with self.lock:
                self._leave(me)
            raise

    def _pump_once(self, me: _Waiter, deadline: float) -> float | None:
        """Do what can be done now; how long *me* waits next, ``None`` at the end. Held."""
        exchange, reader, now = self.exchange, self._reader, _now()
        if self._asleep:
            self._asleep.pop(me, None)
        if exchange.torn:
            # A signal handler has raised between a call of the kernel and the note of it.
            self._disconnect()
        if now >= deadline:
            # Although another thread may be the reader: it may sleep, with the reply in the socket.
            self._read()
        else:
            if exchange.frames:
                self.flush()
            if reader is me:
                self._read()
        if me.done() or exchange.sock is None or now >= deadline:
            self._leave(me)
            return None
        seconds = min(deadline - now, _LOOK_SECONDS)
        # Not until the deadline: a wake-up that was lost with an interrupted thread costs a quarter
        # of a second and not the call.
        me.until = now + seconds
        if reader is None or reader is me or reader.until + _LOOK_SECONDS < now:
            self._reader = me
            me.fd = exchange.sock.fileno()
            me.events = select.POLLIN | select.POLLOUT if exchange.frames else select.POLLIN
        # Polls for room itself: the reader may have begun to poll, for input alone, before there
        # was anything to send.
        elif exchange.holds(me.steps):
            me.fd, me.events = exchange.sock.fileno(), select.POLLOUT
        else:
            # A new lock each time: a release that comes late rings a bell that no thread hears.
            me.bell, me.events = threading.Lock(), 0
            me.bell.acquire()
            self._asleep[me] = None
        return seconds

    def _leave(self, me: _Waiter) -> None:
        """Stop waiting; have another one read. Held."""
        self._asleep.pop(me, None)
        if self._reader is me:
            self._reader = None
            # One is enough: it reads for all.
            for other in self._asleep:
                self._wake(other)
                break

    def _wake(self, waiter: _Waiter) -> None:
        del self._asleep[waiter]  # so that it is woken once: the bell is a lock
        waiter.bell.release()

    def _read(self) -> None:
        """Take what has arrived, and wake the threads that have their reply. Held."""
        try:
            answered = self.exchange.receive()
        except OSError:
            self._disconnect()
            return
        if answered and self._asleep:
            for waiter in [waiter for waiter in self._asleep if waiter.done()]:
                self._wake(waiter)

    # --- the connection --------------------------------------------------------------------------

    def ensure_connected(self, deadline: float) -> None:
        """Connect, unless there is a connection. Raises as :func:`connect`, and :class:`Closed`."""
        if self.closed:
            raise Closed(f"the connection for {self.paths.db} was closed")
        if self.exchange.sock is None:
            self._reconnect(deadline)

    def _reconnect(self, deadline: float) -> None:
        """Connect, unless another thread has meanwhile. One thread connects for all."""
        retries = RetryPolicy(self.paths, deadline)
        try:
            try:
                if not self._connecting.take(deadline):
                    raise retries.deadline_exceeded("another thread is connecting")
                # Checked again with the turn: the thread before may have connected for all.
                if self.exchange.sock is None:
                    self._adopt(connect(self.paths, self.protocol, retries))
            finally:
                self._connecting.leave()
        finally:
            # Twice: a signal handler may raise before the first one, or inside it.
            self._connecting.leave()

    def _adopt(self, sock: socket.socket) -> None:
        try:
            with self.lock:
                self.exchange.begin(sock)
                self.flush()
        except BaseException:
            if self.exchange.sock is not sock:
                sock.close()
            raise

    def _disconnect(self) -> None:
        """Drop the connection; the threads that wait connect again. Held."""
        sock = self.exchange.end()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes those that poll it
            sock.close()
        for waiter in list(self._asleep):
            self._wake(waiter)

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more calls. The connection ends with the last call that is under way.

        Sends Bye then, so that the actor forgets this client. Waits for nothing.
        """
        with self.lock:
            self.closed = True
            self._end_if_unused()

    def _end_if_unused(self) -> None:
        """After :meth:`close`, when nothing is under way any more: end the connection. Held."""
        if self.closed and self.protocol.is_idle and self.exchange.sock is not None:
            with contextlib.suppress(OSError):
                if not self.exchange.frames and not self.exchange.torn:
                    self.exchange.sock.send(frame(wire.Bye()))
            self._disconnect()

    def __del__(self) -> None:
        # Closed while a call was interrupted, whose reply no thread has read since.
        if self.exchange.sock is not None:
            self.exchange.sock.close()

    def after_fork(self) -> None:
        """Become another client, in a child, with a connection of its own."""
        sock = self.exchange.sock
        # First new locks and a new id: a lock of the parent may be held by a thread that is not
        # here, and under the old id the child would supersede its parent.
        self._begin()
        if sock is not None:
            # This copy only; the parent's connection stays open.
            sock.close()
