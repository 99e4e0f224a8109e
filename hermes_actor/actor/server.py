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
from collections import deque
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
from hermes_actor.actor.listener import bind, remove_socket
from hermes_actor.actor.metrics import Metrics
from hermes_actor.actor.outbox import Backlog
from hermes_actor.actor.sd_notify import ServiceManager
from hermes_actor.actor.socket_activation import leave_if_replaced, socket_id
from hermes_actor.actor.status import ForeignWriters, describe
from hermes_actor.actor.tasks import call, repeat
from hermes_actor.actor.timers import Watch, expire, look_for_foreigners, show_status
from hermes_actor.actor.watchdog import WatchedMailbox, tick
from hermes_actor.actor.writer_thread import WriterThread
from hermes_actor.build import build_id
from hermes_actor.engine.change_log import ChangeLog
from hermes_actor.engine.jobs import Outcome
from hermes_actor.errors import ActorBroken, HandoffFailed, OutcomeUnknown
from hermes_actor.recovery.scratch import remove_leftovers
from hermes_protocol.status import Phase, PhaseReport

if TYPE_CHECKING:
    import hermes_protocol.messages as wire
    from hermes_actor.actor.handoff.attempt import HandoffAttempt
    from hermes_actor.actor.handoff.receiver import PredecessorLink
    from hermes_actor.actor.outbox import Outbox
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.engine.writer import Writer
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import Status

__all__ = ["Server"]

_log = logging.getLogger("hermes_actor.actor")


