"""AsyncSessionDB: every method of a SessionDB as a coroutine, for asyncio and for trio.

Each call runs in a worker thread, so the event loop never waits for a disk, a lock or an actor.
Calls that are awaited one after the other keep their order. A cancelled call still runs to its
end: a change that may have been made must not be left in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread

from hermes_actor.pipeline import Pipeline
from hermes_actor.session_db import SessionDB

__all__ = ["AsyncSessionDB"]

R = TypeVar("R")

_THREADS = 8
"""Calls of one object that run at one time; the pool of readers keeps half as many connections."""


class AsyncSessionDB:
    """Awaitable twin of a SessionDB.

    Args:
        db: An open SessionDB, which stays the caller's to close, or the path of a store, which is
            opened on first use and closed by :meth:`aclose`. Default: the default store.
        options: Keywords of ``SessionDB`` for a store that is opened here.
    """

    def __init__(self, db: SessionDB | Path | None = None, **options: Any) -> None:
        self._given = db if isinstance(db, SessionDB) else None
        self._open = partial(SessionDB, db if isinstance(db, Path) else None, **options)
        self._db = self._given
        self._limiter: anyio.CapacityLimiter | None = None
        self._opening: anyio.Lock | None = None

    async def __aenter__(self) -> Self:
        await self._store()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close a store that was opened here. Calling it again is harmless."""
        db, self._db = self._db, self._given
        if db is not None and db is not self._given:
            with anyio.CancelScope(shield=True):
                await self._run(db.close)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name.startswith("_") or not callable(getattr(SessionDB, name, None)):
            raise AttributeError(f"SessionDB has no method {name!r}")

        async def call(*args: Any, **kwargs: Any) -> Any:
            db = await self._store()
            return await self._run(partial(getattr(db, name), *args, **kwargs))

        call.__name__ = name
        call.__doc__ = getattr(SessionDB, name).__doc__
        return call

    def pipeline(self) -> AsyncPipeline:
        """Several changes in one round trip: ``async with db.pipeline() as p:``."""
        return AsyncPipeline(self)

    async def _store(self) -> SessionDB:
        if self._db is None:
            # Made here and not in the constructor, which may run outside any event loop.
            self._opening = self._opening or anyio.Lock()
            async with self._opening:
                if self._db is None:
                    self._db = await self._run(self._open)
        return self._db

    async def _run(self, function: Callable[[], R]) -> R:
        self._limiter = self._limiter or anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(function, limiter=self._limiter)


class AsyncPipeline:
    """Queues changes at once and waits for them, without blocking, at the end of the block."""

    def __init__(self, owner: AsyncSessionDB) -> None:
        self._owner = owner

    async def __aenter__(self) -> Pipeline:
        self._pipeline = Pipeline(await self._owner._store())
        return self._pipeline

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self._owner._run(partial(self._pipeline.__exit__, kind, *exc))
