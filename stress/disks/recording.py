"""What was written down of a run. Without apsw, so that judges can read it."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Ack", "Promises", "Recording", "Sent"]


class Sent(NamedTuple):
    """One request of a client."""

    client: bytes
    seq: int
    operation: bytes
    run: bytes = b""
    """What a lease ran, if this is its commit."""


class Ack(NamedTuple):
    commit_no: int
    result: bytes


class Recording(NamedTuple):
    """The events of a run, how many calls of each kind there were, and how it failed if so."""

    events: list[tuple[Any, ...]]
    counts: dict[str, int]
    crash: str | None = None


class Promises:
    """What clients know at one moment of a run: :meth:`advance` moves it on."""

    def __init__(self, events: list[tuple[Any, ...]]) -> None:
        self._events = events
        self._next = 0
        self.sent: dict[tuple[bytes, int], Sent] = {}
        self.acks: dict[tuple[bytes, int], Ack] = {}
        self.refused: set[tuple[bytes, int]] = set()
        """Those that were answered: not executed."""
        self.batch: list[Sent] = []
        """What was sent last."""
        self.states: dict[int, str] = {e[1]: e[2] for e in events if e[0] == "state"}
        """The digest of all rows at each ``commit_no`` of the whole run."""

    def advance(self, position: int) -> Promises:
        """Go on to what is known after event *position*."""
        for event in self._events[self._next : position + 1]:
            if event[0] == "sent":
                self.batch = event[1]
                self.sent.update({(one.client, one.seq): one for one in event[1]})
            elif event[0] == "ack":
                key = event[1], event[2]
                self.acks[key] = Ack(event[3], event[4])
                self.refused.discard(key)
            elif event[0] == "failed" and event[4] == "no":
                self.refused.add((event[1], event[2]))
        self._next = max(self._next, position + 1)
        return self

    @property
    def unanswered(self) -> list[Sent]:
        """What a client would send again, in order."""
        return [sent for key, sent in self.sent.items() if key not in self.acks]
