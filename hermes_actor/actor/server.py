"""The actor process: owner lock, listener, connections, one writer thread, and a proper end.

The listener opens as soon as the owner lock is held, so clients get an answer, with the phase,
from the first moment; the writer opens the file meanwhile in its own thread. A drain goes the way
back in order: no new clients, no new requests, commit what was admitted, flush the answers, close
the file, remove the socket, and give up the lock last.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor._version import __version__
from hermes_actor.actor.changes import Changes
from hermes_actor.actor.connection import Connection
from hermes_actor.actor.credit import Credit
from hermes_actor.actor.listener import bind, remove_socket
from hermes_actor.actor.mailbox import Mailbox
from hermes_actor.actor.metrics import Metrics
from hermes_actor.actor.status import describe
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Outcome
from hermes_actor.engine.loop import serve
from hermes_actor.engine.writer import Writer
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.store.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from hermes_actor.actor.outbox import Outbox
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.paths import Place

__all__ = ["Server"]

_log = logging.getLogger("hermes_actor.actor")


class Server:
    """Everything that one actor serves; one object per database."""

    def __init__(
        self,
        place: Place,
        lock: OwnerLock,
        *,
        idle_exit: float | None = None,
        on_ready: Callable[[BaseException | None], None] = lambda _error: None,
    ) -> None:
        """*idle_exit* seconds without connections end the actor; ``None``: never.

        *on_ready* is called once, when the actor serves or has failed to open the file.
        """
        self.place = place
        self.private_sql = True
        self.started = time.time()
        self.metrics = Metrics()
        self.mailbox = Mailbox()
        self.writer: Writer | None = None
        self.failure: BaseException | None = None
        self._lock = lock
        self._idle_exit = idle_exit
        self._on_ready = on_ready
        self._connections: set[Connection] = set()
        self._clients: dict[bytes, Connection] = {}
        self._dirty: deque[Outbox] = deque()
        self.rejected = 0

    @property
    def phase(self) -> str:
        """What the actor is doing, in one word."""
        if self.failure is not None:
            return "broken"
        if self.writer is None:
            return "opening"
        if self._draining.is_set():
            return "draining"
        return "serving" if self.writer.core.recovered else "recovering"

    # --- the event loop's side -----------------------------------------------------------------

    def run(self) -> int:
        """Serve until told to end. Returns the exit code."""
        sys.setswitchinterval(limits.SWITCH_INTERVAL_SECONDS)
        trio.run(self._main)
        self._lock.release()
        if self.writer is None:
            # Told only now: whoever tries again must not find us still here.
            self._on_ready(self.failure)
        return 0 if self.failure is None else 1

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.credit = Credit(limits.CREDIT_TOTAL_BYTES, self.in_loop)
        self.changes = Changes(self.in_loop)
        self._draining = trio.Event()
        self._opened = trio.Event()
        self._closed = trio.Event()
        self._stop_accepting = trio.CancelScope()
        listener = bind(self.place)
        thread = threading.Thread(target=self._write, name="writer", daemon=True)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as outer:
                outer.start_soon(self._follow_signals, signals)
                outer.start_soon(self._watch)
                outer.start_soon(self._expire)
                async with trio.open_nursery() as nursery:
                    thread.start()
                    nursery.start_soon(self._accept, listener, nursery)
                    await self._draining.wait()
                    nursery.cancel_scope.shield = True
                    self._stop_accepting.cancel()
                    for connection in list(self._connections):
                        connection.go_away(self._reason)
                self.mailbox.put_last(jobs.Stop(lambda _outcome: None))
                await self._closed.wait()
                outer.cancel_scope.cancel()
        thread.join()
        remove_socket(self.place)
        listener.close()

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        with self._stop_accepting:
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
                sock.setblocking(False)
                try:
                    connection = Connection(self, sock)
                except OSError:
                    sock.close()
                    continue
                if connection.uid not in (os.getuid(), 0):
                    _log.warning("refused uid %d (pid %d)", connection.uid, connection.pid)
                    self.rejected += 1
                    sock.close()
                    continue
                self._connections.add(connection)
                nursery.start_soon(connection.run)

    async def _follow_signals(self, signals: Any) -> None:
        async for number in signals:
            self.drain(signal.Signals(number).name)

    async def _watch(self) -> None:
        """End when nobody has been here for long, or when the file is gone."""
        quiet_since = trio.current_time()
        while True:
            await trio.sleep(min(limits.HOME_CHECK_SECONDS, self._idle_exit or 3600))
            if self._connections or self.mailbox.waiting():
                quiet_since = trio.current_time()
            if self._opened.is_set() and not self.place.db.exists():
                self.drain("the database is gone")
            elif self._idle_exit and trio.current_time() - quiet_since >= self._idle_exit:
                self.drain("idle")

    async def _expire(self) -> None:
        """Answer requests whose deadline passes while the writer is busy with something long."""
        while True:
            await trio.sleep(limits.EXPIRY_CHECK_SECONDS)
            for job in self.mailbox.take_expired(time.monotonic()):
                if job.take():
                    job.finish(Outcome(error=DeadlineExceeded("the writer was busy for too long")))
            self._sent()

    def drain(self, reason: str) -> None:
        """Begin to end; harmless when it has begun."""
        if not self._draining.is_set():
            _log.info("draining: %s", reason)
            self._reason = reason
            self._draining.set()

    def in_loop(self, function: Callable[[], None]) -> None:
        """Run *function* soon in the event loop; from any thread, even when the loop is gone."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function)

    async def welcome(self, connection: Connection, hello: wire.Hello) -> bool:
        """Answer a Hello. False if the client is not taken."""
        if not hello.oldest <= wire.PROTOCOL <= hello.newest:
            connection.send(wire.Reject(code="protocol", message="no common protocol"))
            return False
        connection.client_id, connection.name = hello.client_id, hello.name
        connection.build = hello.build
        older = self._clients.get(hello.client_id)
        self._clients[hello.client_id] = connection
        if older is not None:
            await older.supersede()
        await self._opened.wait()
        if self.failure is not None:
            code = getattr(self.failure, "code", "error")
            connection.send(wire.Reject(code=code, message=str(self.failure)))
            return False
        assert self.writer is not None
        connection.floor = commit_no = self.writer.commit_no
        connection.send(
            wire.Welcome(
                protocol=wire.PROTOCOL,
                phase=self.phase,
                epoch=self.writer.epoch,
                file_id=self.writer.core.file_id,
                limits=wire.Limits(
                    window=limits.WINDOW_REQUESTS, frame_bytes=limits.FRAME_MAX_BYTES
                ),
                durability="fsync",
                schema_version=SCHEMA_VERSION,
                build=__version__,
                pid=os.getpid(),
                commit_no=commit_no,
            )
        )
        return True

    def left(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._clients.get(connection.client_id) is connection:
            del self._clients[connection.client_id]

    def status_json(self) -> str:
        return json.dumps(describe(self, self._connections))

    # --- the writer thread's side ----------------------------------------------------------------

    def _write(self) -> None:
        """The writer thread: open the file, work until told to stop."""
        try:
            self.writer = Writer(
                self.place, somebody_waits=self.mailbox.waiting, on_epoch=self._lock.describe
            )
            self.in_loop(self._opened.set)
            self._on_ready(None)
            serve(self.writer, self.mailbox, sent=self._sent, measured=self.metrics.batch)
        except BaseException as error:
            self.failure = error
            _log.error("the writer of %s has stopped: %s", self.place.db, error, exc_info=error)
        finally:
            # Whatever happened, the event loop must not wait for us.
            self.in_loop(self._opened.set)
            self.in_loop(lambda: self.drain(f"the writer has stopped: {self.failure}"))
            self.in_loop(self._closed.set)

    def finished(self, connection: Connection, outcome: Outcome, seconds: float) -> None:
        """A request has its answer."""
        self.metrics.total.add(seconds)
        if outcome.error is not None:
            self.metrics.refused += 1
        elif not outcome.replayed:
            self.metrics.writes += 1

    def dirty(self, outbox: Outbox) -> None:
        """Answers wait in *outbox*; they leave together at the end of the batch."""
        self._dirty.append(outbox)

    def _sent(self) -> None:
        # A deque, because the event loop answers too, now and then.
        while self._dirty:
            with contextlib.suppress(IndexError):
                self._dirty.popleft().flush()
        self.changes.tell()
