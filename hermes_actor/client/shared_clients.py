"""The channels of this process: one per database, shared by all that use it."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING

from hermes_actor.client.actor_client import ActorClient

if TYPE_CHECKING:
    from pathlib import Path

    from hermes_actor.paths import StorePaths

__all__ = ["share"]


class _Channels:
    """Counts the users of each channel; the last one closes it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._channels: dict[Path, tuple[ActorClient, int]] = {}
        # Also those that were closed while a call was under way, whose connection lives on.
        self._alive: weakref.WeakSet[ActorClient] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._close_all)

    def share(self, paths: StorePaths, timeout: float) -> ActorClient:
        """The channel to the actor of *place*, which is started if there is none."""
        with self._guard:
            channel, users = self._channels.get(paths.db, (None, 0))
            if channel is None:
                channel = ActorClient(paths, self._release)
                self._alive.add(channel)
            self._channels[paths.db] = (channel, users + 1)
        try:
            channel.connect(timeout)
        except BaseException:
            self._release(channel)
            raise
        return channel

    def _release(self, channel: ActorClient) -> None:
        with self._guard:
            registered, users = self._channels.get(channel.paths.db, (None, 0))
            if registered is channel and users > 1:
                self._channels[channel.paths.db] = (channel, users - 1)
                return
            if registered is channel:
                del self._channels[channel.paths.db]
        channel.close()

    def _close_all(self) -> None:
        with self._guard:
            channels, self._channels = list(self._channels.values()), {}
        for channel, _ in channels:
            with contextlib.suppress(Exception):
                channel.close()

    def _after_fork(self) -> None:
        self._guard = threading.Lock()
        for channel in list(self._alive):
            channel.after_fork()


share = _Channels().share