class Server:
    """Everything that one actor serves; one object per database."""

    def __init__(
        self,
        paths: StorePaths,
        lock: OwnerLock,
        *,
        listener: socket.socket | None = None,
        keep_socket: bool = False,
        predecessor: PredecessorLink | None = None,
        pinned: bool = False,
        supervisor: ServiceManager | None = None,
        successor_options: Sequence[str] = (),
        idle_exit: float | None = None,
        drain_seconds: float = limits.DRAIN_SECONDS,
        private_sql: bool = True,
        rescue: bool = True,
        on_ready: Callable[[BaseException | None], None] = lambda _error: None,
        on_phase: Callable[[PhaseReport], None] = lambda _phase: None,
        on_status: Callable[[Status], None] | None = None,
    ) -> None:
        """*listener* was handed on to us by *predecessor*, or passed by a service manager, whose
        path it then is (*keep_socket*); ``None``: make one. *supervisor* is that manager.
        *pinned*: clients may not have us hand over by themselves. *successor_options* go to the
        command line of a successor. *idle_exit* seconds without connections end the actor;
        ``None``: never.

        *on_ready* is called when the actor serves, and once if it has failed to open the file;
        *on_phase* with what takes long before that. *on_status* gets the status document now and
        then, in a thread of its own: a terminal that takes nothing must not hold us up.
        """
        self.paths = paths
        self._private_sql = private_sql
        self.rescue = rescue
        self.drain_seconds = drain_seconds
        self.started = time.time()
        self.metrics = Metrics()
        self.mailbox = WatchedMailbox()
        self.backlog = Backlog()
        self.foreigners = ForeignWriters(paths)
        self._lock = lock
        self._listener = listener
        self._keep_socket = keep_socket
        self._supervisor = supervisor or ServiceManager()
        self.succession = HandoffCoordinator(
            self, lock, predecessor, pinned=pinned, options=successor_options
        )
        self._idle_exit = idle_exit
        self._on_ready = on_ready
        self._on_phase = on_phase
        self._on_status = on_status
        self._changes = ChangeLog()
        self._dirty: deque[Outbox] = deque()
        self._reason = ""
        self._early: list[int] = []
        """Signals that came before the event loop ran."""

    # --- how it is -------------------------------------------------------------------------------

    @property
    def phase(self) -> PhaseReport:
        """The state of the actor: that of its writer, unless the period is about to end."""
        report = self._writing.phase
        if self.succession.stuck is not None:
            return PhaseReport(Phase.CLOSED, self.succession.stuck)
        if report.phase is Phase.SERVING and self.is_leaving:
            return PhaseReport(Phase.DRAINING if self.is_draining else Phase.HANDING_OVER)
        return report

    @property
    def writer(self) -> Writer | None:
        """The writer, once the file is open."""
        return self._writing.writer

    @property
    def failure(self) -> BaseException | None:
        """Why the writer has stopped, if it has stopped by itself."""
        return self._writing.failure

    @property
    def could_not_open(self) -> bool:
        return self.writer is None and self.failure is not None

    @property
    def is_draining(self) -> bool:
        """Whether the actor is about to end."""
        return self._draining.is_set()

    @property
    def is_leaving(self) -> bool:
        """Whether this period of ownership is about to end, for whatever reason."""
        return self._turn.is_set()

    @property
    def opened(self) -> trio.Event:
        """Set when the file is open, or will not be."""
        return self._writing.opened

    def status(self) -> Status:
        """Return the status document. Event loop only."""
        return describe(self, self.reception.connections)

    def status_json(self) -> str:
        # A path that is not UTF-8 must not keep its reader from the rest of the document.
        text = json.dumps(self.status().document(), ensure_ascii=False)
        return text.encode("utf-8", "replace").decode()

    # --- life ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until told to end. Returns the exit code."""
        sys.setswitchinterval(limits.SWITCH_INTERVAL_SECONDS)
        self._ends = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # The terminal of `serve` was closed; under nohup it may be.
            self._ends.append(signal.SIGHUP)
        for number in self._ends:
            # Until the loop hears them, signals are kept for it: one that is lost here would leave
            # an actor that was asked to end, and whose sender waits for that.
            signal.signal(number, lambda received, _frame: self._early.append(received))
        # A program that waits for signals in one thread blocks them in its others, and an actor
        # that it starts on demand inherits that. After the handlers: what is pending comes now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._ends)
        remove_leftovers(self.paths)
        build_id()  # now: after an update the files are no longer the code that runs
        trio.run(self._main)
        for number in self._ends:
            # Not a handler: the interpreter drops those while it ends, and a signal that comes
            # then would spoil a proper end.
            signal.signal(number, signal.SIG_IGN)
        self.mailbox.intake.close()
        self._lock.release()
        if self.writer is None:
            # Told only now: whoever tries again must not find us still here.
            self._on_ready(self.failure)
        return exit_codes.OK if self.failure is None else exit_codes.REFUSED

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.credit = ByteLimiter(limits.CREDIT_TOTAL_BYTES, self.in_loop)
        self.followers = ChangeFeed(self._changes, self.in_loop)
        self.gate = Gate()
        self.reception = ConnectionSet(self)
        self._draining = trio.Event()
        listener = self._listener or bind(self.paths)
        at_path = socket_id(self.paths)
        with trio.open_signal_receiver(*self._ends) as signals:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._begin_period()
                for number in self._early:
                    self.drain(signal.Signals(number).name)
                nursery.start_soon(self._follow_signals, signals)
                for name, step in self._periodic(at_path).items():
                    nursery.start_soon(repeat, name, step)
                handed_over = await self._own(listener)
                nursery.cancel_scope.cancel()
        # One whose predecessor was not dismissed leaves it the socket: it takes back.
        kept = handed_over or self._keep_socket or self.succession.is_taken_back_from
        if not kept and socket_id(self.paths) == at_path:
            remove_socket(self.paths)
        listener.close()

    def _periodic(
        self, at_path: tuple[int, int] | None
    ) -> dict[str, Callable[[], Awaitable[float]]]:
        """What is done by the clock, by the name that the log calls it."""
        steps: dict[str, Callable[[], Awaitable[float]]] = {
            "the look at home and clients": Watch(self, self._idle_exit).look,
            "the look for foreign writers": partial(look_for_foreigners, self),
            "the refusal of late requests": partial(expire, self),
            "the look at the socket": partial(leave_if_replaced, self, self._lock, at_path),
        }
        if (seconds := self._supervisor.tick_seconds) is not None:
            steps["the watchdog"] = partial(tick, self, self._supervisor, seconds)
        if self._on_status is not None:
            steps["the live view"] = partial(show_status, self, self._on_status)
        return steps

    def _begin_period(self) -> None:
        # What is left is of clients that the actor between has served.
        for job in self.mailbox.drop_all():
            if job.take():
                job.on_done(Outcome(error=OutcomeUnknown("the actor had handed over")))
        self._turn = trio.Event()
        self.gate.open()
        self._writing = WriterThread(
            self.paths,
            self.mailbox,
            self._changes,
            in_loop=self.in_loop,
            on_epoch=self._lock.describe,
            on_phase=lambda phase: call(partial(self._on_phase, phase)),
            on_ready=lambda error: call(partial(self._on_ready, error)),
            sent=self.flush_answers,
            measured=self.metrics.batch,
            rescues=self.rescue,
            private_sql=self._private_sql,
        )
        self._writing.start()
        self._nursery.start_soon(self._mourn, self._writing)

    async def _own(self, listener: socket.socket) -> bool:
        """Periods of ownership, until a drain or a successor that serves. True for the latter."""
        while True:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self.receive, listener)
                await self._turn.wait()
                accepting.cancel_scope.cancel()
            async with trio.open_nursery() as meanwhile:
                meanwhile.start_soon(self._receive_if_late, listener)
                await self._close_file()
                meanwhile.cancel_scope.cancel()
            await self.reception.send_all_away(self._reason)
            if await self.succession.give(listener, self._draining):
                return True
            if self.is_draining:
                return False
            self._begin_period()

    async def _close_file(self) -> None:
        """Commit and answer what was admitted, and close the file."""
        try:
            await self.succession.dismiss_predecessor()
        except HandoffFailed:
            pass  # one that is stopped finds, when it goes on, that we ended in order
        except Exception:
            _log.exception("the actor before this one could not be dismissed")
        failpoints.hit("drain.begin")
        # Half of the time is the writer's, the other half is for its answers to leave.
        self._writing.leave_within(self.drain_seconds / 2)
        self.gate.shut()
        await self.reception.send_all_away(self._reason)
        failpoints.hit("drain.away")
        await self._writing.stop()
        failpoints.hit("drain.closed")

    async def _receive_if_late(self, listener: socket.socket) -> None:
        """If the file takes long to close, let clients in again: they can ask for the status.

        Not at once: whoever waits in the backlog needs no second connection for the next actor.
        """
        await trio.sleep(limits.STALLED_SECONDS)
        await self.receive(listener)

    async def receive(self, listener: socket.socket) -> None:
        """Let clients in until cancelled."""
        await self.reception.accept(listener, self._nursery)

    async def _mourn(self, writing: WriterThread) -> None:
        """An actor whose writer has stopped by itself ends."""
        await writing.closed.wait()
        if writing.failure is not None:
            told = isinstance(writing.failure, ActorBroken)
            self.drain(f"{'' if told else 'the writer has stopped: '}{writing.failure}")

    def drain(self, reason: str) -> None:
        """Begin to end; harmless when it has begun."""
        if not self._draining.is_set():
            _log.info("draining: %s", reason)
            self._reason = reason
            self._draining.set()
            self._turn.set()
            if not self.succession.is_over:
                call(partial(self._supervisor.stopping, reason))

    def hand_off(self, request: wire.Handoff) -> HandoffAttempt:
        """Begin to hand over. Raises :class:`HandoffFailed` if that cannot be now."""
        return self.succession.begin(request, self._nursery)

    def leave_for_successor(self) -> None:
        """A successor is ready: close the file for it."""
        if not self.is_leaving:
            self._reason = "hand-off"
            self._turn.set()
            call(self._supervisor.reloading)

    # --- around it -------------------------------------------------------------------------------

    async def _follow_signals(self, signals: Any) -> None:
        async for number in signals:
            if self._draining.is_set():
                self.reception.hurry()
            self.drain(signal.Signals(number).name)

    async def follow(self, outbox: Outbox, after: int | None) -> None:
        """Feed changes to a connection that has subscribed."""
        await self.opened.wait()
        await self.followers.feed(outbox, after)

    # --- either thread ---------------------------------------------------------------------------

    def in_loop(self, function: Callable[[], None]) -> None:
        """Run *function* soon in the event loop; from any thread, even when the loop is gone."""
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call, function)

    def dirty(self, outbox: Outbox) -> None:
        """Answers wait in *outbox*; they leave together at the end of the batch."""
        self._dirty.append(outbox)

    def flush_answers(self) -> None:
        """Send the answers that wait in outboxes."""
        # A deque, because the event loop answers too, now and then.
        while self._dirty:
            with contextlib.suppress(IndexError):
                outbox = self._dirty.popleft()
                try:
                    outbox.flush()
                except Exception:
                    _log.exception("answers could not be sent; their connection ends")
                    outbox.give_up()
