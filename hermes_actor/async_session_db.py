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
from collections.abc import Callable, Coroutine, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from hermes_actor import limits
from hermes_actor.api.change import build, is_one_change
from hermes_actor.api.provider import SessionDBProvider
from hermes_actor.client.actor_client import ActorClient
from hermes_actor.client.aio import actor_client
from hermes_actor.client.aio.actor_client import AsyncActorClient
from hermes_actor.client.aio.subscription import AsyncActorChangeStream, AsyncSubscription
from hermes_actor.client.aio.thread_adapter import ThreadChangeStream, ThreadPort
from hermes_actor.pipeline import AsyncPipeline, SingleChanges
from hermes_actor.session_db import SessionDB

if TYPE_CHECKING:
    from hermes_actor.api.turns import AsyncTurn
    from hermes_actor.client.interfaces import AsyncChangeStream, AsyncPort

__all__ = ["AsyncSessionDB"]

P = ParamSpec("P")
R = TypeVar("R")

_THREADS = 8
"""Calls of one object that run at one time in one event loop; the pool of readers keeps half as
many connections."""

_limiters: RunVar[WeakKeyDictionary[AsyncSessionDB, anyio.CapacityLimiter] | None] = RunVar(
    "hermes_actor.async_session_db"
)
"""Of the running loop, by object: a limiter wakes its waiters in the loop that it was made in."""


def _awaitable(
    method: Callable[Concatenate[SessionDB, P], R],
) -> Callable[Concatenate[AsyncSessionDB, P], Coroutine[Any, Any, R]]:
    """Make the coroutine method that does what *method* does, with its arguments and result."""

    @wraps(method)
    async def call(self: AsyncSessionDB, /, *args: P.args, **kwargs: P.kwargs) -> R:
        db = await self._store()
        channel = self._channel(db) if is_one_change(method, db) else None
        if channel is None:
            # By its name: a subclass of SessionDB may have a method of its own.
            return await self._run(partial(getattr(db, method.__name__), *args, **kwargs))
        change = build(method, db, *args, **kwargs)
        return change.outcome(await channel.submit(change.operation, db._timeout))

    return call


