"""Interactive transactions over a line: the caller's end."""

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
from hermes_actor.client.core import decode_result
from hermes_actor.client.exchange import told
from hermes_actor.errors import DeadlineExceeded, NotAllowed
from hermes_protocol.operations import SqlResult

if TYPE_CHECKING:
    from hermes_actor.client.connection import ActorConnection
    from hermes_protocol.operations import SqlStatement

__all__ = ["Leases"]


class Leases:
    """Opens leases, and knows which thread holds one."""

    def __init__(self, line: ActorConnection) -> None:
        self._line = line
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
        self.refuse_inside()
        if self._holder is not None and self._holder[1]() is None:
            self._unreserve(self._holder[2])  # it was lost; ended in order, it has none any more
        line, deadline = self._line, time.monotonic() + timeout
        taken: list[int] = []
        try:
            while True:
                line.connected(deadline)
                with line.held:
                    # Number and question go in one step: what is sent later is numbered later.
                    number = line.core.reserve(taken)
                    message = partial(wire.LeaseOpen, lease=number, timeout=told(timeout))
                    sock = line.exchange.sock
                    reply = line.ask(lambda ask, message=message: message(ask=ask), deadline)
                try:
                    line.wait([reply])
                except ConnectionResetError:
                    self._unreserve(number)
                    continue
                lease = _Lease(line, number, deadline, sock)
                self._holder = (threading.get_ident(), weakref.ref(lease), number)
                return lease
        except BaseException:
            self._holder = None  # if it is another thread's, that one is not warned any more
            for number in taken:
                self._unreserve(number)
            raise

    def _unreserve(self, number: int) -> None:
        with self._line.held:
            self._line.core.unreserve(number)


class _Lease:
    """Lives and dies with the connection on which it was opened; only its commit outlives it."""

    def __init__(
        self, line: ActorConnection, number: int, deadline: float, sock: socket.socket | None
    ) -> None:
        self._line = line
        self._number = number
        self._deadline = deadline
        self._sock = sock
        # At the latest then the actor has ended it, also if its holder was interrupted.
        self.lives_until = time.monotonic() + limits.LEASE_TOTAL_SECONDS

    def execute(self, statement: SqlStatement) -> SqlResult:
        whole = self._line.core.encode(statement)
        steps = [whole] if whole is not None else self._line.core.stages(statement)
        *_, result = map(self._run, steps)
        return cast("SqlResult", decode_result(result, SqlResult))

    def _run(self, step: bytes) -> bytes:
        return self._ask(
            lambda ask: wire.LeaseRun(ask=ask, lease=self._number, statement=msgspec.Raw(step))
        )

    def commit(self) -> None:
        self.lives_until = 0.0
        line = self._line
        with line.held:
            reply = line.exchange.commit_lease(self._number, self._deadline)
        line.wait([reply])  # which sends it

    def rollback(self) -> None:
        self.lives_until = 0.0
        try:
            self._ask(lambda ask: wire.LeaseRollback(ask=ask, lease=self._number))
        finally:
            with self._line.held:
                self._line.core.unreserve(self._number)

    def _ask(self, make: Callable[[int], msgspec.Struct]) -> bytes:
        line = self._line
        with line.held:
            if line.exchange.sock is not self._sock:
                raise DeadlineExceeded("the connection was lost: the transaction was rolled back")
            reply = line.ask(make, self._deadline)
        try:
            return line.wait([reply])
        except ConnectionResetError:
            raise DeadlineExceeded(
                "the connection was lost: the transaction was rolled back"
            ) from None
