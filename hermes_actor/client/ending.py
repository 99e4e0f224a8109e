"""Ending the actor of a store in good order, from outside."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import hermes_protocol.messages as wire
from hermes_actor.client.control import ask, ask_status
from hermes_actor.errors import AlreadyOwned, DeadlineExceeded, NotRunning, OutcomeUnknown
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.system.processes import ProcessEnd

if TYPE_CHECKING:
    from hermes_actor.paths import StorePaths

__all__ = ["running_actor", "stop_actor"]


def running_actor(paths: StorePaths) -> int:
    """The process that serves *place*. Never starts one, not even by socket activation.

    Raises :class:`NotRunning` if there is none, :class:`AlreadyOwned` if a process owns the store
    without serving it, :class:`DeadlineExceeded` if it does not answer.
    """
    holder = lock_holder(paths)
    if holder is None:
        raise NotRunning(f"no actor serves {paths.db}")
    found = ask_status(paths)
    if found is None:
        # Between the end of a listener and the end of its process, or a program in embedded mode.
        with ProcessEnd(holder) as end:
            if end.wait(1.0) or lock_holder(paths) != holder:
                raise NotRunning(f"no actor serves {paths.db}")
        error = AlreadyOwned(
            f"pid {holder} owns {paths.db} and serves nobody (embedded mode): end that program"
        )
        error.pid = holder
        raise error
    pid: int = found["pid"]
    return pid


def stop_actor(
    paths: StorePaths, timeout: float, *, on_pid: Callable[[int], None] = lambda _pid: None
) -> int:
    """Have the actor drain, and wait until its process has ended; its pid.

    *on_pid* is told whom we wait for. Raises as :func:`running_actor`.
    """
    deadline = time.monotonic() + timeout
    pid = running_actor(paths)
    on_pid(pid)
    with ProcessEnd(pid) as end:
        # Lost on the way, or on its way out: that shows in its end.
        with contextlib.suppress(NotRunning, OutcomeUnknown):
            ask(paths, lambda n: wire.Drain(ask=n), timeout, name="drain")
        if not end.wait(deadline - time.monotonic()):
            raise DeadlineExceeded(f"pid {pid} has not ended in {timeout:g} s")
    return pid
