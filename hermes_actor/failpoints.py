"""Named places where the verification programme ends a process, or makes it wait.

They are compiled in, so what is tested is what runs. They are inert unless the environment names
one when the process starts: ``HERMES_ACTOR_FAILPOINT=NAME[:COUNT[:ACTION]]``. At the COUNT-th time
(default 1) that the place is reached the process says so and is killed; with ``sleep=SECONDS`` as
the action it waits there, from then on every time. An actor that is started on demand gets a small
environment without this variable, so that none is set off by accident.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

__all__ = ["POINTS", "hit"]

POINTS = (
    "barrier.before", "barrier.after_checkpoint", "barrier.after", "migration.commit",
    "batch.begin", "commit.before", "commit.after", "reply.before", "reply.after",
    "sync.before", "sync.after",
    "checkpoint.before", "checkpoint.after", "index.slice", "index.after",
    "aside.build", "aside.stage", "aside.place", "aside.after",
    "bulk.build", "bulk.place", "bulk.after",
    "drain.begin", "drain.away", "close.before", "close.after", "drain.closed",
    "handoff.start", "handoff.ready", "handoff.closed", "handoff.given", "handoff.stay",
    "successor.start", "successor.inherit", "successor.serving", "successor.notified",
)  # fmt: skip
"""Every name, in the order in which a life may meet them."""


def _off(_name: str) -> None:
    """Do nothing: the function of every failpoint, unless the environment names one."""


def _armed(order: str) -> Callable[[str], None]:
    name, _, rest = order.partition(":")
    count, _, action = rest.partition(":")
    left = int(count or 1)
    if name not in POINTS:
        raise ValueError(f"HERMES_ACTOR_FAILPOINT names no failpoint: {name!r}")

    def hit(here: str) -> None:
        nonlocal left
        if here != name:
            return
        left -= 1
        if left <= 0 and action.startswith("sleep="):
            time.sleep(float(action.removeprefix("sleep=")))
        elif left == 0:
            os.write(2, f"failpoint {name}: killed pid {os.getpid()}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    return hit


_order = os.environ.get("HERMES_ACTOR_FAILPOINT")

hit = _armed(_order) if _order else _off
"""Reached a place."""
