"""G16: one bad task ends alone.

Whatever a task of the event loop raises, the actor serves on and the log has the traceback. Only
the writer decides that the actor must end (R2, R3 and R5).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from hermes_actor import limits

__all__ = ["call", "repeat"]

_log = logging.getLogger("hermes_actor.actor")


def call(function: Callable[[], object]) -> None:
    """Call *function*, in either thread; an unexpected error goes to the log."""
    try:
        function()
    except Exception:
        _log.exception("unexpected error; the actor serves on")


async def repeat(name: str, step: Callable[[], Awaitable[float]]) -> None:
    """Run *step* until cancelled. It returns the seconds until it is due again.

    A step that fails is tried again later. The log has the traceback of each kind of failure once,
    not once a second.
    """
    logged = ""
    while True:
        try:
            pause = await step()
        # Not BaseException: trio ends tasks by Cancelled, which must pass.
        except Exception as error:
            pause = limits.TASK_RETRY_SECONDS
            if repr(error) != logged:
                logged = repr(error)
                _log.exception("%s failed; it is tried again, and the actor serves on", name)
        await trio.sleep(pause)
