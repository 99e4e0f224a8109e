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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import trio

import hermes_protocol.messages as wire
from hermes_actor import exits, failpoints, limits
from hermes_actor.actor.activation import leave_if_replaced, socket_id
from hermes_actor.actor.credit import Credit
from hermes_actor.actor.followers import Followers
from hermes_actor.actor.handoff import HandOff
from hermes_actor.actor.housekeeping import expire, show_status, watch
from hermes_actor.actor.listener import bind, remove_socket
from hermes_actor.actor.metrics import Metrics
from hermes_actor.actor.notify import Supervisor
from hermes_actor.actor.reception import Reception
from hermes_actor.actor.status import Foreigners, describe
from hermes_actor.actor.succeeding import Predecessor
from hermes_actor.actor.watchdog import WatchedMailbox, tick
from hermes_actor.actor.writing import Writing
from hermes_actor.build import build_id
from hermes_actor.engine.changes import ChangeRing
from hermes_actor.errors import HandoffFailed
from hermes_actor.versions import is_newer
from hermes_protocol.succession import TakeOver

if TYPE_CHECKING:
    from hermes_actor.actor.outbox import Outbox
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.engine.writer import Writer
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
        listener: socket.socket | None = None,
        keep_socket: bool = False,
        predecessor: Predecessor | None = None,
        pinned: bool = False,
        supervisor: Supervisor | None = None,
        successor_options: Sequence[str] = (),
        idle_exit: float | None = None,
        drain_seconds: float = limits.DRAIN_SECONDS,
        private_sql: bool = True,
        rescue: bool = True,
        on_ready: Callable[[BaseException | None], None] = lambda _error: None,
        on_phase: Callable[[str], None] = lambda _phase: None,
        on_status: Callable[[dict[str, Any]], None] | None = None,
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
        self.place = place
        self.private_sql = private_sql
        self.rescue = rescue
        self.drain_seconds = drain_seconds
        self.started = time.time()
        self.metrics = Metrics()
        self.mailbox = WatchedMailbox()
        self.foreigners = Foreigners(place)
        self.handoff: HandOff | None = None
        self._lock = lock
        self._listener = listener
        self._keep_socket = keep_socket
        self._predecessor = predecessor
        self._pinned = pinned
        self._supervisor = supervisor or Supervisor()
        self._successor_options = successor_options
        self._idle_exit = idle_exit
        self._on_ready = on_ready
        self._on_phase = on_phase
        self._on_status = on_status
        self._changes = ChangeRing()
        self._dirty: deque[Outbox] = deque()
        self._asked_by_build: dict[str, float] = {}
        self._stuck: str | None = None
        self._reason = ""

    # --- how it is -------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """What the actor is doing, in a word or two."""
        phase = self._writing.phase
        if self._stuck is not None:
            return self._stuck
        if phase == "serving" and self._turn.is_set():
            return "draining" if self._draining.is_set() else "handing over"
        return phase

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
    def is_taken_back_from(self) -> bool:
        """Whether the one before us goes on if we cannot: clients then need not hear of it."""
        return self._predecessor is not None

    @property
    def opened(self) -> trio.Event:
        """Set when the file is open, or will not be."""
        return self._writing.opened

    def status(self) -> dict[str, Any]:
        """The status document. In the event loop."""
        return describe(self, self.reception.connections)

    def status_json(self) -> str:
        return json.dumps(self.status())

    # --- life ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until told to end. Returns the exit code."""
        sys.setswitchinterval(limits.SWITCH_INTERVAL_SECONDS)
        for number in (signal.SIGTERM, signal.SIGINT):
            # Heard while the loop runs. One that comes after must not spoil a proper end.
            signal.signal(number, signal.SIG_IGN)
        build_id()  # now: after an update the files are no longer the code that runs
        trio.run(self._main)
        self.mailbox.intake.close()
        self._lock.release()
        if self.writer is None:
            # Told only now: whoever tries again must not find us still here.
            self._on_ready(self.failure)
        return exits.OK if self.failure is None else exits.REFUSED

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self.credit = Credit(limits.CREDIT_TOTAL_BYTES, self.in_loop)
        self.followers = Followers(self._changes, self.in_loop)
        self.reception = Reception(self)
        self._draining = trio.Event()
        listener = self._listener or bind(self.place)
        at_path = socket_id(self.place)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._begin_period()
                nursery.start_soon(self._follow_signals, signals)
                nursery.start_soon(watch, self, self._idle_exit)
                nursery.start_soon(expire, self)
                nursery.start_soon(leave_if_replaced, self, self._lock, at_path)
                nursery.start_soon(tick, self, self._supervisor)
                if self._on_status is not None:
                    nursery.start_soon(show_status, self, self._on_status)
                handed_over = await self._own(listener)
                nursery.cancel_scope.cancel()
        # One whose predecessor was not dismissed leaves it the socket: it takes back.
        kept = handed_over or self._keep_socket or self._predecessor is not None
        if not kept and socket_id(self.place) == at_path:
            remove_socket(self.place)
        listener.close()

    def _begin_period(self) -> None:
        self._turn = trio.Event()
        self._writing = Writing(
            self.place,
            self.mailbox,
            self._changes,
            in_loop=self.in_loop,
            on_epoch=self._lock.describe,
            on_phase=self._on_phase,
            on_ready=self._on_ready,
            sent=self.flush_answers,
            measured=self.metrics.batch,
        )
        self._writing.start()
        self._nursery.start_soon(self._mourn, self._writing)

    async def _own(self, listener: socket.socket) -> bool:
        """Periods of ownership, until a drain or a successor that serves. True for the latter."""
        while True:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self.reception.accept, listener, self._nursery)
                await self._turn.wait()
                accepting.cancel_scope.cancel()
            with contextlib.suppress(HandoffFailed):
                # One that is stopped finds, when it goes on, that we ended in order.
                await self._dismiss_predecessor()
            failpoints.hit("drain.begin")
            await self.reception.send_all_away(self._reason)
            failpoints.hit("drain.away")
            await self._writing.stop()
            failpoints.hit("drain.closed")
            handoff = self.handoff
            if self._draining.is_set() or handoff is None:
                if handoff is not None and not handoff.finished.is_set():
                    await self._call_off(handoff, HandoffFailed("the actor was told to end"))
                return False
            if await self._give(handoff, listener):
                return True
            if self._draining.is_set():
                return False
            self._begin_period()

    async def _mourn(self, writing: Writing) -> None:
        """An actor whose writer has stopped by itself ends."""
        await writing.closed.wait()
        if writing.failure is not None:
            self.drain(f"the writer has stopped: {writing.failure}")

    def drain(self, reason: str) -> None:
        """Begin to end; harmless when it has begun."""
        if not self._draining.is_set():
            _log.info("draining: %s", reason)
            self._reason = reason
            if not self.handed_over:
                self._supervisor.stopping(reason)
            self._draining.set()
            self._turn.set()

    # --- hand-off --------------------------------------------------------------------------------

    def hand_off(self, request: wire.Handoff) -> HandOff:
        """Begin to hand over. Raises :class:`HandoffFailed` if that cannot be now."""
        if self._draining.is_set():
            raise HandoffFailed("the actor is draining")
        if self.handoff is not None and not self.handoff.finished.is_set():
            raise HandoffFailed(f"another hand-off is under way: {self.handoff.step}")
        if self._turn.is_set() or self.writer is None:
            raise HandoffFailed(f"the actor is {self.phase}")
        if not request.wait:
            self._check_worth(request.build)
        self.handoff = handoff = HandOff(request)
        self._nursery.start_soon(self._prepare, handoff)
        return handoff

    def _check_worth(self, build: str) -> None:
        """A client asks by itself: only for a newer build, and not again and again."""
        if self._pinned:
            raise HandoffFailed(
                f"build {build_id()} was asked for by somebody; so must be the next"
            )
        if not is_newer(build, than=build_id()):
            raise HandoffFailed(f"build {build} is not newer than {build_id()}")
        last, now = self._asked_by_build.get(build, float("-inf")), time.monotonic()
        if now - last < limits.HANDOFF_RETRY_SECONDS:
            raise HandoffFailed(f"build {build} was tried less than a minute ago")
        self._asked_by_build[build] = now

    async def _prepare(self, handoff: HandOff) -> None:
        try:
            await handoff.prepare(self.place, self._successor_options)
            await self._dismiss_predecessor()
        except HandoffFailed as error:
            await self._call_off(handoff, error)
            return
        if not self._turn.is_set():
            self._reason = "hand-off"
            self._supervisor.reloading()
            self._turn.set()

    async def _dismiss_predecessor(self) -> None:
        """The one before us may no longer take back from us."""
        # One that could not open the file has nothing to settle: it says why when it ends.
        if self._predecessor is not None and not self.could_not_open:
            await trio.to_thread.run_sync(self._predecessor.dismiss)
            self._predecessor = None

    async def _give(self, handoff: HandOff, listener: socket.socket) -> bool:
        """The file is closed: hand over, stay for a while. False if it is ours again."""
        assert self.writer is not None
        message = TakeOver(
            epoch=self.writer.epoch,
            commit_no=self.writer.commit_no,
            pinned=handoff.request.allow_older,
        )
        try:
            await handoff.give(message, listener.fileno(), self._lock.fileno())
        except HandoffFailed as error:
            await self._call_off(handoff, error, listener)
            return False
        return await handoff.stay(self._draining)

    async def _call_off(
        self, handoff: HandOff, error: HandoffFailed, listener: socket.socket | None = None
    ) -> None:
        """See the end of the successor. If it does not end, tell clients why nothing moves."""
        async with trio.open_nursery() as nursery:
            if listener is not None:
                nursery.start_soon(self._receive_meanwhile, handoff, listener)
            await handoff.end_successor()
            nursery.cancel_scope.cancel()
        self._stuck = None
        handoff.fail(error)

    async def _receive_meanwhile(self, handoff: HandOff, listener: socket.socket) -> None:
        await trio.sleep(limits.SUCCESSOR_END_SECONDS)
        pid = handoff.report()["pid"]
        self._stuck = f"closed: the failed successor, pid {pid}, cannot be ended"
        _log.error("%s", self._stuck)
        await self.reception.accept(listener, self._nursery)

    @property
    def handed_over(self) -> bool:
        """Whether a successor serves."""
        handoff = self.handoff
        return handoff is not None and handoff.finished.is_set() and handoff.error is None

    @property
    def failed_update(self) -> str | None:
        """Why the last hand-off failed (G12)."""
        handoff = self.handoff
        if handoff is None or handoff.error is None or handoff.refused:
            return None
        return str(handoff.error)

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
            self._token.run_sync_soon(function)

    def dirty(self, outbox: Outbox) -> None:
        """Answers wait in *outbox*; they leave together at the end of the batch."""
        self._dirty.append(outbox)

    def flush_answers(self) -> None:
        """Send the answers that wait in outboxes."""
        # A deque, because the event loop answers too, now and then.
        while self._dirty:
            with contextlib.suppress(IndexError):
                self._dirty.popleft().flush()
