"""AsyncSessionDB: every method of a SessionDB as a coroutine, for asyncio and for trio.

A method that only writes is a message to the actor and its answer: it takes no thread, and any
number of tasks may wait at once. Reads run SQLite in this process, so they take a worker thread,
as do methods that do more than one thing and everything in ``mode="embedded"``. The event loop
never waits for a disk, a lock or an actor.

Calls that are awaited one after the other keep their order. Cancelling a write that was sent does
not take it back, and cancelling a call in a worker thread waits for its end.

Event loops in several threads may share one object: what belongs to a loop is kept by the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from hermes_actor.api.operations import ONE_CHANGE, record
from hermes_actor.api.provider import SessionDBProvider
from hermes_actor.async_pipeline import AsyncPipeline
from hermes_actor.client.actor_client import ActorClient
from hermes_actor.client.aio import actor_client
from hermes_actor.client.aio.subscription import AsyncActorChangeStream, AsyncSubscription
from hermes_actor.client.aio.thread_adapter import ThreadChangeStream, ThreadPort
from hermes_actor.errors import Closed
from hermes_actor.session_db import SessionDB

if TYPE_CHECKING:
    from hermes_actor.client.aio.actor_client import AsyncActorClient
    from hermes_actor.client.interfaces import AsyncChangeStream, AsyncPort, WriterPort

__all__ = ["AsyncSessionDB"]

R = TypeVar("R")

_THREADS = 8
"""Calls of one object that run at one time in one event loop; the pool of readers keeps half as
many connections."""

_limiters: RunVar[WeakKeyDictionary[AsyncSessionDB, anyio.CapacityLimiter] | None] = RunVar(
    "hermes_actor.async_session_db"
)
"""Of the running loop, by object: a limiter wakes its waiters in the loop that it was made in."""


class AsyncSessionDB:
    """Awaitable twin of a SessionDB.

    Args:
        db: An open SessionDB, which stays the caller's to close, or the path or URL of a store,
            which is opened on first use and closed by :meth:`aclose`. Default: the default store.
        options: Keywords of ``SessionDB`` for a store that is opened here.
    """

    def __init__(self, db: SessionDB | Path | str | None = None, **options: Any) -> None:
        given = isinstance(db, SessionDBProvider)
        self._given = cast("SessionDB", db) if given else None
        self._open = partial(SessionDB, None if given else cast("Path | str | None", db), **options)
        self._db = self._given
        self._opening = threading.Lock()

    async def __aenter__(self) -> Self:
        await self._store()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close what was opened here: the connection of this event loop, and the store unless it
        was given. Calling it again is harmless."""
        db, self._db = self._db, self._given
        if db is not None:
            if isinstance(db._port, ActorClient):
                await actor_client.release(db._port.paths, self)
            if db is not self._given:
                with anyio.CancelScope(shield=True):
                    await self._run(db.close)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(SessionDB, name, None)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"SessionDB has no method {name!r}")

        async def call(*args: Any, **kwargs: Any) -> Any:
            db = await self._store()
            # What a subclass makes of a method is not known to be a single change.
            one_change = name in ONE_CHANGE and getattr(type(db), name) is method
            channel = self._channel(db) if one_change else None
            if channel is None:
                return await self._run(partial(getattr(db, name), *args, **kwargs))
            change = record(db, name, *args, **kwargs)
            return change.outcome(await channel.submit(change.operation, db._timeout))

        call.__name__ = name
        call.__doc__ = method.__doc__
        return call

    def pipeline(self) -> AsyncPipeline:
        """Several changes in one round trip; see :mod:`hermes_actor.async_pipeline`."""
        return AsyncPipeline(self._opened)

    def subscribe(self, after: int | None = None) -> AsyncSubscription:
        """Follow the changes of the store: ``async with db.subscribe() as changes:``.

        See :meth:`SessionDB.subscribe`. It begins when the block is entered, or with the first
        change that is asked for.
        """
        return AsyncSubscription(partial(self._changes, after))

    async def _changes(self, after: int | None) -> AsyncChangeStream:
        db = await self._store()
        port = _port_of(db)
        if isinstance(port, ActorClient):
            return await AsyncActorChangeStream.open(port.paths, after, db._timeout)
        return ThreadChangeStream(port.subscribe(after, db._timeout))

    async def _store(self) -> SessionDB:
        if self._db is not None:
            return self._db
        return await self._run(self._open_once)

    def _open_once(self) -> SessionDB:
        """In a worker thread, of any loop that uses this object."""
        with self._opening:
            if self._db is None:
                self._db = self._open()
            return self._db

    async def _opened(self) -> tuple[SessionDB, AsyncPort]:
        db = await self._store()
        return db, self._channel(db) or ThreadPort(_port_of(db), self._run)

    def _channel(self, db: SessionDB) -> AsyncActorClient | None:
        """The way to the actor without a thread, if there is an actor."""
        port = _port_of(db)
        return actor_client.acquire(port.paths, self) if isinstance(port, ActorClient) else None

    async def _run(self, function: Callable[[], R]) -> R:
        limiters = _limiters.get(None)
        if limiters is None:
            limiters = WeakKeyDictionary()
            _limiters.set(limiters)
        limiter = limiters.get(self)
        if limiter is None:
            limiter = limiters[self] = anyio.CapacityLimiter(_THREADS)
        return await anyio.to_thread.run_sync(function, limiter=limiter)


def _port_of(db: SessionDB) -> WriterPort:
    if db._port is None:
        raise Closed("this SessionDB is closed")
    return db._port
