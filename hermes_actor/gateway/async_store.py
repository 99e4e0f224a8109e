"""AsyncSessionStore: the calls of a SessionStore as coroutines, for asyncio and for trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
import anyio.to_thread

from hermes_actor.gateway.sources import SessionSource
from hermes_actor.gateway.store import SessionStore
from hermes_actor.gateway.turns import ChatTurn

__all__ = ["AsyncSessionStore"]

P = ParamSpec("P")
R = TypeVar("R")


def _awaitable(
    method: Callable[Concatenate[SessionStore, P], R],
) -> Callable[Concatenate[AsyncSessionStore, P], Coroutine[Any, Any, R]]:
    """Make the coroutine method that does what *method* does, in a worker thread."""

    @wraps(method)
    async def call(self: AsyncSessionStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        function = partial(getattr(self.store, method.__name__), *args, **kwargs)
        return await anyio.to_thread.run_sync(function)

    return call


class AsyncSessionStore:
    """Awaitable twin of a SessionStore: the same calls and results; no call blocks the loop.

    Args:
        store: The store that does the work, which stays the caller's to close.
    """

    def __init__(self, store: SessionStore) -> None:
        self.store = store

    get_or_create_session = _awaitable(SessionStore.get_or_create_session)
    reset_session = _awaitable(SessionStore.reset_session)
    switch_session = _awaitable(SessionStore.switch_session)
    update_session = _awaitable(SessionStore.update_session)
    suspend_session = _awaitable(SessionStore.suspend_session)
    mark_resume_pending = _awaitable(SessionStore.mark_resume_pending)
    clear_resume_pending = _awaitable(SessionStore.clear_resume_pending)
    clear_reset_flags = _awaitable(SessionStore.clear_reset_flags)
    set_model_override = _awaitable(SessionStore.set_model_override)
    get_model_override = _awaitable(SessionStore.get_model_override)
    suspend_recently_active = _awaitable(SessionStore.suspend_recently_active)
    prune_old_entries = _awaitable(SessionStore.prune_old_entries)
    list_sessions = _awaitable(SessionStore.list_sessions)
    has_any_sessions = _awaitable(SessionStore.has_any_sessions)
    lookup_by_session_id = _awaitable(SessionStore.lookup_by_session_id)
    peek_session_id = _awaitable(SessionStore.peek_session_id)
    append_to_transcript = _awaitable(SessionStore.append_to_transcript)
    rewrite_transcript = _awaitable(SessionStore.rewrite_transcript)
    load_transcript = _awaitable(SessionStore.load_transcript)
    flush = _awaitable(SessionStore.flush)

    @asynccontextmanager
    async def begin_turn(
        self, source: SessionSource, content: Any, **options: Any
    ) -> AsyncIterator[ChatTurn]:
        """Take the turn of a chat: ``async with store.begin_turn(source, text) as turn``.

        The methods of the turn itself block; run them in a thread, or keep them few.
        """
        turn = await anyio.to_thread.run_sync(
            partial(self.store.begin_turn, source, content, **options)
        )
        try:
            yield turn
        except BaseException:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(turn.fail)
            raise
        await anyio.to_thread.run_sync(turn.finish)