class AsyncSessionDB(SingleChanges, made_by=_awaitable):
    """Awaitable twin of a SessionDB: the same methods, arguments, results and errors.

    Args:
        db: An open SessionDB, which stays the caller's to close, or the path or URL of a store,
            which is opened on first use and closed by :meth:`aclose`. Default: the default store.
        mode: As for :class:`SessionDB`, for a store that is opened here.
        timeout: Likewise.
    """

    def __init__(
        self,
        db: SessionDB | Path | str | None = None,
        *,
        mode: str = "actor",
        timeout: float = 30.0,
    ) -> None:
        given = isinstance(db, SessionDBProvider)
        self._given = cast("SessionDB", db) if given else None
        path = None if given else cast("Path | str | None", db)
        self._open = partial(SessionDB, path, mode=mode, timeout=timeout)
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

    # --- reads, and methods of several steps: in a worker thread --------------------------------

    get_session = _awaitable(SessionDB.get_session)
    get_session_title = _awaitable(SessionDB.get_session_title)
    get_session_by_title = _awaitable(SessionDB.get_session_by_title)
    resolve_session_by_title = _awaitable(SessionDB.resolve_session_by_title)
    get_next_title_in_lineage = _awaitable(SessionDB.get_next_title_in_lineage)
    set_default_title = _awaitable(SessionDB.set_default_title)
    get_queued_title = _awaitable(SessionDB.get_queued_title)
    resolve_session_id = _awaitable(SessionDB.resolve_session_id)
    get_compression_tip = _awaitable(SessionDB.get_compression_tip)
    resolve_resume_session_id = _awaitable(SessionDB.resolve_resume_session_id)
    get_messages = _awaitable(SessionDB.get_messages)
    get_messages_as_conversation = _awaitable(SessionDB.get_messages_as_conversation)
    list_sessions_rich = _awaitable(SessionDB.list_sessions_rich)
    search_sessions = _awaitable(SessionDB.search_sessions)
    search_messages = _awaitable(SessionDB.search_messages)
    session_count = _awaitable(SessionDB.session_count)
    message_count = _awaitable(SessionDB.message_count)
    export_session = _awaitable(SessionDB.export_session)
    export_all = _awaitable(SessionDB.export_all)
    delete_session = _awaitable(SessionDB.delete_session)
    delete_session_if = _awaitable(SessionDB.delete_session_if)
    remove_sessions = _awaitable(SessionDB.remove_sessions)
    prune_sessions = _awaitable(SessionDB.prune_sessions)
    prune_empty_ghost_sessions = _awaitable(SessionDB.prune_empty_ghost_sessions)
    get_meta = _awaitable(SessionDB.get_meta)
    maybe_auto_prune_and_vacuum = _awaitable(SessionDB.maybe_auto_prune_and_vacuum)
    merge_indexes = _awaitable(SessionDB.merge_indexes)
    is_telegram_topic_mode_enabled = _awaitable(SessionDB.is_telegram_topic_mode_enabled)
    get_telegram_topic_binding = _awaitable(SessionDB.get_telegram_topic_binding)
    is_telegram_session_linked_to_topic = _awaitable(SessionDB.is_telegram_session_linked_to_topic)
    list_unlinked_telegram_sessions_for_user = _awaitable(
        SessionDB.list_unlinked_telegram_sessions_for_user
    )
    get_handoff_state = _awaitable(SessionDB.get_handoff_state)
    list_pending_handoffs = _awaitable(SessionDB.list_pending_handoffs)
    list_turns = _awaitable(SessionDB.list_turns)
    list_turn_waiters = _awaitable(SessionDB.list_turn_waiters)
    steal_turn = _awaitable(SessionDB.steal_turn)

    async def sanitize_title(self, title: str | None) -> str | None:
        return (await self._store()).sanitize_title(title)

    async def from_url(
        self, url: str, *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> SessionDB:
        return await self._run(partial(SessionDB.from_url, url, settings=settings, timeout=timeout))

    sanitize_title.__doc__ = SessionDB.sanitize_title.__doc__
    from_url.__doc__ = SessionDB.from_url.__doc__

    def turn(
        self,
        session_id: str,
        *,
        holder: str = "",
        kind: str = "turn",
        wait: float = 0.0,
        seconds: float = limits.TURN_SECONDS,
    ) -> AsyncTurn:
        """Take the turn of a conversation: ``async with db.turn("s1", wait=20) as turn:``.

        See :meth:`SessionDB.turn`. It is waited for without a thread.
        """
        from hermes_actor.api.turns import AsyncTurn

        return AsyncTurn(
            self, session_id=session_id, holder=holder, kind=kind, wait=wait, seconds=seconds
        )

    # --- pipelines and subscriptions ----------------------------------------------------------

    def pipeline(self) -> AsyncPipeline:
        """Several changes in one round trip; see :mod:`hermes_actor.pipeline`."""
        return AsyncPipeline(self._opened)

    def subscribe(self, after: int | None = None) -> AsyncSubscription:
        """Follow the changes of the store: ``async with db.subscribe() as changes:``.

        See :meth:`SessionDB.subscribe`. It begins when the block is entered, or with the first
        change that is asked for.
        """
        return AsyncSubscription(partial(self._changes, after))

    async def _changes(self, after: int | None) -> AsyncChangeStream:
        db = await self._store()
        port = db._opened_port()
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
        return db, self._channel(db) or ThreadPort(db._opened_port(), self._run)

    def _channel(self, db: SessionDB) -> AsyncActorClient | None:
        """The way to the actor without a thread, if there is an actor."""
        port = db._opened_port()
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
