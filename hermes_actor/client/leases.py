"""Interactive transactions over a connection: the caller's end."""

from __future__ import annotations

import _thread
import contextlib
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.exchange import actor_timeout
from hermes_actor.client.protocol import encode, stages
from hermes_actor.errors import LeaseLost, NotAllowed
from hermes_protocol.client import PendingReply, decode_result
from hermes_protocol.operations import SqlReply, result_type

if TYPE_CHECKING:
    from hermes_actor.client.connection import ActorConnection
    from hermes_actor.client.interfaces import SqlLease
    from hermes_protocol.operations import Operation, SqlResult, SqlRun, SqlStatement

__all__ = ["ActorSqlLease", "Leases"]

R = TypeVar("R")


class Leases:
    """Opens leases, and knows which thread holds one of those that keep it from other calls."""

    def __init__(self, connection: ActorConnection) -> None:
        self._connection = connection
        # Thread and lease. An exception can lose a lease on the way to its holder.
        self._holder: tuple[int, weakref.ref[_Lease]] | None = None

    def refuse_inside(self) -> None:
        """Raises in a thread that holds a lease: the call would wait for its own transaction."""
        if self._holder is None or self._holder[0] != threading.get_ident():
            return
        lease = self._holder[1]()
        if lease is not None and time.monotonic() < lease.lives_until:
            raise NotAllowed("a call inside _execute_write would wait for its own transaction")

    def open(self, timeout: float) -> _Lease:
        """Begin an interactive transaction, and return when the writer has granted it.

        Raises :class:`NotAllowed` in a thread that holds one, and :class:`DeadlineExceeded` if it
        is not granted in time. *timeout* bounds all of its steps together.
        """
        self.refuse_inside()
        deadline = time.monotonic() + timeout
        lease = _Lease(self._connection, deadline)
        try:
            lease.open(timeout)
            self._holder = (threading.get_ident(), weakref.ref(lease))
            return lease
        except BaseException:
            self._holder = None  # if it is another thread's, that one is not warned any more
            lease.give_up()
            raise

    def open_sql(
        self,
        settings: Mapping[str, int | str],
        timeout: float,
        first: SqlRun | None,
        length: tuple[float | None, float | None],
        begun: list[SqlLease] | None,
    ) -> ActorSqlLease:
        """Begin the transaction of a program's connection; see :class:`SqlPort`."""
        lease = ActorSqlLease(self._connection, *length)
        if begun is not None:
            begun.append(lease)
        try:
            lease.open(timeout, settings, first)
        except BaseException:
            lease.give_up()
            raise
        return lease


class _Steps:
    """The steps of a lease. It lives and dies with the connection on which it was opened; only its
    commit outlives it.

    One that is dropped on the way, by an exception of a signal handler or with the object that held
    it, is given up: the actor would keep others waiting for it until its limit.
    """

    def __init__(self, connection: ActorConnection) -> None:
        self._connection = connection
        self._number = 0
        self._sock: socket.socket | None = None
        self._under_way: list[PendingReply] = []
        # Before anything is sent: whatever is raised, every number is given back.
        self._taken: list[int] = []

    def open(self, deadline: float, timeout: float, **terms: Any) -> bytes:
        """Ask for the lease until it is granted, on whatever connection; return the first result.

        Raises :class:`DeadlineExceeded` if it is not granted in time.
        """
        connection = self._connection
        while True:
            connection.ensure_connected(deadline)
            with connection.lock:
                # Number and question go in one step: what is sent later is numbered later.
                self._number = connection.protocol.reserve(self._taken)
                message = partial(
                    wire.LeaseOpen, lease=self._number, timeout=actor_timeout(timeout), **terms
                )
                # Under the same lock as the question: the lease belongs to the connection that
                # carries it.
                self._sock = connection.exchange.sock
                reply = connection.ask(lambda ask, message=message: message(ask=ask), deadline)
                self._under_way = [reply]
            try:
                return connection.wait([reply])
            except (ConnectionResetError, LeaseLost):
                # Another number for the next try: the actor may have granted this one before it
                # was lost.
                self.unreserve()

    def run(self, operation: Operation[R], deadline: float) -> R:
        """Run *operation* in the transaction. Raises :class:`LeaseLost` and its typed error."""
        whole = encode(operation)
        steps = [whole] if whole is not None else stages(self._connection.protocol, operation)
        # One by one: of a statement in parts only the last has a result, and an error stops the
        # rest.
        *_, result = [self._run(step, deadline) for step in steps]
        return decode_result(result, result_type(type(operation)))  # type: ignore[no-any-return]

    def _run(self, step: bytes, deadline: float) -> bytes:
        return self._ask(
            lambda ask: wire.LeaseRun(ask=ask, lease=self._number, statement=msgspec.Raw(step)),
            deadline,
        )

    def commit(self, deadline: float, last: bytes | None = None) -> bytes:
        """Commit, on whatever connection: the actor knows by the number whether it has.

        *last* is an encoded run that goes with it; its reply is returned.
        """
        connection, sent = self._connection, list[PendingReply]()
        self._under_way = sent
        try:
            with connection.lock:
                connection.exchange.commit_lease(self._number, deadline, sent, last)
            result = connection.wait(sent)  # which sends it
        except BaseException:
            # Of one that has left only a reply says more. One that has not is taken back.
            if not sent or connection.withdraw(sent):
                self.leave(deadline)
            raise
        self._taken.clear()
        return result

    @property
    def takes_last(self) -> bool:
        """True if statements can go with the commit."""
        return self._connection.protocol.takes_last

    def rollback(self, deadline: float) -> None:
        """End the transaction. Raises :class:`LeaseLost` if it has ended with its connection."""
        self._ask(lambda ask: wire.LeaseRollback(ask=ask, lease=self._number), deadline)
        self.unreserve()

    def interrupt(self) -> None:
        """Have the statement end that another thread waits for."""
        self._connection.interrupt(self._under_way)

    def unreserve(self) -> None:
        """Give the number of the commit back: there will be none."""
        with self._connection.lock:
            for number in self._taken:
                self._connection.protocol.unreserve(number)
            self._taken.clear()

    def leave(self, deadline: float) -> None:
        """Have the actor roll back, if it has not, without waiting for it."""
        connection = self._connection
        with connection.lock:
            is_there = connection.exchange.sock is self._sock and self._sock is not None
            if self._taken and is_there:
                message = partial(wire.LeaseRollback, lease=self._taken[-1])
                connection.ask(lambda ask: message(ask=ask), deadline)
            self.unreserve()

    def __del__(self) -> None:
        if getattr(self, "_taken", ()):  # interrupted in its first instruction, it has none
            # In a thread of its own: a collection can strike a thread that holds the lock. Not of
            # the module threading, which waits for locks when it starts one.
            left = _Steps(self._connection)
            left._sock, left._taken, self._taken = self._sock, self._taken, []
            with contextlib.suppress(RuntimeError):  # the process ends, and with it the lease
                _thread.start_new_thread(left._leave_at_last, ())

    def _leave_at_last(self) -> None:
        try:
            self.leave(time.monotonic() + limits.DEFAULT_TIMEOUT_SECONDS)
        finally:
            self._taken.clear()

    def _ask(self, make: Callable[[int], msgspec.Struct], deadline: float) -> bytes:
        connection = self._connection
        with connection.lock:
            # The actor rolls a lease back with its connection. On a new one the number means
            # nothing.
            if connection.exchange.sock is not self._sock:
                raise _lost()
            reply = connection.ask(make, deadline)
            self._under_way = [reply]
        try:
            return connection.wait([reply])
        except ConnectionResetError:
            raise _lost() from None


