"""One connection to the actor, shared by all threads of a process.

No thread of its own. Whoever waits for an answer and finds nobody reading reads for all; answers
for others are handed to them. A lost connection is made anew, with an actor started if there is
none, and everything unanswered is sent again; callers notice nothing but the time.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.client.core import ClientCore, Reply
from hermes_actor.client.reaching import GRACE_SECONDS, connect, program_name
from hermes_actor.client.upgrading import upgrade_request
from hermes_actor.errors import HermesActorError, OutcomeUnknown
from hermes_protocol.framing import FrameError, frame

if TYPE_CHECKING:
    from hermes_actor.paths import Place

__all__ = ["Line"]


class Line:
    """The core of a client, and the socket that it speaks through.

    *held* guards both: hold it to use ``core`` or ``sock``, and for every method that says so.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._begin()

    def _begin(self) -> None:
        self.core = ClientCore(program_name(), partial(upgrade_request, self.place))
        self.held = threading.Condition(threading.RLock())
        self.sock: socket.socket | None = None
        self._leading = False

    def connected(self, deadline: float) -> None:
        """Have a connection on which the actor has said Welcome. Held."""
        if self.sock is None:
            self.sock = connect(self.place, self.core, deadline)
        self.held.notify_all()

    def send(self, data: bytes) -> None:
        """Send, or leave it to the next connection. Held."""
        if self.sock is None:
            return
        try:
            self.sock.sendall(data)
        except OSError:
            self._lost()

    def wait(self, reply: Reply, deadline: float) -> bytes:
        """The result, or the error raised."""
        with self.held:
            while not reply.done:
                if time.monotonic() > deadline + GRACE_SECONDS:
                    self.core.give_up(reply)
                    raise OutcomeUnknown("the actor has not answered within the patience")
                self.read_or_wait(deadline + GRACE_SECONDS)
                if self.sock is None and not reply.done:
                    self._reconnect_for(reply, deadline)
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        return reply.result

    def _reconnect_for(self, reply: Reply, deadline: float) -> None:
        """Connect again, which sends the request again. Without success nobody can tell."""
        try:
            self.connected(deadline)
        except HermesActorError as error:
            self.core.give_up(reply)
            if reply.number < 0:
                raise
            raise OutcomeUnknown(
                f"the connection was lost after the change was sent, and then: {error}"
            ) from error

    def read_or_wait(self, deadline: float) -> None:
        """Read once for everybody, or wait until somebody else has. Held."""
        patience = max(0.0, deadline - time.monotonic()) + 0.001
        if self.sock is None:
            return  # whoever asked connects again
        if self._leading:
            self.held.wait(patience)
            return
        self._leading, sock = True, self.sock
        self.held.release()
        data: bytes | None = None
        try:
            # The time-out of the socket is shared with senders, so it is not used for waiting.
            ready = select.poll()
            ready.register(sock, select.POLLIN)
            if ready.poll(patience * 1000):
                data = sock.recv(limits.RECEIVE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        finally:
            self.held.acquire()
            self._leading = False
            self.held.notify_all()
        if self.sock is not sock:
            return  # somebody has connected anew: these bytes are of the past
        if data:
            self._take(data)
        elif data is not None:
            self._lost()

    def _take(self, data: bytes) -> None:
        try:
            self.core.receive(data)
        except FrameError:
            self._lost()

    def _lost(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def close(self) -> None:
        """Say good-bye, so that the actor can forget us."""
        with self.held:
            if self.sock is not None:
                with contextlib.suppress(OSError):
                    if not self.core.in_flight:
                        self.sock.settimeout(1.0)
                        self.sock.sendall(frame(wire.Bye()))
                self._lost()

    def after_fork(self) -> None:
        """In a child: another client, with a connection of its own."""
        sock = self.sock
        self._begin()
        if sock is not None:
            # Our copy only; the parent's connection stays open.
            sock.close()
