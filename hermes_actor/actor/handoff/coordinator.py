"""The hand-offs of one actor: each attempt, and the rules about when one may begin.

Rules: one attempt at a time; none while the actor drains or opens the file; no downgrade unless a
person asks for it; no loop of clients that ask by themselves; and never two processes that could
take back. An attempt outlives the client that asked for it. Its steps: start a successor and wait
until it is ready, while this actor serves on; close the file; pass the descriptors; wait until the
successor serves; watch it for a while, to take back. Whatever fails, the old actor has seen the
exit of the successor before it opens the file again.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import trio
import trio.lowlevel

import hermes_protocol.messages as wire
from hermes_actor import failpoints, limits
from hermes_actor.actor.handoff.child import SuccessorProcess
from hermes_actor.build import build_id, is_newer
from hermes_actor.errors import HandoffFailed
from hermes_protocol.handoff import Ready, TakeOver
from hermes_protocol.status import HandoffStatus, HandoffStep

if TYPE_CHECKING:
    from hermes_actor.actor.handoff.receiver import PredecessorLink
    from hermes_actor.engine.ownership import OwnerLock
    from hermes_actor.engine.writer import Writer
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import PhaseReport

__all__ = ["HandoffAttempt", "HandoffCoordinator", "Host"]

_log = logging.getLogger("hermes_actor.actor")

_BUILD_LENGTH = 200
_FIRST_PROCESS = 1


class HandoffAttempt:
    """One attempt to hand over to another build. Event loop only."""

    def __init__(self, request: wire.Handoff) -> None:
        self.request = request
        self.step = HandoffStep.STARTING
        self.error: HandoffFailed | None = None
        self.refused = False
        """True if the build of the successor may not take over; then it is no failed update."""
        self.finished = trio.Event()
        self.at = time.time()
        self._successor: SuccessorProcess | None = None
        self.pid: int | None = None
        self._build = request.build

    def status(self) -> HandoffStatus:
        """Return this attempt's part of the status document."""
        failed = None if self.error is None else str(self.error)
        return HandoffStatus(
            step=self.step, at=self.at, pid=self.pid, build=self._build, failed=failed
        )

    def result(self) -> dict[str, Any]:
        """Return the outcome for the requester. Raises :class:`HandoffFailed` if it failed."""
        if self.error is not None:
            raise HandoffFailed(str(self.error))
        return {"pid": self.pid, "build": self._build}

    async def prepare(self, paths: StorePaths, options: Sequence[str]) -> None:
        """Start a successor and wait until it is ready. The file is still open and served."""
        failpoints.hit("handoff.start")
        self._successor = await SuccessorProcess.start(paths, self.request.python, options)
        self.pid = self._successor.pid
        if self.error is not None:
            # Aborted while the successor was being started.
            await self.end_successor()
            raise self.error
        ready = await self._ready(self._successor)
        self._build = ready.build
        # Set for the checks below and removed behind them: whichever of them raises, this build is
        # refused, and no update has failed.
        self.refused = True
        if not ready.oldest <= wire.PROTOCOL <= ready.newest:
            raise HandoffFailed(
                f"build {ready.build} speaks protocol {ready.oldest} to {ready.newest}, and the"
                f" clients of this actor {wire.PROTOCOL}"
            )
        if is_newer(build_id(), than=ready.build) and not self.request.allow_older:
            raise HandoffFailed(
                f"build {ready.build} is older than {build_id()}, which serves; to go back use"
                f" --allow-older"
            )
        if not self.request.wait and not is_newer(ready.build, than=build_id()):
            # Or else two builds that each claim to be newer would hand over to and fro.
            raise HandoffFailed(
                f"{self.request.python} has build {ready.build}, which is not newer"
            )
        self.refused = False
        _log.info("hand-off: successor pid %d, build %s, is ready", ready.pid, ready.build)
        failpoints.hit("handoff.ready")
        self.step = HandoffStep.CLOSING

    async def _ready(self, successor: SuccessorProcess) -> Ready:
        try:
            return await successor.ready()
        except HandoffFailed as error:
            if self._successor is None:
                # An abort is ending the successor, and will set the reason.
                await self.finished.wait()
                raise self.error or error from None
            raise

    async def transfer(self, message: TakeOver, listener: int, lock: int) -> None:
        """Pass the descriptors of a closed file, and wait until the successor serves it.

        Raises :class:`HandoffFailed` if it does not.
        """
        assert self._successor is not None
        self.step = HandoffStep.TRANSFERRED
        failpoints.hit("handoff.closed")
        # From here on the successor may open the file, whatever this process hears of it.
        self._successor.send_descriptors(message, listener, lock)
        failpoints.hit("handoff.given")
        await self._successor.serving()
        _log.info("hand-off: pid %d serves", self._successor.pid)
        self.step = HandoffStep.DONE
        self.finished.set()

    async def watch_successor(self, until: trio.Event) -> bool:
        """Stay for a while in case the successor dies. Return False if the file is to be taken
        back: the successor has exited, and has not settled before that."""
        successor = self._successor
        assert successor is not None
        code: int | None = None
        failpoints.hit("handoff.stay")
        # Three ends besides the time: a drain of this actor, a successor that settles, and its
        # exit.
        with trio.move_on_after(limits.HANDOFF_STAY_SECONDS) as stay:
            async with trio.open_nursery() as nursery:

                async def leave(event: Callable[[], Awaitable[object]]) -> None:
                    await event()
                    stay.cancel()

                nursery.start_soon(leave, until.wait)
                nursery.start_soon(leave, successor.wait_settled)
                code = await successor.exited()
                # What it sent before its exit counts: let the other task read it.
                await trio.lowlevel.checkpoint()
                stay.cancel()
        if code is not None and not successor.has_settled():
            _log.error("hand-off: successor pid %s exited with %d; taking back", self.pid, code)
            await self.end_successor()
            self.fail(HandoffFailed("the successor served and then ended by itself"))
            return False
        successor.detach()
        return True

    async def end_successor(self) -> None:
        """Kill the successor, if there is one, and see its exit, however long that takes."""
        if self._successor is not None:
            successor, self._successor = self._successor, None
            await successor.end()

    def fail(self, error: HandoffFailed) -> None:
        """Fail the attempt. The first cause is the one that is reported."""
        if self.error is not None:
            return
        _log.error("hand-off: failed while %s: %s", self.step.value, error)
        self.error = error
        self.finished.set()


