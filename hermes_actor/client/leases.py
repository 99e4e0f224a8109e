"""Interactive transactions over a connection: the caller's end."""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.exchange import actor_timeout
from hermes_actor.client.protocol import encode, stages
from hermes_actor.errors import DeadlineExceeded, NotAllowed
from hermes_protocol.client import decode_result
from hermes_protocol.operations import SqlResult

if TYPE_CHECKING:
    from hermes_actor.client.connection import ActorConnection
    from hermes_protocol.operations import SqlStatement

__all__ = ["Leases"]


class Leases:
    """Opens leases, and knows which thread holds one."""

    def __init__(self, connection: ActorConnection) -> None:
        self._connection = connection
        # Thread, lease and its number. An exception can lose a lease on the way to its holder.
        self._holder: tuple[int, weakref.ref[_Lease], int] | None = None

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
        if self._holder is not None and self._holder[1]() is None:
            self._unreserve(self._holder[2])  # it was lost; ended in order, it has none any more
        connection, deadline = self._connection, time.monotonic() + timeout
        taken: list[int] = []
        try:
            while True:
                connection.ensure_connected(deadline)
                with connection.lock:
                    # Number and question go in one step: what is sent later is numbered later.
                    number = connection.protocol.reserve(taken)
                    message = partial(wire.LeaseOpen, lease=number, timeout=actor_timeout(timeout))
                    # Under the same lock as the question: the lease belongs to the connection that
                    # carries it.
                    sock = connection.exchange.sock
                    reply = connection.ask(lambda ask, message=message: message(ask=ask), deadline)
                try:
                    connection.wait([reply])
                except ConnectionResetError:
                    # Another number for the next try: the actor may have granted this one before it
                    # was lost.
                    self._unreserve(number)
                    continue
                lease = _Lease(connection, number, deadline, sock)
                self._holder = (threading.get_ident(), weakref.ref(lease), number)
                return lease
        except BaseException:
            self._holder = None  # if it is another thread's, that one is not warned any more
            for number in taken:
                self._unreserve(number)
            raise

    def _unreserve(self, number: int) -> None:
        with self._connection.lock:
            self._connection.protocol.unreserve(number)


class _Lease:
    """Lives and dies with the connection on which it was opened; only its commit outlives it."""

    def __init__(
        self, connection: ActorConnection, number: int, deadline: float, sock: socket.socket | None
    ) -> None:
        self._connection = connection
        self._number = number
        self._deadline = deadline
        self._sock = sock
        # At the latest then the actor has ended it, also if its holder was interrupted.
        self.lives_until = time.monotonic() + limits.LEASE_TOTAL_SECONDS

    def execute(self, statement: SqlStatement) -> SqlResult:
        whole = encode(statement)
        steps = [whole] if whole is not None else stages(self._connection.protocol, statement)
        # One by one: of a statement in parts only the last has a result, and an error stops the
        # rest.
        *_, result = map(self._run, steps)
        return cast("SqlResult", decode_result(result, SqlResult))

    def _run(self, step: bytes) -> bytes:
        return self._ask(
            lambda ask: wire.LeaseRun(ask=ask, lease=self._number, statement=msgspec.Raw(step))
        )

    def commit(self) -> None:
        # Before the reply: whatever it is, this thread may call other methods again.
        self.lives_until = 0.0
        connection = self._connection
        with connection.lock:
            reply = connection.exchange.commit_lease(self._number, self._deadline)
        connection.wait([reply])  # which sends it

    def rollback(self) -> None:
        self.lives_until = 0.0
        try:
            self._ask(lambda ask: wire.LeaseRollback(ask=ask, lease=self._number))
        finally:
            with self._connection.lock:
                self._connection.protocol.unreserve(self._number)

    def _ask(self, make: Callable[[int], msgspec.Struct]) -> bytes:
        connection = self._connection
        with connection.lock:
            # The actor rolls a lease back with its connection. On a new one the number means
            # nothing.
            if connection.exchange.sock is not self._sock:
                raise DeadlineExceeded("the connection was lost: the transaction was rolled back")
            reply = connection.ask(make, self._deadline)
        try:
            return connection.wait([reply])
        except ConnectionResetError:
            raise DeadlineExceeded(
                "the connection was lost: the transaction was rolled back"
            ) from None