def _lost() -> LeaseLost:
    return LeaseLost("the connection was lost: the transaction was rolled back")


class _Lease:
    """The interactive transaction of a SessionDB. One deadline bounds all of its steps."""

    def __init__(self, connection: ActorConnection, deadline: float) -> None:
        self._steps = _Steps(connection)
        self._deadline = deadline
        self.lives_until = 0.0

    def open(self, timeout: float) -> None:
        self._steps.open(self._deadline, timeout)
        # At the latest then the actor has ended it, also if its holder was interrupted.
        self.lives_until = time.monotonic() + limits.LEASE_TOTAL_SECONDS

    def execute(self, statement: SqlStatement) -> SqlResult:
        return self._steps.run(statement, self._deadline)

    def commit(self) -> None:
        # Before the reply: whatever it is, this thread may call other methods again.
        self.lives_until = 0.0
        self._steps.commit(self._deadline)

    def rollback(self) -> None:
        self.lives_until = 0.0
        try:
            self._steps.rollback(self._deadline)
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        self._steps.leave(self._deadline)


class ActorSqlLease:
    """The transaction of a program's connection. Each step has a time of its own: the limits of the
    lease are the actor's matter."""

    def __init__(
        self, connection: ActorConnection, seconds: float | None, pause: float | None
    ) -> None:
        self.reply: SqlReply | None = None
        """The reply to the first run, if the lease was opened with one."""
        self._steps = _Steps(connection)
        self._seconds, self._pause = seconds, pause
        self._step_seconds = max(limits.DEFAULT_TIMEOUT_SECONDS, seconds or 0.0)

    def open(self, timeout: float, settings: Mapping[str, int | str], first: SqlRun | None) -> None:
        """Begin it with *first*; see :class:`SqlPort`."""
        # The first run of a long one may last longer than the wait for the lock.
        is_long = self._seconds is not None
        encoded = None if first is None or is_long else encode(first)
        result = self._steps.open(
            time.monotonic() + timeout,
            timeout,
            settings=dict(settings),
            seconds=self._seconds,
            pause=self._pause,
            first=wire.NIL if encoded is None else msgspec.Raw(encoded),
        )
        if encoded is not None:
            self.reply = decode_result(result, SqlReply)
        elif first is not None:
            self.reply = self.run(first)  # or it is too large for the frame that opens the lease

    def run(self, run: SqlRun) -> SqlReply:
        """Run statements in the transaction; an error of their own is in the reply.

        Raises :class:`LeaseLost`, or :class:`DeadlineExceeded` if it broke a limit.
        """
        return self._steps.run(run, self._deadline())

    def commit(self) -> None:
        """Return when it is committed and synced. The ``executed`` of an error says if it was."""
        self._steps.commit(self._deadline())

    def run_and_commit(self, last: SqlRun) -> SqlReply:
        """Run *last* and commit; with an error in the reply everything was rolled back."""
        encoded = encode(last)
        if encoded is not None and self._steps.takes_last:
            result = self._steps.commit(self._deadline(), encoded)
            return decode_result(result, SqlReply)  # type: ignore[no-any-return]
        reply = self.run(last)
        if reply.error is None:
            self.commit()
        else:
            self.give_up()
        return reply

    def rollback(self) -> None:
        """Undo the transaction. Raises as :meth:`run` if it has ended, and was undone, before."""
        try:
            self._steps.rollback(self._deadline())
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Undo it without waiting for the actor."""
        self._steps.leave(self._deadline())

    def interrupt(self) -> None:
        """Have the statement end that another thread waits for."""
        self._steps.interrupt()

    def _deadline(self) -> float:
        return time.monotonic() + self._step_seconds
