"""Hooks of a gateway: callables of the program, and entry points of installed packages.

Events and their keyword arguments: ``session_start(entry, source)``, ``session_reset(entry, old_id,
reason)``, ``before_reset(entry, reason, transcript)``, ``session_finalize(session_id, platform,
reason)``. An error of a hook is logged with its name and stops nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

__all__ = ["EVENTS", "GROUP", "Hooks"]

_log = logging.getLogger("hermes_actor.gateway")

EVENTS = ("session_start", "session_reset", "before_reset", "session_finalize")
GROUP = "hermes_actor.gateway_hooks"
"""Entry point group; the name of an entry point is the event."""

HOOK_SECONDS = 60.0
"""Longest time of one hook before a reset: the next message of the chat may wait for it."""

Hook = Callable[..., object]


class Hooks:
    """The hooks of one gateway, called in the order in which they were added."""

    def __init__(self, *, entry_points: bool = True, seconds: float = HOOK_SECONDS) -> None:
        self._hooks: dict[str, list[Hook]] = defaultdict(list)
        self.seconds = seconds
        if entry_points:
            self._load()

    def add(self, event: str, hook: Hook) -> None:
        """Call *hook* at *event* from now on. Raises ``ValueError`` for an unknown event."""
        if event not in EVENTS:
            raise ValueError(f"unknown event {event!r}; one of {', '.join(EVENTS)}")
        self._hooks[event].append(hook)

    def has(self, event: str) -> bool:
        """Return True if anything is called at *event*."""
        return bool(self._hooks[event])

    def call(self, event: str, **arguments: Any) -> None:
        """Call the hooks of *event* in this thread; none of them raises here."""
        for hook in self._hooks[event]:
            self._call(event, hook, arguments)

    def call_limited(self, event: str, **arguments: Any) -> bool:
        """Call the hooks of *event* beside this thread, and stop waiting when the time is over.

        Returns False if one was still running then. It goes on alone: a thread cannot be ended.
        """
        runner = threading.Thread(
            target=self.call, args=(event,), kwargs=arguments, daemon=True, name=event
        )
        runner.start()
        runner.join(self.seconds)
        if runner.is_alive():
            _log.warning("hooks of %s were still running after %.0f s", event, self.seconds)
        return not runner.is_alive()

    def _call(self, event: str, hook: Hook, arguments: dict[str, Any]) -> None:
        try:
            hook(**arguments)
        except (Exception, SystemExit):  # a hook that exits must not end the gateway
            _log.exception("hook %s of %s failed", getattr(hook, "__qualname__", hook), event)

    def _load(self) -> None:
        from importlib.metadata import entry_points

        for point in entry_points(group=GROUP):
            try:
                self.add(point.name, point.load())
            except Exception:
                _log.exception("hook %s of %s cannot be loaded", point.value, point.name)
