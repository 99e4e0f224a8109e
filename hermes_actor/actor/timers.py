"""Periodic work of the event loop: idle exit, expiry of requests, watchdog, live view.

Each step returns the seconds until it is due again, for
:func:`hermes_actor.actor.tasks.repeat`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from hermes_actor import limits
from hermes_actor.engine import jobs
from hermes_actor.engine.jobs import Outcome
from hermes_actor.errors import DeadlineExceeded
from hermes_actor.paths import is_gone
from hermes_actor.recovery.rescue import rescue_path, should_rescue

if TYPE_CHECKING:
    from hermes_actor.actor.interfaces import RunInLoop
    from hermes_actor.actor.mailbox import Mailbox
    from hermes_actor.actor.outbox import Unflushed
    from hermes_actor.actor.sd_notify import ServiceManager
    from hermes_actor.engine.writer import Writer
    from hermes_actor.paths import StorePaths
    from hermes_protocol.status import LeaseStatus, Status

__all__ = ["IdleWatch", "expire_requests", "notify_watchdog", "rescue_store", "show_status"]

_STUCK_SECONDS = 600.0
"""A writer that takes nothing for so long while jobs wait is stuck. A VACUUM of some gigabytes
takes minutes, and must not count as that."""

_log = logging.getLogger("hermes_actor.actor")


class IdleWatch:
    """Ends the actor when it has been idle for long, or when its home is gone."""

    def __init__(
        self,
        paths: StorePaths,
        idle_exit: float | None,
        *,
        is_opened: Callable[[], bool],
        is_in_use: Callable[[], bool],
        last_left: Callable[[], float],
        rescue: Callable[[], Awaitable[None]],
        drain: Callable[[str], None],
    ) -> None:
        """*last_left* is when the last connection ended; *rescue* saves the store of a home that
        was deleted while it was in use."""
        self._paths = paths
        self._idle_exit = idle_exit
        self._is_opened = is_opened
        self._is_in_use = is_in_use
        self._last_left = last_left
        self._rescue = rescue
        self._drain = drain
        # An idle time below the usual interval is kept as well.
        self._pause = min(limits.HOME_CHECK_SECONDS, idle_exit or 3600)
        self._quiet_since = trio.current_time()

    async def check(self) -> float:
        """Check once; return the seconds until the next time."""
        if self._is_in_use():
            self._quiet_since = trio.current_time()
        # A command connects and leaves between two checks.
        quiet = trio.current_time() - max(self._quiet_since, self._last_left())
        # The home first: both can be true in one check, and only this branch saves the store.
        if self._is_opened() and is_gone(self._paths.db.parent):
            if quiet <= limits.RESCUE_RECENT_SECONDS:
                await self._rescue()
            self._drain("the home is gone")
        elif self._idle_exit and quiet >= self._idle_exit:
            self._drain("idle")
        return self._pause


async def rescue_store(
    paths: StorePaths, writer: Writer | None, mailbox: Mailbox, run_in_loop: RunInLoop
) -> None:
    """Save the store of a home that was deleted while it was in use."""
    if writer is None or not should_rescue(paths, writer.checkpointer.file_bytes):
        return
    target, done, outcomes = rescue_path(paths), trio.Event(), list[Outcome]()

    def finish(outcome: Outcome) -> None:
        outcomes.append(outcome)
        run_in_loop(done.set)

    # A lane of its own: ids of clients have 16 bytes. The copy is made by the writer: the file has
    # no name any more, and its connection still has it open.
    mailbox.put(b"", jobs.CopyTo(finish, target))
    with trio.move_on_after(limits.RESCUE_SECONDS):
        await done.wait()
    if outcomes and outcomes[0].error is None:
        _log.warning("the home is gone; the store was saved as %s", target)
    else:
        _log.error("the home is gone; the store could not be saved: %s", outcomes)


async def expire_requests(
    mailbox: Mailbox, unflushed: Unflushed, lease: Callable[[], LeaseStatus | None]
) -> float:
    """Refuse requests whose deadline has passed while the writer is busy with something long.

    *lease* returns the interactive transaction that they wait for, if it is one.
    """
    # First: a request in a socket that is lent to a busy writer could not be refused in time.
    mailbox.selector.remove_all_if_away()
    for job in mailbox.take_expired(time.monotonic()):
        holder = lease()
        cause = (
            "" if holder is None else f"; it waits for a transaction, {holder.text(time.time())}"
        )
        job.give_up(
            DeadlineExceeded(
                f"the writer was busy for {mailbox.stalled_for():.1f} s and did not begin the"
                f" request by its deadline{cause}"
            )
        )
    # The writer is busy: it may be long until a batch ends, which would flush them.
    unflushed.flush()
    return limits.EXPIRY_IDLE_SECONDS if mailbox.is_empty else limits.EXPIRY_CHECK_SECONDS


async def notify_watchdog(
    mailbox: Mailbox, manager: ServiceManager, seconds: float, has_handed_over: Callable[[], bool]
) -> float:
    """Notify the watchdog of the service manager if the writer is not stuck; again in *seconds*."""
    stalled = mailbox.stalled_for()
    if stalled >= _STUCK_SECONDS:
        _log.critical("the writer has taken nothing for %.0f s; the watchdog may act", stalled)
    # After a hand-off the main process is the successor, and this tick would hide that it hangs.
    elif not has_handed_over():
        manager.tick()
    return seconds


async def show_status(status: Callable[[], Status], show: Callable[[Status], None]) -> float:
    """Have *show* draw the status, in a thread: a terminal that blocks must not stop the loop."""
    await trio.to_thread.run_sync(show, status(), abandon_on_cancel=True)
    return limits.SHOW_STATUS_SECONDS
