"""What the figures of speed must reach, and their goals: the benchmarks print them beside a figure.

A ratio is that of the peer in the same run, unless its name says otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["GOALS", "Goal", "judged"]


class Goal(NamedTuple):
    """The value that a figure must reach, and the one that it should."""

    must: float
    goal: float
    at_most: bool = False
    """True if less is better."""

    def reached(self, value: float, wanted: float) -> bool:
        """Return True if *value* is at least as good as *wanted*."""
        return value <= wanted if self.at_most else value >= wanted


GOALS = {
    "writes/s N=1": Goal(1.4, 2),
    "writes/s N=1, busy cores": Goal(1.1, 1.5),
    "writes/s N=16": Goal(7, 10),
    "pipeline writes/s N=1": Goal(3.1, 6),
    "WAL bytes of a change, N=1": Goal(20_000, 12_000, at_most=True),
    "indexing aside / slices": Goal(1.3, 2),
    "PostgreSQL / by hand": Goal(0.8, 1.5),
    "PostgreSQL, 2 CJK characters, ms": Goal(50, 20, at_most=True),
    "import": Goal(1.2, 1.0, at_most=True),
}


def judged(name: str, value: float) -> str:
    """Return a line: the figure, the limit and the goal, each with whether it is reached."""
    goal = GOALS[name]
    sign = "≤" if goal.at_most else "≥"
    line = f"{name:<34}{value:>10,.6g}"
    for what, wanted in (("must", goal.must), ("goal", goal.goal)):
        met = "ok" if goal.reached(value, wanted) else "MISS"
        line += f"   {what} {sign} {wanted:<8,g}{met:<4}"
    return line.rstrip()
