"""The byte budget of all requests inside the actor.

Bytes are taken when the length of a frame is known and before its body is read, and given back
when its reply is in the outbox. First come, first served; one client holds at most a quarter. A
full budget means that sockets are not read: back-pressure, never a refusal.

The holder of a lease is the exception. The writer serves no other client until the lease ends, so
what the others hold cannot come back before: the holder does not wait behind them, and may hold two
quarters, one of them beyond the budget. There is one such client at a time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import trio

__all__ = ["ByteLimiter"]


class ByteLimiter:
    """The budget. Bytes are taken in the event loop and given back from any thread."""

    def __init__(self, total: int, run_in_loop: Callable[[Callable[[], None]], None]) -> None:
        self._total = total
        self._per_client = total // 4
        self._lock = threading.Lock()
        self._used = 0
        self._by_client: dict[bytes, int] = {}
        self._waiting: deque[tuple[int, bytes, trio.Event]] = deque()
        self._run_in_loop = run_in_loop
        self._favoured: bytes | None = None

    @property
    def used(self) -> int:
        """The bytes that are taken now, of all clients. Read without the lock, for the status."""
        return self._used

    def try_take(self, amount: int, client: bytes) -> bool:
        """Take *amount* bytes, or return False if that needs a wait. Safe in any thread."""
        if not amount:
            return True
        # With the present limits no frame costs a whole share. One that did could never be granted
        # without this, and its connection would wait for ever.
        amount = min(amount, self._per_client)
        with self._lock:
            if not self._may_take(amount, client):
                return False
            self._grant(amount, client)
            return True

    async def take(self, amount: int, client: bytes) -> None:
        """Wait for *amount* bytes. An amount over a client's share is granted when it is alone."""
        if self.try_take(amount, client):
            return
        amount = min(amount, self._per_client)
        with self._lock:
            if self._may_take(amount, client):
                # Bytes came back since the first try, perhaps the last ones that will: an entry in
                # the queue would then wait for ever.
                self._grant(amount, client)
                return
            granted = trio.Event()
            entry = (amount, client, granted)
            self._waiting.append(entry)
        try:
            await granted.wait()
        except trio.Cancelled:
            with self._lock:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                else:
                    self._release(amount, client)
            # The next in the queue may fit now, and no other bytes need come back for long.
            self._grant_waiting()
            raise

    def give_back(self, amount: int, client: bytes) -> None:
        """Return what was taken with the same arguments. Safe in any thread."""
        if not amount:
            return
        with self._lock:
            self._release(min(amount, self._per_client), client)
            has_waiters = bool(self._waiting)
        # In the loop, to which the events belong; outside of the lock, which the loop takes as
        # well.
        if has_waiters:
            self._run_in_loop(self._grant_waiting)

    def favour(self, client: bytes | None) -> None:
        """Let *client*, the holder of a lease, pass the others; ``None``: no client. Safe in any
        thread."""
        with self._lock:
            self._favoured = client
            passes = client is not None and bool(self._waiting)
        # Only then: each call is a turn of the event loop, and leases come by the hundred.
        if passes:
            self._run_in_loop(self._grant_waiting)

    def _may_take(self, amount: int, client: bytes) -> bool:
        passes = not self._waiting or client == self._favoured
        return passes and self._fits(amount, client)

    def _fits(self, amount: int, client: bytes) -> bool:
        more = self._per_client if client == self._favoured else 0
        held = self._by_client.get(client, 0)
        return (
            self._used + amount <= self._total + more and held + amount <= self._per_client + more
        )

    def _grant(self, amount: int, client: bytes) -> None:
        self._used += amount
        self._by_client[client] = self._by_client.get(client, 0) + amount

    def _release(self, amount: int, client: bytes) -> None:
        self._used -= amount
        left = self._by_client[client] - amount
        if left:
            self._by_client[client] = left
        else:
            del self._by_client[client]

    def _grant_waiting(self) -> None:
        with self._lock:
            # One over its own share waits for itself and lets the others pass; one that the budget
            # has no room for is not passed, except by the favoured client.
            blocked = False
            for entry in list(self._waiting):
                amount, client, granted = entry
                if blocked and client != self._favoured:
                    continue
                if self._fits(amount, client):
                    self._waiting.remove(entry)
                    self._grant(amount, client)
                    granted.set()
                else:
                    blocked |= self._used + amount > self._total
