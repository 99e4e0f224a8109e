"""Who was before us, who comes after us, and when the store may change hands.

:mod:`hermes_actor.actor.handoff.attempt` is one attempt; this is what remains between attempts, and
the rules: one at a time, none while the actor drains or opens the file, no downgrade unless
somebody asks for it, no loop of clients that ask by themselves, and never two that could take back.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

import hermes_protocol.messages as wire
from hermes_actor import limits
from hermes_actor.actor.handoff.attempt import HandoffAttempt
from hermes_actor.build import build_id, is_newer
from hermes_actor.errors import HandoffFailed
from hermes_protocol.handoff import TakeOver

if TYPE_CHECKING:
    from hermes_actor.actor.handoff.receiver import PredecessorLink
    from hermes_actor.actor.server import Server
    from hermes_actor.engine.ownership import OwnerLock

__all__ = ["HandoffCoordinator"]

_log = logging.getLogger("hermes_actor.actor")

_BUILD_LENGTH = 200


class HandoffCoordinator:
    """The hand-offs of one actor. Lives in the event loop."""

    def __init__(
        self,
        server: Server,
        lock: OwnerLock,
        predecessor: PredecessorLink | None,
        *,
        pinned: bool,
        options: Sequence[str],
    ) -> None:
        """*pinned*: clients may not have us hand over by themselves. *options* go to the command
        line of a successor."""
        self.attempt: HandoffAttempt | None = None
        self.stuck: str | None = None
        """Why nothing moves: a failed successor that cannot be ended."""
        self._server = server
        self._lock = lock
        self._predecessor = predecessor
        self._pinned = pinned
        self._options = options
        self._asked_by_build: dict[str, float] = {}

    # --- how it is -------------------------------------------------------------------------------

    @property
    def is_taken_back_from(self) -> bool:
        """Whether the one before us goes on if we cannot: clients then need not hear of it."""
        return self._predecessor is not None

    @property
    def is_over(self) -> bool:
        """Whether a successor serves."""
        attempt = self.attempt
        return attempt is not None and attempt.finished.is_set() and attempt.error is None

    @property
    def failed_update(self) -> str | None:
        """Why the last attempt failed (G12)."""
        attempt = self.attempt
        if attempt is None or attempt.error is None or attempt.refused:
            return None
        return str(attempt.error)

    # --- asked for -------------------------------------------------------------------------------

    def begin(self, request: wire.Handoff, nursery: trio.Nursery) -> HandoffAttempt:
        """Begin to hand over. Raises :class:`HandoffFailed` if that cannot be now."""
        server = self._server
        if server.is_draining:
            raise HandoffFailed("the actor is draining")
        if self.attempt is not None and not self.attempt.finished.is_set():
            raise HandoffFailed(f"another hand-off is under way: {self.attempt.step.value}")
        if server.is_leaving or server.writer is None:
            raise HandoffFailed(f"the actor is {server.phase.text}")
        if not request.wait:
            self._check_worth(request.build)
        self.attempt = attempt = HandoffAttempt(request)
        nursery.start_soon(self._prepare, attempt)
        return attempt

    def _check_worth(self, build: str) -> None:
        """A client asks by itself: only for a newer build, and not again and again."""
        if self._pinned:
            raise HandoffFailed(
                f"build {build_id()} was asked for by somebody; so must be the next"
            )
        if len(build) > _BUILD_LENGTH:
            raise HandoffFailed(f"build {build[:_BUILD_LENGTH]}... is no name of a build")
        if not is_newer(build, than=build_id()):
            raise HandoffFailed(f"build {build} is not newer than {build_id()}")
        since = time.monotonic() - limits.HANDOFF_RETRY_SECONDS
        self._asked_by_build = {b: at for b, at in self._asked_by_build.items() if at > since}
        if build in self._asked_by_build:
            raise HandoffFailed(f"build {build} was tried less than a minute ago")
        self._asked_by_build[build] = time.monotonic()

    async def _prepare(self, attempt: HandoffAttempt) -> None:
        try:
            await attempt.prepare(self._server.paths, self._options)
            await self.dismiss_predecessor()
        except Exception as error:
            await self._call_off(attempt, _failed_by(error))
        else:
            self._server.leave_for_successor()

    # --- carried out -----------------------------------------------------------------------------

    async def dismiss_predecessor(self) -> None:
        """The one before us may no longer take back from us."""
        # One that could not open the file has nothing to settle: it says why when it ends.
        if self._predecessor is not None and not self._server.could_not_open:
            await trio.to_thread.run_sync(self._predecessor.dismiss)
            self._predecessor = None

    async def give(self, listener: socket.socket, draining: trio.Event) -> bool:
        """The file is closed: hand over, stay for a while. False if it is ours again, or nobody
        was to have it."""
        attempt, writer = self.attempt, self._server.writer
        if attempt is None:
            return False
        if draining.is_set():
            if not attempt.finished.is_set():
                await self._call_off(attempt, HandoffFailed("the actor was told to end"))
            return False
        try:
            assert writer is not None
            message = TakeOver(
                epoch=writer.epoch, commit_no=writer.commit_no, pinned=attempt.request.allow_older
            )
            await attempt.give(message, listener.fileno(), self._lock.fileno())
        except Exception as error:
            await self._call_off(attempt, _failed_by(error), listener)
            return False
        try:
            return await attempt.stay(draining)
        except Exception:
            # It serves. We leave without having watched it; the file is no longer ours.
            _log.exception("hand-off: unexpected error after the successor began to serve")
            return True

    async def _call_off(
        self, attempt: HandoffAttempt, error: HandoffFailed, listener: socket.socket | None = None
    ) -> None:
        """See the end of the successor. If it does not end, tell clients why nothing moves."""
        async with trio.open_nursery() as nursery:
            if listener is not None:
                nursery.start_soon(self._receive_meanwhile, attempt, listener)
            await attempt.end_successor()
            nursery.cancel_scope.cancel()
        self.stuck = None
        attempt.fail(error)

    async def _receive_meanwhile(self, attempt: HandoffAttempt, listener: socket.socket) -> None:
        await trio.sleep(limits.SUCCESSOR_END_SECONDS)
        self.stuck = f"the failed successor, pid {attempt.pid}, cannot be ended"
        _log.error("closed: %s", self.stuck)
        await self._server.receive(listener)


def _failed_by(error: Exception) -> HandoffFailed:
    """What ended an attempt. Whatever it raises, the attempt has failed and the actor has not."""
    if isinstance(error, HandoffFailed):
        return error
    _log.error("hand-off: unexpected error", exc_info=error)
    return HandoffFailed(f"unexpected error: {type(error).__name__}: {error}")
