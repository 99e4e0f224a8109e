"""The connections of an actor: the accept loop, the check of users, Welcome and GoAway."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.actor.connection import Connection
from hermes_actor.actor.replies import reject, welcome
from hermes_actor.errors import IncompatibleProtocol, wrong_kind
from hermes_protocol.features import INTERRUPT, LAST_WITH_COMMIT, kind_feature

if TYPE_CHECKING:
    from hermes_actor.actor.interfaces import Controls, Ownership, Resources

__all__ = ["ConnectionSet"]

_log = logging.getLogger("hermes_actor.actor")


class ConnectionSet:
    """The connections of an actor. Lives in the event loop."""

    def __init__(self, resources: Resources, controls: Controls, ownership: Ownership) -> None:
        self._resources = resources
        self._controls = controls
        self._ownership = ownership
        self.connections: set[Connection] = set()
        self.rejected = 0
        self._clients: dict[bytes, Connection] = {}
        self._one_left = trio.Event()
        self.last_left = trio.current_time()

    # --- in --------------------------------------------------------------------------------------

    async def accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until cancelled. Connections live in *nursery*."""
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                sock, _ = listener.accept()
            # Readiness is a hint: in a hand-off another process has this listener too.
            except BlockingIOError:
                continue
            except OSError as error:
                # Out of descriptors: connections stay in the backlog until one is free.
                _log.warning("cannot accept: %s", error)
                await trio.sleep(0.1)
                continue
            self._register(sock, nursery)

    def _register(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        sock.setblocking(False)
        try:
            connection = Connection(sock, self._resources, self._controls, self)
        except Exception as error:
            if not isinstance(error, OSError):  # an OSError: the client has left already
                _log.exception("unexpected error while a client was accepted")
            sock.close()
            return
        # The folder of the socket is private already. This holds where its mode was changed.
        if connection.uid not in (os.getuid(), 0):
            _log.warning("refused uid %d (pid %d)", connection.uid, connection.pid)
            self.rejected += 1
            sock.close()
            return
        self.connections.add(connection)
        nursery.start_soon(connection.run)

    async def welcome(
        self, connection: Connection, hello: wire.Hello, nursery: trio.Nursery
    ) -> bool:
        """Answer a Hello. Return False if the client is refused."""
        if not hello.oldest <= wire.PROTOCOL <= hello.newest:
            connection.send_frame(reject(IncompatibleProtocol("no common protocol")))
            return False
        older = self._clients.get(hello.client_id)
        # Before the wait below: a third connection that comes meanwhile must supersede this one.
        self._clients[hello.client_id] = connection
        if older is not None:
            await older.supersede()
        if self._ownership.opened.is_set() and self._resources.gate.is_open:
            return self._send_welcome(connection)
        connection.send_frame(welcome(self._ownership.phase.text, ready=False))
        nursery.start_soon(self._welcome_later, connection)
        return True

    async def _welcome_later(self, connection: Connection) -> None:
        ownership, gate = self._ownership, self._resources.gate
        reported = ownership.phase
        # *opened* is another event in the next period, hence read again each time.
        while not (gate.is_open and ownership.opened.is_set()):
            with trio.move_on_after(limits.PHASE_TELL_SECONDS):
                await gate.passed()
                await ownership.opened.wait()
            if not ownership.opened.is_set() and ownership.phase != reported:
                reported = ownership.phase
                connection.send_frame(welcome(reported.text, ready=False))
        if ownership.writer is not None and not self._send_welcome(connection):
            connection.end()

    def _send_welcome(self, connection: Connection) -> bool:
        writer, failure = self._ownership.writer, self._ownership.failure
        if failure is not None or writer is None:
            # The predecessor takes back: to its clients the failed hand-off is invisible.
            if not self._ownership.predecessor_continues:
                connection.send_frame(reject(failure or RuntimeError("the file is not open")))
            return False
        kind, needed = writer.kind.name, connection.needed_kind
        if needed not in (None, kind):
            connection.send_frame(reject(wrong_kind(writer.paths.db, kind, str(needed))))
            return False
        # What this client sends for the first time from here on knows at least this number, however
        # old the last reply that it has seen. So it is never taken for a repetition (G2).
        connection.requests.floor = commit_no = writer.commit_no
        epoch, file_id = writer.epoch, writer.connection.file_id
        connection.send_frame(
            welcome(
                self._ownership.phase.text,
                epoch=epoch,
                file_id=file_id,
                commit_no=commit_no,
                features=[kind_feature(kind), LAST_WITH_COMMIT, INTERRUPT],
                leases=writer.leases.limits(),
                ready=True,
            )
        )
        return True

    # --- out -------------------------------------------------------------------------------------

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended, unless a newer one of its client stands there."""
        self.connections.discard(connection)
        # Not the entry of the connection that has superseded this one.
        if self._clients.get(connection.client_id) is connection:
            del self._clients[connection.client_id]
        # A scrape every few seconds must not keep an actor that nothing else uses.
        if not connection.only_watched:
            self.last_left = trio.current_time()
        self._one_left.set()
        self._one_left = trio.Event()

    async def go_away_all(self, reason: str) -> None:
        """Take nothing more from the present clients, answer what was admitted, close.

        Clients that wait for a hand-off stay: they get its outcome.
        """
        leaving = {one for one in self.connections if not one.awaits_handoff}
        for connection in leaving:
            try:
                self._go_away(connection, reason)
            except Exception:
                _log.exception("client pid %d could not be sent away", connection.pid)
                connection.cut()
        while leaving & self.connections:
            await self._one_left.wait()

    def _go_away(self, connection: Connection, reason: str) -> None:
        if self._ownership.writer is None and self._ownership.failure is not None:
            # The file cannot be opened: a client that comes back would not fare better.
            self._send_welcome(connection)
            connection.end()
        else:
            connection.go_away(reason)

    def skip_flush_wait(self) -> None:
        """Wait no longer for clients that do not read their replies."""
        for connection in list(self.connections):
            connection.skip_flush_wait()
