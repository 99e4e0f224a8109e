"""What an actor does by the clock: end when it is of no use, refuse what is late, show itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from hermes_actor import limits
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Outcome
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.rescue import is_wanted, rescue_path

if TYPE_CHECKING:
    from hermes_actor.actor.server import Server

__all__ = ["expire", "show_status", "watch"]

_log = logging.getLogger("hermes_actor.actor")


async def watch(server: Server, idle_exit: float | None) -> None:
    """End when nobody has been here for long, or when the home is gone."""
    quiet_since = trio.current_time()
    while True:
        await trio.sleep(min(limits.HOME_CHECK_SECONDS, idle_exit or 3600))
        # One that knows of a failed update stays: the next start might not come up (G12).
        attempt = server.succession.attempt
        handing_over = attempt is not None and not attempt.refused
        opening = not server.opened.is_set()
        if opening or handing_over or server.reception.connections or not server.mailbox.is_empty:
            quiet_since = trio.current_time()
        if server.writer is not None:
            server.foreigners.look(server.writer.core.foreign_commits)
        quiet = trio.current_time() - quiet_since
        if server.opened.is_set() and not server.place.db.parent.exists():
            if quiet <= limits.RESCUE_RECENT_SECONDS:
                await _rescue(server)
            server.drain("the home is gone")
        elif idle_exit and quiet >= idle_exit:
            server.drain("idle")


async def _rescue(server: Server) -> None:
    """Save the store of a home that was deleted while somebody used it."""
    if server.writer is None or not server.rescue:
        return
    if not is_wanted(server.place, server.writer.core.file_bytes):
        return
    target, done, outcomes = rescue_path(server.place), trio.Event(), list[Outcome]()

    def finish(outcome: Outcome) -> None:
        outcomes.append(outcome)
        server.in_loop(done.set)

    server.mailbox.put(b"", jobs.Rescue(finish, target))
    with trio.move_on_after(limits.RESCUE_SECONDS):
        await done.wait()
    if outcomes and outcomes[0].error is None:
        _log.warning("the home is gone; the store was saved as %s", target)
    else:
        _log.error("the home is gone; the store could not be saved: %s", outcomes)


async def expire(server: Server) -> None:
    """Answer requests whose deadline passes while the writer is busy with something long."""
    while True:
        idle = server.mailbox.is_empty
        await trio.sleep(limits.EXPIRY_IDLE_SECONDS if idle else limits.EXPIRY_CHECK_SECONDS)
        server.mailbox.intake.take_back_if_away()
        for job in server.mailbox.take_expired(time.monotonic()):
            if job.take():
                job.finish(Outcome(error=DeadlineExceeded("the writer was busy for too long")))
        server.flush_answers()


async def show_status(server: Server, show: Callable[[dict[str, Any]], None]) -> None:
    """Have *show* draw the status, in a thread: a terminal that takes nothing must not stop us."""
    while True:
        await trio.to_thread.run_sync(show, server.status(), abandon_on_cancel=True)
        await trio.sleep(limits.SHOW_STATUS_SECONDS)
