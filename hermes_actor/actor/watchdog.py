"""The watchdog of a service manager hears of us while the event loop and the writer live."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from hermes_actor.actor.mailbox import Mailbox

if TYPE_CHECKING:
    from hermes_actor.actor.sd_notify import ServiceManager
    from hermes_actor.actor.server import Server
    from hermes_actor.engine.jobs import Job

__all__ = ["WatchedMailbox", "tick"]

_STUCK_SECONDS = 600.0
"""A writer that takes nothing for so long while something waits is stuck. A VACUUM of some
gigabytes takes minutes, and must not be taken for that."""

_log = logging.getLogger("hermes_actor.actor")


class WatchedMailbox(Mailbox):
    """A mailbox that knows for how long the writer has not looked into it.

    The age of the oldest job does not tell: jobs that have waited for too long are refused and
    removed, however stuck the writer is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unseen_since: float | None = None

    def put(self, client: bytes, job: Job) -> None:
        # Before the job is there: the writer may take it at once, and what it clears stays clear.
        if self._unseen_since is None:
            self._unseen_since = time.monotonic()
        super().put(client, job)

    def take(self, timeout: float | None) -> list[Job]:
        taken = super().take(timeout)
        self._unseen_since = time.monotonic() if not self.is_empty else None
        return taken

    def unseen_seconds(self) -> float:
        """For how long something has been there that the writer has not even looked at."""
        since = self._unseen_since
        return 0.0 if since is None else time.monotonic() - since


async def tick(server: Server, supervisor: ServiceManager, seconds: float) -> float:
    """Tell the watchdog that all is well, if it is; again in *seconds*."""
    unseen = server.mailbox.unseen_seconds()
    if unseen >= _STUCK_SECONDS:
        _log.critical("the writer has taken nothing for %.0f s", unseen)
    elif not server.succession.is_over:
        supervisor.tick()
    return seconds
