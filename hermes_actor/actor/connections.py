"""Letting clients in and out: the accept loop, who may come, Welcome, and sending all away."""

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
from hermes_actor.errors import IncompatibleProtocol

if TYPE_CHECKING:
    from hermes_actor.actor.server import Server

__all__ = ["ConnectionSet"]

_log = logging.getLogger("hermes_actor.actor")


class ConnectionSet:
    """The connections of an actor. Lives in the event loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.connections: set[Connection] = set()
        self.rejected = 0
        self._clients: dict[bytes, Connection] = {}
        self._somebody_left = trio.Event()
        self.last_left = trio.current_time()

    # --- in --------------------------------------------------------------------------------------

    async def accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until cancelled. Connections live in *nursery*."""
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                sock, _ = listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                # Out of descriptors: connections stay in the backlog until one is free.
                _log.warning("cannot accept: %s", error)
                await trio.sleep(0.1)
                continue
            self._take_in(sock, nursery)

    def _take_in(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        sock.setblocking(False)
        try:
            connection = Connection(self._server, sock)
        except Exception as error:
            if not isinstance(error, OSError):  # of which it is gone again
                _log.exception("unexpected error while a client was let in")
            sock.close()
            return
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
        """Answer a Hello. False if the client is not taken."""
        if not hello.oldest <= wire.PROTOCOL <= hello.newest:
            connection.send_frame(reject(IncompatibleProtocol("no common protocol")))
            return False
        older = self._clients.get(hello.client_id)
        self._clients[hello.client_id] = connection
        if older is not None:
            await older.supersede()
        if self._server.opened.is_set() and self._server.gate.is_open:
            return self._take(connection)
        connection.send_frame(welcome(self._server.phase.text, ready=False))
        nursery.start_soon(self._welcome_later, connection)
        return True

    async def _welcome_later(self, connection: Connection) -> None:
        server = self._server
        reported = server.phase
        while not (server.gate.is_open and server.opened.is_set()):
            with trio.move_on_after(limits.PHASE_TELL_SECONDS):
                await server.gate.passed()
                await server.opened.wait()
            if not server.opened.is_set() and server.phase != reported:
                reported = server.phase
                connection.send_frame(welcome(reported.text, ready=False))
        if server.writer is not None:
            self._take(connection)

    def _take(self, connection: Connection) -> bool:
        server = self._server
        if server.failure is not None or server.writer is None:
            if server.succession.is_taken_back_from:
                return False
            connection.send_frame(reject(server.failure or RuntimeError("the file is not open")))
            return False
        connection.desk.floor = commit_no = server.writer.commit_no
        epoch, file_id = server.writer.epoch, server.writer.connection.file_id
        connection.send_frame(
            welcome(
                server.phase.text, epoch=epoch, file_id=file_id, commit_no=commit_no, ready=True
            )
        )
        return True

    # --- out -------------------------------------------------------------------------------------

    def left(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._clients.get(connection.client_id) is connection:
            del self._clients[connection.client_id]
        self.last_left = trio.current_time()
        self._somebody_left.set()
        self._somebody_left = trio.Event()

    async def send_all_away(self, reason: str) -> None:
        """Take nothing more from anybody who is here, answer what was admitted, close.

        Those who wait for a hand-off stay: they are told how it ends.
        """
        leaving = {one for one in self.connections if not one.awaits_handoff}
        for connection in leaving:
            try:
                self._send_away(connection, reason)
            except Exception:
                _log.exception("client pid %d could not be sent away", connection.pid)
                connection.cut()
        while leaving & self.connections:
            await self._somebody_left.wait()

    def _send_away(self, connection: Connection, reason: str) -> None:
        if self._server.writer is None and self._server.failure is not None:
            # To come back would not help: it is the file that cannot be opened.
            self._take(connection)
            connection.end()
        else:
            connection.go_away(reason)

    def hurry(self) -> None:
        """Wait no longer for clients that do not take their answers."""
        for connection in list(self.connections):
            connection.hurry()
