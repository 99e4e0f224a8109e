"""What an actor does by the clock: end when it is of no use, refuse what is late, show itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from hermes_actor import limits
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Outcome
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.paths import is_gone
from hermes_actor.recovery.rescue import rescue_path, should_rescue

if TYPE_CHECKING:
    from hermes_actor.actor.server import Server
    from hermes_protocol.status import Status

__all__ = ["Watch", "expire", "look_for_foreigners", "show_status"]

_log = logging.getLogger("hermes_actor.actor")


class Watch:
    """Ends the actor when it has been idle for long, or when its home is gone."""

    def __init__(self, server: Server, idle_exit: float | None) -> None:
        self._server = server
        self._idle_exit = idle_exit
        self._pause = min(limits.HOME_CHECK_SECONDS, idle_exit or 3600)
        self._quiet_since = trio.current_time()

    async def look(self) -> float:
        """One look; the seconds until the next."""
        server = self._server
        if self._is_in_use():
            self._quiet_since = trio.current_time()
        # A command connects and leaves between two looks.
        quiet = trio.current_time() - max(self._quiet_since, server.reception.last_left)
        if server.opened.is_set() and is_gone(server.paths.db.parent):
            if quiet <= limits.RESCUE_RECENT_SECONDS:
                await _rescue(server)
            server.drain("the home is gone")
        elif self._idle_exit and quiet >= self._idle_exit:
            server.drain("idle")
        return self._pause

    def _is_in_use(self) -> bool:
        server = self._server
        # One that knows of a failed update stays: the next start might not come up (G12).
        attempt = server.succession.attempt
        handing_over = attempt is not None and not attempt.refused
        opening = not server.opened.is_set()
        clients = bool(server.reception.connections)
        return opening or handing_over or clients or not server.mailbox.is_empty


async def look_for_foreigners(server: Server) -> float:
    """Note who writes the file beside us, while the system still shows them."""
    if server.writer is not None:
        await server.foreigners.look(server.writer.connection.foreign_commits)
    return limits.HOME_CHECK_SECONDS


async def _rescue(server: Server) -> None:
    """Save the store of a home that was deleted while somebody used it."""
    if server.writer is None or not server.rescue:
        return
    if not should_rescue(server.paths, server.writer.checkpointer.file_bytes):
        return
    target, done, outcomes = rescue_path(server.paths), trio.Event(), list[Outcome]()

    def finish(outcome: Outcome) -> None:
        outcomes.append(outcome)
        server.in_loop(done.set)

    server.mailbox.put(b"", jobs.CopyTo(finish, target))
    with trio.move_on_after(limits.RESCUE_SECONDS):
        await done.wait()
    if outcomes and outcomes[0].error is None:
        _log.warning("the home is gone; the store was saved as %s", target)
    else:
        _log.error("the home is gone; the store could not be saved: %s", outcomes)


async def expire(server: Server) -> float:
    """Answer requests whose deadline has passed while the writer is busy with something long."""
    server.mailbox.intake.take_back_if_away()
    for job in server.mailbox.take_expired(time.monotonic()):
        job.give_up(DeadlineExceeded("the writer was busy for too long"))
    server.flush_answers()
    return limits.EXPIRY_IDLE_SECONDS if server.mailbox.is_empty else limits.EXPIRY_CHECK_SECONDS


async def show_status(server: Server, show: Callable[[Status], None]) -> float:
    """Have *show* draw the status, in a thread: a terminal that takes nothing must not stop us."""
    await trio.to_thread.run_sync(show, server.status(), abandon_on_cancel=True)
    return limits.SHOW_STATUS_SECONDS
