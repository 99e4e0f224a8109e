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
from hermes_actor.gateway.turns import ChatRequest, ChatTurn

__all__ = ["AsyncChatTurn", "AsyncSessionStore"]

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
    ) -> AsyncIterator[AsyncChatTurn]:
        """Take the turn of a chat: ``async with store.begin_turn(source, text) as turn``.

        Leaving the block finishes it, unless the block did. An error or a cancellation inside marks
        the chat as interrupted.
        """
        begun = await self._begun(ChatRequest(self.store, source, content, **options))
        try:
            yield AsyncChatTurn(begun)
        except BaseException as error:
            # Also when the task is cancelled: the next message of the chat waits for it.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(begun.__exit__, type(error))
            raise
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(begun.__exit__, None)

    @staticmethod
    async def _begun(request: ChatRequest) -> ChatTurn:
        """Return the turn. It is waited for without a thread: the one who answers needs them."""
        try:
            while (  # noqa: ASYNC110 - what ends the wait is in the store
                turn := await anyio.to_thread.run_sync(request.attempt)
            ) is None:
                await anyio.sleep(request.interval())
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(request.leave)
        return turn


class AsyncChatTurn:
    """Awaitable twin of a ChatTurn. ``int(turn)`` is its token, as for a ChatTurn."""

    def __init__(self, turn: ChatTurn) -> None:
        self._turn = turn
        self.entry = turn.entry
        self.is_repeated = turn.is_repeated
        self.notice = turn.notice
        self.context_note = turn.context_note

    def __int__(self) -> int:
        return int(self._turn)

    @property
    def session_id(self) -> str:
        """The session that the turn writes, a continuation after :meth:`compress`."""
        return self._turn.session_id

    async def history(self) -> list[dict[str, Any]]:
        """Return the conversation so far, in the form that is sent to a model."""
        return await anyio.to_thread.run_sync(lambda: self._turn.history)

    async def append(self, role: str, content: Any = None, **fields: Any) -> int:
        """Store a message under this turn. Raises :class:`TurnLost`."""
        return await anyio.to_thread.run_sync(partial(self._turn.append, role, content, **fields))

    async def compress(self, messages: list[dict[str, Any]] | None = None) -> str:
        """Go on in a continuation of the session, with *messages* in it; return its id."""
        return await anyio.to_thread.run_sync(self._turn.compress, messages)

    async def renew(self) -> None:
        """Say that the answer is still being made."""
        await anyio.to_thread.run_sync(self._turn.renew)

    async def finish(self, last_prompt_tokens: int | None = None) -> None:
        """End the turn well. Raises :class:`TurnLost`."""
        await anyio.to_thread.run_sync(self._turn.finish, last_prompt_tokens)

    async def fail(self, reason: str = "restart_timeout") -> None:
        """End the turn without an answer: the chat is to go on later."""
        await anyio.to_thread.run_sync(self._turn.fail, reason)
