"""Exceptions that strike a client inside its calls, as those of a signal handler do.

Half of them come from a timer, wherever the interpreter handles signals: mostly while the client
waits. The others come before an instruction of the client's own code, each as likely as any other.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from types import FrameType

from support.interrupts import Interrupt, Interruptor

from harness import ROOT

__all__ = ["struck"]

_CLIENT = ROOT / "hermes_actor" / "client"

_SHARE = 0.5
"""Of the blocks, that are struck if they last long enough."""

_WITHIN_SECONDS = 0.004
_WITHIN_INSTRUCTIONS = 1500
"""As long as a call takes, about."""


@contextlib.contextmanager
def struck(rng: random.Random) -> Iterator[None]:
    """A block that may end with an :class:`Interrupt` raised inside the client."""
    if rng.random() > _SHARE:
        yield
    elif rng.random() < 0.5:
        with Interruptor(rng.randint(1, _WITHIN_INSTRUCTIONS), _CLIENT):
            yield
    else:
        signal.signal(signal.SIGALRM, _strike)
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00005, _WITHIN_SECONDS))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _strike(_number: int, frame: FrameType | None) -> None:
    """Raise, if a call of the client is on the stack: what comes later is not ours to strike."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(_CLIENT)):
            raise Interrupt("by a signal")
        frame = frame.f_back
