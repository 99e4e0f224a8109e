"""AsyncAgentStore: every method of an AgentStore as a coroutine, for asyncio and for trio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio.to_thread

from hermes_actor.agent_store.store import AgentStore
from hermes_actor.agent_store.subject import Subject

__all__ = ["AsyncAgentStore"]

R = TypeVar("R")


class _AsyncSubject:
    """The methods of one subject as coroutines, each in a worker thread."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._subject, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await anyio.to_thread.run_sync(partial(method, *args, **kwargs))

        return call


class AsyncAgentStore:
    """Awaitable twin of an AgentStore: ``await store.memories.search("deploy")``.

    The event loop never waits for a disk, a lock or an actor. Cancelling a call waits for its end.
    ``async with await AsyncAgentStore.open("main") as store``; arguments as for
    :class:`AgentStore`.
    """

    def __init__(self, store: AgentStore) -> None:
        self._store = store

    @classmethod
    async def open(
        cls, agent_id: str | None, store: Path | str | None = None, **options: Any
    ) -> Self:
        """Open a store without blocking the event loop."""
        made = await anyio.to_thread.run_sync(partial(AgentStore, agent_id, store, **options))
        return cls(made)

    def __getattr__(self, name: str) -> _AsyncSubject:
        subject = getattr(self._store, name)
        if not isinstance(subject, Subject):
            raise AttributeError(name)
        return _AsyncSubject(subject)

    def of(self, agent_id: str | None) -> AsyncAgentStore:
        """Return the store of another agent over the same connection."""
        return AsyncAgentStore(self._store.of(agent_id))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the store."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._store.close)
