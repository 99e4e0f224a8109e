"""Interactive transactions over a line: the caller's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

import hermes_protocol.messages as wire
from hermes_actor.client.core import decode_result
from hermes_actor.errors import DeadlineExceeded, NotAllowed
from hermes_protocol.operations import SqlResult

if TYPE_CHECKING:
    from hermes_actor.client.line import Line
    from hermes_protocol.operations import SqlStatement

__all__ = ["Leases"]


class Leases:
    """Opens leases, and knows which thread holds one."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._holder: tuple[int, _Lease] | None = None

    def refuse_inside(self) -> None:
        """Raises in a thread that holds a lease: the call would wait for its own transaction."""
        if self._holder is not None and self._holder[0] == threading.get_ident():
            raise NotAllowed("a call inside _execute_write would wait for its own transaction")

    def open(self, patience: float) -> _Lease:
        self.refuse_inside()
        line, deadline = self._line, time.monotonic() + patience
        while True:
            with line.held:
                line.connected(deadline)
                # The number is taken and sent in one step: what is sent later is numbered later.
                number = line.core.reserve()
                message = partial(wire.LeaseOpen, lease=number, patience=patience)
                reply, data = line.core.ask(lambda ask, message=message: message(ask=ask))
                line.send(data)
            try:
                line.wait(reply, deadline)
                break
            except ConnectionResetError:
                self._unreserve(number)
            except BaseException:
                self._unreserve(number)
                raise
        lease = _Lease(line, self._ended, number, deadline)
        self._holder = (threading.get_ident(), lease)
        return lease

    def _unreserve(self, number: int) -> None:
        with self._line.held:
            self._line.core.unreserve(number)

    def _ended(self, lease: _Lease) -> None:
        # An expired lease must not take the mark of the one that came after it.
        if self._holder is not None and self._holder[1] is lease:
            self._holder = None


class _Lease:
    """Lives and dies with the connection on which it was opened; only its commit outlives it."""

    def __init__(
        self, line: Line, ended: Callable[[_Lease], None], number: int, deadline: float
    ) -> None:
        self._line = line
        self._ended = ended
        self._number = number
        self._deadline = deadline
        self._sock = line.sock

    def execute(self, statement: SqlStatement) -> SqlResult:
        encoded = msgspec.Raw(msgspec.msgpack.encode(statement))
        result = self._ask(
            lambda ask: wire.LeaseRun(ask=ask, lease=self._number, statement=encoded)
        )
        return cast("SqlResult", decode_result(result, SqlResult))

    def commit(self) -> None:
        line = self._line
        try:
            with line.held:
                reply, data = line.core.commit_lease(self._number)
                if line.sock is None:
                    line.connected(self._deadline)  # which sends it again
                else:
                    line.send(data)
            line.wait(reply, self._deadline)
        finally:
            self._ended(self)

    def rollback(self) -> None:
        try:
            self._ask(lambda ask: wire.LeaseRollback(ask=ask, lease=self._number))
        finally:
            with self._line.held:
                self._line.core.unreserve(self._number)
            self._ended(self)

    def _ask(self, make: Callable[[int], msgspec.Struct]) -> bytes:
        line = self._line
        with line.held:
            if line.sock is not self._sock:
                raise DeadlineExceeded("the connection was lost: the transaction was rolled back")
            reply, data = line.core.ask(make)
            line.send(data)
        try:
            return line.wait(reply, self._deadline)
        except ConnectionResetError:
            raise DeadlineExceeded(
                "the connection was lost: the transaction was rolled back"
            ) from None
