"""The channels of an event loop: one per database, shared by all its users in that loop.

They are kept in a variable of the running loop, which goes with the loop. A channel holds nothing
that belongs to the loop while nobody waits, so neither keeps the other alive: a program that runs
one loop after the other, or one in each of several threads, leaks nothing.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from anyio.lowlevel import RunVar

from hermes_actor.client.aio.actor_client import AsyncActorClient

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.paths import StorePaths

__all__ = ["release", "share"]


class _Shared:
    """A channel and its users. Users that are forgotten without a release do not count."""

    def __init__(self, paths: StorePaths) -> None:
        self.channel = AsyncActorClient(paths)
        self.users: weakref.WeakSet[object] = weakref.WeakSet()


_of_loop: RunVar[dict[Path, _Shared]] = RunVar("hermes_actor.client.aio.shared_clients")
_all: weakref.WeakSet[AsyncActorClient] = weakref.WeakSet()


def share(paths: StorePaths, user: object) -> AsyncActorClient:
    """The channel of this event loop to the actor of *place*. It connects when it is used."""
    channels = _of_loop.get({})
    shared = channels.get(paths.db)
    if shared is None:
        shared = channels[paths.db] = _Shared(paths)
        _of_loop.set(channels)
        _all.add(shared.channel)
    shared.users.add(user)
    return shared.channel


async def release(paths: StorePaths, user: object) -> None:
    """*user* is done with the channel in this event loop; the last one closes it."""
    channels = _of_loop.get({})
    shared = channels.get(paths.db)
    if shared is not None:
        shared.users.discard(user)
        if not shared.users:
            del channels[paths.db]
            await shared.channel.aclose()


def _after_fork() -> None:
    for channel in list(_all):
        channel.after_fork()


os.register_at_fork(after_in_child=_after_fork)
