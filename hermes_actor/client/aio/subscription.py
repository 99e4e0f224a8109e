"""Following the changes of a store from a task."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Self

import anyio

from hermes_actor.errors import Closed

if TYPE_CHECKING:
    from hermes_actor.client.interfaces import AsyncChangeSource
    from hermes_protocol.messages import Changed, Gap

__all__ = ["AsyncSubscription"]


class AsyncSubscription:
    """The awaitable twin of a :class:`Subscription`, for one task at a time.

    Made by :meth:`AsyncSessionDB.subscribe`. An asynchronous iterator and context manager.
    Cancelling a wait loses nothing.
    """

    def __init__(self, opened: Callable[[], Awaitable[AsyncChangeSource]]) -> None:
        self._opened = opened
        self._source: AsyncChangeSource | None = None
        self._reading = anyio.ResourceGuard("reading from")
        self._closed = False

    async def get(self, timeout: float | None = None) -> Changed | Gap | None:
        """The next change; ``None`` if there is none within *timeout* seconds.

        Raises:
            Closed: the subscription was closed, before or meanwhile.
            HermesActorError: there is no actor any more, and none could be started. Nothing is
                lost; the next call tries again.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._reading:
            source = await self._begun()
            change, over = source.take(), False
            while change is None and not over:
                await source.wait(None if until is None else max(0.0, until - time.monotonic()))
                over = until is not None and time.monotonic() >= until
                change = source.take()
            return change

    async def aclose(self) -> None:
        """End: a task that waits stops waiting. Calling it again is harmless."""
        self._closed = True
        if self._source is not None:
            self._source.close()

    async def _begun(self) -> AsyncChangeSource:
        if self._source is None:
            self._refuse_closed()
            self._source = await self._opened()
            if self._closed:  # meanwhile
                self._source.close()
        return self._source

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed("this subscription is closed")

    def __aiter__(self) -> AsyncIterator[Changed | Gap]:
        return self

    async def __anext__(self) -> Changed | Gap:
        try:
            change = await self.get()
        except Closed:
            raise StopAsyncIteration from None
        assert change is not None
        return change

    async def __aenter__(self) -> Self:
        with self._reading:
            await self._begun()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
