"""Following the changes of a store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from hermes_actor.errors import Closed

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import ChangeSource
    from hermes_protocol.messages import Changed, Gap

__all__ = ["Subscription"]


class Subscription:
    """The changes of a store, in the order of their ``commit_no``, each once.

    Made by :meth:`SessionDB.subscribe`. An iterator that waits for the next change, and a context
    manager that ends it. A :class:`Changed` without ``commit_no`` says that a program outside has
    written. A :class:`Gap` stands for changes that are no longer known one by one: read the tables
    instead, and go on. Lost connections are made anew without a word.
    """

    def __init__(self, source: ChangeSource) -> None:
        self._source = source
        self._turn = threading.Lock()

    def get(self, timeout: float | None = None) -> Changed | Gap | None:
        """The next change; ``None`` if there is none within *timeout* seconds.

        It can take longer when an actor has to be started. Threads that call it at once take
        turns.

        Raises:
            Closed: the subscription was closed, before or meanwhile.
            HermesActorError: there is no actor any more, and none could be started. Nothing is
                lost; the next call tries again.
        """
        until = None if timeout is None else time.monotonic() + timeout
        if not self._turn.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return None
        try:
            change, over = self._source.take(), False
            while change is None and not over:
                self._source.wait(None if until is None else max(0.0, until - time.monotonic()))
                over = until is not None and time.monotonic() >= until
                change = self._source.take()
            return change
        finally:
            self._turn.release()

    def close(self) -> None:
        """End, from any thread: whoever waits stops waiting. Calling it again is harmless."""
        self._source.close()

    def __iter__(self) -> Iterator[Changed | Gap]:
        return self

    def __next__(self) -> Changed | Gap:
        try:
            change = self.get()
        except Closed:
            raise StopIteration from None
        assert change is not None
        return change

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
