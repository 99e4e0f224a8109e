"""What a simulation does: clients, operations, faults and time, drawn by Hypothesis."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from hypothesis import strategies as st

from hermes_actor.failpoints import POINTS

__all__ = ["FAULTS", "Program", "programs"]

HOUR = 3600.0

FAULTS = ("kill", "die at", "drain", "cut", "stall", "lock", "full", "failed sync", "pin")
"""Kinds of faults. The process is killed, now or at a failpoint; it drains; the connection of a
client breaks; the process stands still; a foreign program holds the write lock; the disk is full;
a sync fails; a reader keeps its snapshot."""

MOMENTS = tuple(
    point
    for point in POINTS
    if point.partition(".")[0]
    in ("barrier", "batch", "commit", "reply", "checkpoint", "index", "aside")
)
"""Failpoints of the engine."""


class Program(NamedTuple):
    """Steps of each client, faults by time, and the seed of everything that is left to chance.

    A step is ``["write", count, size]``, ``["search"]``, ``["read"]`` or ``["pause", seconds]``; a
    fault ``[after, kind, argument]``, *after* being seconds since the fault before it. A write may
    bring its own fault, ``["write", count, size, fault]``, which comes while it is under way.
    """

    seed: int
    clients: list[list[list[Any]]]
    faults: list[list[Any]]

    def to_json(self) -> str:
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Program:
        return cls(**json.loads(text))


_pauses = st.sampled_from([0.0, 0.01, 0.5, 3.0, 60.0, HOUR, 12 * HOUR])
_soon = st.sampled_from([0.0, 0.0001, 0.0002, 0.002, 0.01, 0.06])
_after = st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3, 2.0, 30.0, HOUR])
_seconds = st.sampled_from([0.01, 0.2, 1.0, 5.0, 20.0])


def _fault(kind: str, after: st.SearchStrategy[float]) -> st.SearchStrategy[list[Any]]:
    argument: st.SearchStrategy[Any] = _seconds
    if kind == "die at":
        argument = st.sampled_from(MOMENTS)
    elif kind == "cut":
        argument = st.integers(0, 5)
    return st.tuples(after, st.just(kind), argument).map(list)


_sudden = st.one_of(*(_fault(kind, _soon) for kind in FAULTS))
_steps = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 6), st.sampled_from([1, 80, 3000])),
    st.tuples(st.just("write"), st.integers(1, 6), st.just(20), _sudden),
    st.tuples(st.just("pause"), _pauses),
    st.tuples(st.just("read")),
    st.tuples(st.just("search")),
).map(list)


@st.composite
def programs(draw: st.DrawFn, steps: int = 60) -> Program:
    """Programs of up to so many steps, faults included."""
    count = draw(st.integers(1, 5))
    each = max(1, (steps - 12) // count)
    clients = [draw(st.lists(_steps, min_size=1, max_size=each)) for _ in range(count)]
    faults = draw(st.lists(st.one_of(*(_fault(kind, _after) for kind in FAULTS)), max_size=12))
    return Program(draw(st.integers(0, 2**32 - 1)), clients, faults)
