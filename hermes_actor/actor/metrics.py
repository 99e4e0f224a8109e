"""Counters and latencies of the actor, cheap enough for the write path."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from hermes_protocol.status import Latency

if TYPE_CHECKING:
    from hermes_actor.engine.jobs import Outcome

__all__ = ["Histogram", "Metrics"]

# Bounds in microseconds, a factor of about 1.5 apart: a percentile is read to within a fifth.
_BOUNDS_US = [int(50 * 1.5**step) for step in range(32)]


class Histogram:
    """Durations by size class."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS_US) + 1)
        self.count = 0
        self.max = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration, *times* times."""
        self._counts[bisect_left(_BOUNDS_US, seconds * 1e6)] += times
        self.count += times
        self.max = max(self.max, seconds)

    def percentile(self, share: float) -> float:
        """Return the duration that *share* of all stay under, in milliseconds."""
        wanted, seen = share * self.count, 0
        # The counts have one class more, above the last bound of 14 s: there the maximum is the
        # answer.
        for bound, count in zip(_BOUNDS_US, self._counts, strict=False):
            seen += count
            if seen >= wanted:
                return min(bound / 1e3, self.max * 1e3)
        return self.max * 1e3

    def summary(self) -> Latency:
        """Return this distribution's part of the status document."""
        return Latency(
            count=self.count,
            p50_ms=round(self.percentile(0.5), 3),
            p99_ms=round(self.percentile(0.99), 3),
            max_ms=round(self.max * 1e3, 3),
        )


class Metrics:
    """Counters of the writer thread; the status reads them without locking."""

    def __init__(self) -> None:
        self.batches = 0
        self.writes = 0
        self.refused = 0
        self.statements = 0
        self.leases = 0
        self.batch_sizes = {"1": 0, "2-4": 0, "5-16": 0, "17-64": 0}
        self.commit = Histogram()
        self.total = Histogram()

    def batch(self, size: int, seconds: float) -> None:
        """Count a batch of *size* operations. Writer thread only."""
        self.batches += 1
        self.commit.add(seconds)
        key = "1" if size == 1 else "2-4" if size <= 4 else "5-16" if size <= 16 else "17-64"
        self.batch_sizes[key] += 1

    def answered(self, outcome: Outcome, seconds: float) -> None:
        """Count an answer, *seconds* after its request was read."""
        self.total.add(seconds)
        if outcome.error is not None:
            self.refused += 1
        # An answer from a receipt is no second write.
        elif not outcome.replayed:
            self.writes += 1
