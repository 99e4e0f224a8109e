"""The actor: one database, served from its opening to its drain or hand-off.

The listener opens as soon as the owner lock is held, so clients get an answer, with the phase,
from the first moment; the writer opens the file meanwhile in its own thread. A drain goes the way
back in order: no new clients, no new requests, commit what was admitted, flush the answers, close
the file, remove the socket, and give up the lock last. A hand-off is a drain whose listener and
lock go to a successor; if that fails, another period of ownership begins.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from hermes_actor import exit_codes, failpoints, limits
from hermes_actor.actor.byte_limiter import ByteLimiter
from hermes_actor.actor.change_feed import ChangeFeed
from hermes_actor.actor.connections import ConnectionSet
from hermes_actor.actor.gate import Gate
from hermes_actor.actor.handoff.coordinator import HandoffCoordinator
from hermes_actor.actor.interfaces import Resources
from hermes_actor.actor.listener import SocketFile, bind, place_of, record_place
from hermes_actor.actor.listener_beside import ListenerBeside
from hermes_actor.actor.mailbox import Mailbox
from hermes_actor.actor.metrics import Metrics
from hermes_actor.actor.outbox import Backlog, Unflushed
from hermes_actor.actor.readiness import Readiness
from hermes_actor.actor.sd_notify import ServiceManager
from hermes_actor.actor.socket_activation import drain_if_socket_replaced
from hermes_actor.actor.status import ForeignWriters, StatusReporter, open_lease
from hermes_actor.actor.tasks import call, repeat
from hermes_actor.actor.timers import (
    IdleWatch,
    expire_requests,
    notify_watchdog,
    rescue_store,
    show_status,
)
from hermes_actor.actor.writer_thread import WriterThread
from hermes_actor.build import build_id
from hermes_actor.engine.change_log import ChangeLog
from hermes_actor.engine.jobs import Outcome
from hermes_actor.errors import ActorBroken, HandoffFailed, HermesActorError, OutcomeUnknown
from hermes_actor.recovery.scratch import remove_leftovers
from hermes_protocol.features import SESSIONS
from hermes_protocol.status import Phase, PhaseReport

if TYPE_CHECKING:
    import hermes_protocol.messages as wire
    from hermes_actor.actor.handoff.coordinator import HandoffAttempt
    from hermes_actor.actor.handoff.receiver import PredecessorLink
    from hermes_actor.actor.outbox import Outbox
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.engine.writer import Writer
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import Status

__all__ = ["Server"]

_log = logging.getLogger("hermes_actor.actor")


class Server:
    """Composes the parts of one actor, and leads it through its periods of ownership.

    The parts do not know this class: they know the interfaces that it implements
    (:class:`~hermes_actor.actor.interfaces.Controls`,
    :class:`~hermes_actor.actor.interfaces.Ownership`,
    :class:`~hermes_actor.actor.handoff.coordinator.Host`).
    """

    def __init__(
        self,
        paths: StorePaths,
        lock: OwnerLock,
        *,
        listener: socket.socket | None = None,
        keep_socket: bool = False,
        predecessor: PredecessorLink | None = None,
        pinned: bool = False,
        manager: ServiceManager | None = None,
        readiness: Readiness | None = None,
        successor_options: Sequence[str] = (),
        idle_exit: float | None = None,
        drain_seconds: float = limits.DRAIN_SECONDS,
        private_sql: bool = True,
        rescue: bool = True,
        kind: str = SESSIONS,
        on_status: Callable[[Status], None] | None = None,
    ) -> None:
        """*listener* came from *predecessor*, or from a service manager, which then owns its path
        (*keep_socket*); ``None``: create one. *manager* is that service manager.
        *pinned*: clients cannot start a hand-off by themselves. *successor_options* go to the
        command line of a successor. *idle_exit* seconds without connections end the actor;
        ``None``: never.

        *kind* is that of a file that does not say its own.
        *readiness* is set when the actor serves, and failed if the file cannot be opened.
        *on_status* gets the status now and then, in a thread of its own: a terminal that blocks
        must not stop the event loop.
        """
        self.paths = paths
        self._private_sql = private_sql
        self._rescue = rescue
        self._kind = kind
        self._drain_seconds = drain_seconds
        self._started = time.time()
        self._metrics = Metrics()
        self._mailbox = Mailbox()
        self._unflushed = Unflushed()
        self._foreign_writers = ForeignWriters(paths)
        self._lock = lock
        self._listener = listener
        self._keep_socket = keep_socket
        self._manager = manager or ServiceManager()
        self._readiness = readiness or Readiness(self._manager)
        self._handoffs = HandoffCoordinator(
            self, paths, lock, predecessor, pinned=pinned, options=successor_options
        )
        self._idle_exit = idle_exit
        self._on_status = on_status
        self._changes = ChangeLog()
        self._reason = ""
        self._early_signals: list[int] = []
        """Signals that came before the event loop ran."""

    # --- state -----------------------------------------------------------------------------------

    @property
    def phase(self) -> PhaseReport:
        """The state of the actor: that of its writer, unless the period is about to end."""
        report = self._writer_thread.phase
        if self._handoffs.blocked_reason is not None:
            return PhaseReport(Phase.CLOSED, self._handoffs.blocked_reason)
        if report.phase is Phase.SERVING and self.is_ending_period:
            return PhaseReport(Phase.DRAINING if self.is_draining else Phase.HANDING_OVER)
        return report

    @property
    def writer(self) -> Writer | None:
        """The writer, once the file is open."""
        return self._writer_thread.writer

    @property
    def failure(self) -> BaseException | None:
        """The reason why the writer has stopped by itself."""
        return self._writer_thread.failure

    @property
    def could_not_open(self) -> bool:
        """True if this actor has never had the file open, and will not."""
        return self.writer is None and self.failure is not None

    @property
    def is_draining(self) -> bool:
        """True if the actor is about to end."""
        return self._draining.is_set()

    @property
    def is_ending_period(self) -> bool:
        """True if this period of ownership is about to end, for whatever reason."""
        return self._period_over.is_set()

    @property
    def has_handed_over(self) -> bool:
        """True if a successor serves."""
        return self._handoffs.has_handed_over

    @property
    def predecessor_continues(self) -> bool:
        """True if the predecessor serves on if this actor cannot."""
        return self._handoffs.predecessor_continues

    @property
    def opened(self) -> trio.Event:
        """Set when the file is open, or when its opening has failed."""
        return self._writer_thread.opened

    def status(self) -> Status:
        """Return the status document. Event loop only."""
        return self._reporter.status(self.phase, self.writer, self.failure)

    def status_json(self) -> str:
        """Return the status document as it goes over the wire."""
        # A path that is not UTF-8 must not keep its reader from the rest of the document.
        text = json.dumps(self.status().document(), ensure_ascii=False)
        return text.encode("utf-8", "replace").decode()

    # --- periods ---------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until a drain or a hand-off; return the exit code."""
        sys.setswitchinterval(limits.SWITCH_INTERVAL_SECONDS)
        self._ends = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # The terminal of `serve` was closed; under nohup it may be.
            self._ends.append(signal.SIGHUP)
        for number in self._ends:
            # Until the loop hears them, signals are kept for it: one that is lost here would leave
            # an actor that was asked to end, and whose sender waits for that.
            signal.signal(number, lambda received, _frame: self._early_signals.append(received))
        # A program that waits for signals in one thread blocks them in its others, and an actor
        # that it starts on demand inherits that. After the handlers: what is pending comes now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._ends)
        remove_leftovers(self.paths)
        build_id()  # now: after an update the files are no longer the code that runs
        try:
            # Before the file is opened: a client that finds no listener would start a second actor.
            listener = self._listener or bind(self.paths)
        except HermesActorError as error:
            _log.error("no client could reach this actor: %s", error)
            self._lock.release()
            self._readiness.fail(error)
            return exit_codes.REFUSED
        trio.run(self._main, listener)
        for number in self._ends:
            # Not a handler: the interpreter drops those while it ends, and a signal that comes
            # then would spoil a proper end.
            signal.signal(number, signal.SIG_IGN)
        self._mailbox.selector.close()
        self._lock.release()
        if self.writer is None and self.failure is not None:
            # Only now, without lock and socket: the next attempt must not meet this process.
            self._readiness.fail(self.failure)
        return exit_codes.OK if self.failure is None else exit_codes.REFUSED

    async def _main(self, listener: socket.socket) -> None:
        self._token = trio.lowlevel.current_trio_token()
        # Not in __init__: some of these read the clock of the running loop, or need its token.
        self._gate = Gate()
        self._draining = trio.Event()
        self._feed = ChangeFeed(self._changes, self.run_in_loop)
        resources = Resources(
            run_in_loop=self.run_in_loop,
            mailbox=self._mailbox,
            limiter=ByteLimiter(limits.CREDIT_TOTAL_BYTES, self.run_in_loop),
            gate=self._gate,
            backlog=Backlog(),
            unflushed=self._unflushed,
            metrics=self._metrics,
            drain_seconds=self._drain_seconds,
        )
        self._connections = ConnectionSet(resources, controls=self, ownership=self)
        self._reporter = StatusReporter(
            paths=self.paths,
            started=self._started,
            resources=resources,
            foreign_writers=self._foreign_writers,
            feed=self._feed,
            connections=self._connections,
            handoffs=self._handoffs,
        )
        file = SocketFile(place_of(listener, self.paths))
        if self._listener is not None:
            # It may come from a build that listens beside the file, and does not say so.
            with contextlib.suppress(OSError):
                record_place(self.paths, file.place)
        self._beside = ListenerBeside(self.paths)
        with trio.open_signal_receiver(*self._ends) as signals:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                # Before the early signals: drain() ends a period, so there must be one.
                self._begin_period()
                for number in self._early_signals:
                    self.drain(signal.Signals(number).name)
                nursery.start_soon(self._follow_signals, signals)
                for name, step in self._periodic(file).items():
                    nursery.start_soon(repeat, name, step)
                handed_over = await self._serve_periods(listener)
                nursery.cancel_scope.cancel()
        # A predecessor that may take back needs the socket.
        kept = handed_over or self._keep_socket or self._handoffs.predecessor_continues
        if not kept:
            file.remove()
        listener.close()
        # A successor listens there by now, and its socket stays.
        self._beside.close()

    def _periodic(self, file: SocketFile) -> dict[str, Callable[[], Awaitable[float]]]:
        """Return the periodic steps, by the name that the log has for each."""
        idle_watch = IdleWatch(
            self.paths,
            self._idle_exit,
            is_opened=lambda: self.opened.is_set(),
            is_in_use=self._is_in_use,
            last_left=lambda: self._connections.last_left,
            rescue=self._rescue_store,
            drain=self.drain,
        )
        steps: dict[str, Callable[[], Awaitable[float]]] = {
            "the check of home and clients": idle_watch.check,
            "the search for foreign writers": self._refresh_foreign_writers,
            "the expiry of requests": partial(
                expire_requests, self._mailbox, self._unflushed, lambda: open_lease(self.writer)
            ),
            "the check of the socket": partial(
                drain_if_socket_replaced, self.paths, self._lock, file, self.drain
            ),
            "the check for a second socket": self._beside.check,
        }
        if (seconds := self._manager.tick_seconds) is not None:
            steps["the watchdog"] = partial(
                notify_watchdog,
                self._mailbox,
                self._manager,
                seconds,
                lambda: self.has_handed_over,
            )
        if self._on_status is not None:
            steps["the live view"] = partial(show_status, self.status, self._on_status)
        return steps

    def _is_in_use(self) -> bool:
        # An actor that knows of a failed update stays: the next start might not come up (G12).
        attempt = self._handoffs.attempt
        handing_over = attempt is not None and not attempt.refused
        opening = not self.opened.is_set()
        clients = bool(self._connections.connections)
        return opening or handing_over or clients or not self._mailbox.is_empty

    async def _rescue_store(self) -> None:
        if self._rescue:
            await rescue_store(self.paths, self.writer, self._mailbox, self.run_in_loop)

    async def _refresh_foreign_writers(self) -> float:
        if self.writer is not None:
            await self._foreign_writers.refresh(self.writer.connection.foreign_commits)
        return limits.HOME_CHECK_SECONDS

    def _begin_period(self) -> None:
        # Jobs that the last period has left belong to clients that a successor has served since.
        for job in self._mailbox.drop_all():
            if job.take():
                job.on_done(Outcome(error=OutcomeUnknown("the actor had handed over")))
        self._period_over = trio.Event()
        self._gate.open()
        self._writer_thread = WriterThread(
            self.paths,
            self._mailbox,
            self._changes,
            self._unflushed,
            self._readiness,
            run_in_loop=self.run_in_loop,
            on_epoch=self._lock.describe,
            measured=self._metrics.batch,
            rescues=self._rescue,
            private_sql=self._private_sql,
            kind=self._kind,
        )
        self._writer_thread.start()
        self._nursery.start_soon(self._drain_on_writer_failure, self._writer_thread)

    async def _serve_periods(self, listener: socket.socket) -> bool:
        """Serve until a drain or until a successor serves. Return True for the latter."""
        while True:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self.receive, listener)
                await self._period_over.wait()
                accepting.cancel_scope.cancel()
            async with trio.open_nursery() as meanwhile:
                meanwhile.start_soon(self._receive_if_late, listener)
                await self._close_file()
                meanwhile.cancel_scope.cancel()
            # Again, for clients that were let in while the file was being closed.
            await self._connections.go_away_all(self._reason)
            if await self._handoffs.transfer(listener, self._draining):
                return True
            if self.is_draining:
                return False
            self._begin_period()

    async def _close_file(self) -> None:
        """Commit and answer what was admitted, and close the file."""
        try:
            await self._handoffs.release_predecessor()
        except HandoffFailed:
            pass  # a predecessor that is stopped finds, when it continues, an orderly end
        except Exception:
            _log.exception("the predecessor could not be released")
        failpoints.hit("drain.begin")
        # Half of the time is the writer's, the other half is for its answers to leave.
        self._writer_thread.leave_within(self._drain_seconds / 2)
        # Before GoAway: what a client sends from here on waits for the next writer, in this actor
        # or in another, and is never in two mailboxes.
        self._gate.shut()
        await self._connections.go_away_all(self._reason)
        failpoints.hit("drain.away")
        await self._writer_thread.stop()
        failpoints.hit("drain.closed")

    async def _receive_if_late(self, listener: socket.socket) -> None:
        """Accept clients again if the file takes long to close: they can ask for the status.

        Not at once: a client in the backlog then needs no second connection for the next actor.
        """
        await trio.sleep(limits.STALLED_SECONDS)
        await self.receive(listener)

    async def receive(self, listener: socket.socket) -> None:
        """Accept clients until cancelled."""
        accept = self._connections.accept
        async with trio.open_nursery() as accepting:
            accepting.start_soon(accept, listener, self._nursery)
            accepting.start_soon(self._beside.accept_with, accept, self._nursery)

    async def _drain_on_writer_failure(self, thread: WriterThread) -> None:
        """End an actor whose writer has stopped by itself."""
        await thread.closed.wait()
        if thread.failure is not None:
            explained = isinstance(thread.failure, ActorBroken)
            self.drain(f"{'' if explained else 'the writer has stopped: '}{thread.failure}")

    def drain(self, reason: str) -> None:
        """Begin to end; harmless when that has begun."""
        if not self._draining.is_set():
            _log.info("draining: %s", reason)
            self._reason = reason
            self._draining.set()
            self._period_over.set()
            # After that the successor is the main process of the service, and goes on.
            if not self._handoffs.has_handed_over:
                call(partial(self._manager.stopping, reason))

    def hand_off(self, request: wire.Handoff) -> HandoffAttempt:
        """Begin to hand over. Raises :class:`HandoffFailed` if that is not possible now."""
        return self._handoffs.begin(request, self._nursery)

    def leave_for_successor(self) -> None:
        """Close the file for a successor that is ready."""
        if not self.is_ending_period:
            self._reason = "hand-off"
            self._period_over.set()
            call(self._manager.reloading)

    # --- beside the periods ----------------------------------------------------------------------

    async def _follow_signals(self, signals: Any) -> None:
        async for number in signals:
            # A second signal: the sender does not want to wait for slow clients. Commits are still
            # finished.
            if self._draining.is_set():
                self._connections.skip_flush_wait()
            self.drain(signal.Signals(number).name)

    async def follow(self, outbox: Outbox, after: int | None) -> None:
        """Send changes to the connection of a subscriber until cancelled."""
        await self.opened.wait()
        await self._feed.feed(outbox, after)

    # --- either thread ---------------------------------------------------------------------------

    def run_in_loop(self, function: Callable[[], None]) -> None:
        """Run *function* soon in the event loop; from any thread, also when the loop has ended."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, function)
