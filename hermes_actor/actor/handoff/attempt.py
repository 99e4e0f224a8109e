"""One attempt to hand the actor over to another build.

The attempt outlives whoever asked for it. Its steps: start a successor and wait until it is ready,
while we serve on; close the file; give it the descriptors; wait until it serves; stay for a while
to take back. Whatever fails, the old actor has seen the end of the successor before it opens the
file again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

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
    from hermes_actor.paths import StorePaths

__all__ = ["HandoffAttempt"]

_log = logging.getLogger("hermes_actor.actor")


class HandoffAttempt:
    """One attempt. Lives in the event loop."""

    def __init__(self, request: wire.Handoff) -> None:
        self.request = request
        self.step = HandoffStep.STARTING
        self.error: HandoffFailed | None = None
        self.refused = False
        """Whether the build that was found may not take over; then it is no failed update."""
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
        """What whoever asked is told. Raises what went wrong."""
        if self.error is not None:
            raise HandoffFailed(str(self.error))
        return {"pid": self.pid, "build": self._build}

    async def prepare(self, paths: StorePaths, options: Sequence[str]) -> None:
        """Have a successor that is ready. Nothing has happened to the file yet."""
        failpoints.hit("handoff.start")
        self._successor = await SuccessorProcess.start(paths, self.request.python, options)
        self.pid = self._successor.pid
        if self.error is not None:
            # Called off while it was being started.
            await self.end_successor()
            raise self.error
        ready = await self._ready(self._successor)
        self._build = ready.build
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
            # Else two builds that each claim to be newer would hand over to and fro.
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
                # Somebody is ending it, who will say why.
                await self.finished.wait()
                raise self.error or error from None
            raise

    async def give(self, message: TakeOver, listener: int, lock: int) -> None:
        """The file is closed: give it away and wait until it is served. Raises if it is not."""
        assert self._successor is not None
        self.step = HandoffStep.TRANSFERRED
        failpoints.hit("handoff.closed")
        self._successor.hand(message, listener, lock)
        failpoints.hit("handoff.given")
        await self._successor.serving()
        _log.info("hand-off: pid %d serves", self._successor.pid)
        self.step = HandoffStep.DONE
        self.finished.set()

    async def stay(self, until: trio.Event) -> bool:
        """Stay for a while in case that the successor dies. True if it has not, or has told us
        that it is no longer ours to take back from."""
        successor = self._successor
        assert successor is not None
        code: int | None = None
        failpoints.hit("handoff.stay")
        with trio.move_on_after(limits.HANDOFF_STAY_SECONDS) as stay:
            async with trio.open_nursery() as nursery:

                async def leave(event: Callable[[], Awaitable[object]]) -> None:
                    await event()
                    stay.cancel()

                nursery.start_soon(leave, until.wait)
                nursery.start_soon(leave, successor.settled)
                code = await successor.exited()
                # What it said before its end counts; give the other task the time to hear it.
                await trio.lowlevel.checkpoint()
                stay.cancel()
        if code is not None and not successor.has_settled():
            _log.error("hand-off: successor has ended with %d; taking back", code)
            await self.end_successor()
            self.fail(HandoffFailed("the successor served and then ended by itself"))
            return False
        successor.let_go()
        return True

    async def end_successor(self) -> None:
        """See the end of the successor, if there is one. Waits for as long as that takes."""
        if self._successor is not None:
            successor, self._successor = self._successor, None
            await successor.end()

    def fail(self, error: HandoffFailed) -> None:
        """The first cause is the one that is told."""
        if self.error is not None:
            return
        _log.error("hand-off: failed while %s: %s", self.step.value, error)
        self.error = error
        self.finished.set()