class Host(Protocol):
    """The actor as its hand-offs need it."""

    @property
    def phase(self) -> PhaseReport:
        """The state of the actor, for the text of a refusal."""
        ...

    @property
    def writer(self) -> Writer | None:
        """The writer, once the file is open; its numbers are still there after the close."""
        ...

    @property
    def could_not_open(self) -> bool:
        """True if this actor has never had the file open, and will not."""
        ...

    @property
    def is_draining(self) -> bool:
        """True if the actor is about to end."""
        ...

    @property
    def is_ending_period(self) -> bool:
        """True if this period of ownership is about to end, for whatever reason."""
        ...

    def leave_for_successor(self) -> None:
        """Close the file for a successor that is ready."""
        ...

    async def receive(self, listener: socket.socket) -> None:
        """Accept clients until cancelled."""
        ...


class HandoffCoordinator:
    """The hand-offs of one actor. Event loop only."""

    def __init__(
        self,
        host: Host,
        paths: StorePaths,
        lock: OwnerLock,
        predecessor: PredecessorLink | None,
        *,
        pinned: bool,
        options: Sequence[str],
    ) -> None:
        """*pinned*: clients cannot start a hand-off by themselves. *options* go to the command line
        of a successor."""
        self.attempt: HandoffAttempt | None = None
        self.blocked_reason: str | None = None
        """The reason why the file stays closed: a failed successor that cannot be ended."""
        self._host = host
        self._paths = paths
        self._lock = lock
        self._predecessor = predecessor
        self._pinned = pinned
        self._options = options
        self._asked_by_build: dict[str, float] = {}

    # --- state -----------------------------------------------------------------------------------

    @property
    def predecessor_continues(self) -> bool:
        """True if the predecessor serves on if this actor cannot: clients then see no failure."""
        return self._predecessor is not None

    @property
    def has_handed_over(self) -> bool:
        """True if a successor serves."""
        attempt = self.attempt
        return attempt is not None and attempt.finished.is_set() and attempt.error is None

    @property
    def failed_update(self) -> str | None:
        """The reason why the last update failed (G12)."""
        attempt = self.attempt
        if attempt is None or attempt.error is None or attempt.refused:
            return None
        return str(attempt.error)

    # --- the request -----------------------------------------------------------------------------

    def begin(self, request: wire.Handoff, nursery: trio.Nursery) -> HandoffAttempt:
        """Begin to hand over. Raises :class:`HandoffFailed` if that is not possible now."""
        host = self._host
        # In this order, so that the refusal names the cause and not its consequence: a drain ends
        # the period as well, and so does a hand-off.
        if host.is_draining:
            raise HandoffFailed("the actor is draining")
        if os.getpid() == _FIRST_PROCESS:
            # The successor would be killed with all others of the container.
            raise HandoffFailed(
                "the actor is process 1 of its container, which ends with it; start a container"
                " with the new code instead: clients wait for it"
            )
        if self.attempt is not None and not self.attempt.finished.is_set():
            raise HandoffFailed(f"another hand-off is under way: {self.attempt.step.value}")
        if host.is_ending_period or host.writer is None:
            raise HandoffFailed(f"the actor is {host.phase.text}")
        if not request.wait:
            self._check_automatic_request(request.build)
        self.attempt = attempt = HandoffAttempt(request)
        nursery.start_soon(self._prepare, attempt)
        return attempt

    def _check_automatic_request(self, build: str) -> None:
        """Refuse what a client may not ask for by itself: an older build, or the same one again."""
        if self._pinned:
            raise HandoffFailed(
                f"build {build_id()} was pinned with --allow-older; automatic hand-off is disabled"
                f" until `hermes-actor handoff` is run"
            )
        # Bounded, because the names are kept for a minute (G8).
        if len(build) > _BUILD_LENGTH:
            raise HandoffFailed(f"build {build[:_BUILD_LENGTH]}... is not the name of a build")
        if not is_newer(build, than=build_id()):
            raise HandoffFailed(f"build {build} is not newer than {build_id()}")
        since = time.monotonic() - limits.HANDOFF_RETRY_SECONDS
        self._asked_by_build = {b: at for b, at in self._asked_by_build.items() if at > since}
        if build in self._asked_by_build:
            raise HandoffFailed(
                f"build {build} was tried less than {limits.HANDOFF_RETRY_SECONDS:.0f} s ago"
            )
        self._asked_by_build[build] = time.monotonic()

    async def _prepare(self, attempt: HandoffAttempt) -> None:
        try:
            await attempt.prepare(self._paths, self._options)
            # Before the file is closed: with three in a row, the death of the middle one would
            # leave two processes that take back.
            await self.release_predecessor()
        except Exception as error:
            await self._abort(attempt, _failed_by(error))
        else:
            self._host.leave_for_successor()

    # --- the transfer ----------------------------------------------------------------------------

    async def release_predecessor(self) -> None:
        """Have the predecessor exit: it may no longer take back."""
        # An actor that could not open the file has nothing to settle: its failure is reported when
        # it exits, and the predecessor takes back.
        if self._predecessor is not None and not self._host.could_not_open:
            await trio.to_thread.run_sync(self._predecessor.release_predecessor)
            self._predecessor = None

    async def transfer(self, listener: socket.socket, draining: trio.Event) -> bool:
        """Hand over the closed file and watch the successor for a while.

        Return False if there is no attempt, or if the file is to be opened again.
        """
        attempt, writer = self.attempt, self._host.writer
        if attempt is None:
            return False
        if draining.is_set():
            # A drain wins: an actor that was asked to end must not leave another one running.
            if not attempt.finished.is_set():
                await self._abort(attempt, HandoffFailed("the actor is draining, and exits"))
            return False
        try:
            assert writer is not None
            message = TakeOver(
                epoch=writer.epoch, commit_no=writer.commit_no, pinned=attempt.request.allow_older
            )
            await attempt.transfer(message, listener.fileno(), self._lock.fileno())
        except Exception as error:
            await self._abort(attempt, _failed_by(error), listener)
            return False
        try:
            return await attempt.watch_successor(draining)
        except Exception:
            # The successor serves and owns the file. This actor exits without having watched it.
            _log.exception("hand-off: unexpected error after the successor began to serve")
            return True

    async def _abort(
        self, attempt: HandoffAttempt, error: HandoffFailed, listener: socket.socket | None = None
    ) -> None:
        """See the exit of the successor. If it does not exit, report to clients why they wait."""
        async with trio.open_nursery() as nursery:
            if listener is not None:
                nursery.start_soon(self._receive_meanwhile, attempt, listener)
            # However long it takes: the file stays closed until the exit was seen, since both hold
            # the lock and it does not keep them apart.
            await attempt.end_successor()
            nursery.cancel_scope.cancel()
        self.blocked_reason = None
        # Last: the requester hears of the failure when no successor is left.
        attempt.fail(error)

    async def _receive_meanwhile(self, attempt: HandoffAttempt, listener: socket.socket) -> None:
        await trio.sleep(limits.SUCCESSOR_END_SECONDS)
        self.blocked_reason = f"the failed successor, pid {attempt.pid}, cannot be ended"
        _log.error("closed: %s", self.blocked_reason)
        await self._host.receive(listener)


def _failed_by(error: Exception) -> HandoffFailed:
    """Return the failure of an attempt. Whatever is raised, the actor itself has not failed."""
    if isinstance(error, HandoffFailed):
        return error
    _log.error("hand-off: unexpected error", exc_info=error)
    return HandoffFailed(f"unexpected error: {type(error).__name__}: {error}")
