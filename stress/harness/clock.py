"""Wall clocks that jump: by hours, by years, to and fro."""

from __future__ import annotations

import random
import time

__all__ = ["jump"]

_JUMPS = [0.0, 3600.0, -3600.0, 86_400.0 * 3653, -86_400.0 * 3653]

_HOLDS_SECONDS = 0.5
"""Then it jumps again."""


def jump(seed: str) -> None:
    """From now on ``time.time`` of this process jumps; ``time.monotonic`` does not."""
    real, monotonic = time.time, time.monotonic

    def now() -> float:
        turn = int(monotonic() / _HOLDS_SECONDS)
        return real() + random.Random(f"{seed} {turn}").choice(_JUMPS)

    time.time = now
