"""The feed of one store: the status of its actor, and the changes of all writers.

Read by one thread for all pages that are open. It starts no actor: while none runs there is nothing
to follow, and a page that is left open must not keep an actor alive that was stopped.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import NamedTuple

from hermes_actor import limits
from hermes_actor.client.control import StatusWatch
from hermes_actor.client.subscription import ActorChangeStream, Subscription
from hermes_actor.errors import HermesActorError
from hermes_actor.store.rows import Row
from hermes_actor.system.lock_inspection import lock_holder
from hermes_actor.web.stores import ShownStore
from hermes_actor.web.views.actor import figures_of, last_lines
from hermes_protocol.features import AGENTS
from hermes_protocol.messages import Changed, Gap
from hermes_protocol.status import Status

__all__ = ["Feed", "Seen"]

_MOST_CHANGES = 2000
"""Changes of one look. What comes quicker waits in the actor, which ends it with a gap."""

_SHOWN_CHANGES = 20
"""Changes of one look that are shown one by one, the newest: people read no more."""

_ARRIVAL_SECONDS = 0.2
"""Wait for the first change of a look. With none, a connection that was lost could not be replaced:
a busy actor does not say Welcome at once."""

_CONNECT_SECONDS = 2.0
"""Longest wait for a new subscription, for which the figures of a look wait. The next look tries
again."""

_CURVE = 60
"""Points of the curve of writes."""

_VOLATILE = ("uptime_s", "memory_max_kib", "python")
"""Figures that move while nothing happens, and are not shown live."""


class Seen(NamedTuple):
    """One look: figures if they have changed, and what was committed since the last look."""

    figures: Row | None
    why: str
    """Reason for which there are no figures."""
    changes: list[Row]
    unlisted: int
    """Changes that are not in *changes*, older ones."""
    gap: bool
    """Changes were missed that are no longer known one by one."""
    last: int | None
    """The last ``commit_no`` that is known."""
    log: list[str] | None = None
    """The newest lines of the log if it has grown."""

    @property
    def parts(self) -> list[str]:
        """The parts of a page that are rendered again."""
        is_new = {
            "figures": self.figures is not None or self.why,
            "log": self.log is not None,
            "changes": self.changes or self.gap,
        }
        return [name for name, there in is_new.items() if there]


class Feed:
    """The status and the changes of one store. For one thread at a time."""

    def __init__(self, store: ShownStore, after: int | None) -> None:
        self._store = store
        self.position = after
        """The last change that is known; ``None`` if none is yet."""
        self._changes: Subscription | None = None
        self._stream: ActorChangeStream | None = None
        self._actor = None if store.paths is None else StatusWatch(store.paths)
        self._known: Row | str | None = None
        self._log: tuple[int, ...] | None = None
        """Mark of the log that was read."""
        self._curve: deque[float] = deque(maxlen=_CURVE)
        self._writes: int | None = None

    def begin(self) -> int | None:
        """Return :attr:`position`; at first the newest change that there is.

        It is known before there is a subscription, so each subscription goes on from a number: one
        that began with what is to come would lose what comes before it. ``None`` while the store
        cannot be read.
        """
        if self.position is None:
            self.position = self._store.newest_change()
        return self.position

    def begin_again(self, after: int | None) -> None:
        """Have the next look give all figures, and the changes after *after*."""
        self.close()
        self.position = after

    def look(self) -> Seen | None:
        """Return what is new since the last look; ``None`` if nothing is."""
        self.begin()
        figures, why = self._status()
        found, gap = self._committed()
        changes = [_described(one) for one in found[-_SHOWN_CHANGES:]]
        seen = Seen(
            figures, why, changes, len(found) - len(changes), gap, self.position, self._new_lines()
        )
        return seen if seen.parts else None

    def close(self) -> None:
        """End both connections; a later look begins where they ended, and gives all figures."""
        self._known = self._log = None
        if self._actor is not None:
            self._actor.close()
        changes, self._changes, self._stream = self._changes, None, None
        if changes is not None:
            changes.close()

    def _status(self) -> tuple[Row | None, str]:
        """Return figures that differ from those before, or why there are none."""
        if self._actor is None:
            return None, ""
        seen = self._actor.look()
        known = _steady(seen) if isinstance(seen, Status) else seen
        if known == self._known:
            return None, ""
        self._known = known
        if isinstance(known, str):
            self._writes = None
            return None, known
        if self._writes is not None:
            self._curve.append(max(0, known["writes"] - self._writes))
        self._writes = known["writes"]
        return {**known, "curve": [0] * (_CURVE - len(self._curve)) + list(self._curve)}, ""

    def _new_lines(self) -> list[str] | None:
        """Return the newest lines of the log; ``None`` if they are known."""
        if self._store.paths is None:
            return None
        log = self._store.paths.log
        try:
            found = log.stat()
        except OSError:
            return None  # no actor that was started on demand has written one
        mark = found.st_ino, found.st_size, found.st_mtime_ns
        if mark == self._log:
            return None
        self._log = mark
        return last_lines(log)

    def _committed(self) -> tuple[list[Changed], bool]:
        changes, gap = list[Changed](), False
        with contextlib.suppress(HermesActorError, OSError):
            stream, seconds = self._subscription()
            while stream is not None and len(changes) < _MOST_CHANGES:
                change = stream.get(0 if changes else seconds)
                if change is None:
                    break
                if isinstance(change, Gap):
                    gap, self.position = True, change.through
                    continue
                changes.append(change)
                self.position = change.commit_no or self.position
        return changes, gap

    def _subscription(self) -> tuple[Subscription | None, float]:
        """Return the subscription, and how long to wait for its first change.

        ``None`` while no actor runs, because it would start one. What an actor has sent before its
        end is still read.
        """
        paths = self._store.paths
        if paths is not None and lock_holder(paths) is None:
            has_more = self._stream is not None and self._stream.is_connected
            return (self._changes if has_more else None), 0.0
        if self._changes is None:
            if paths is not None:
                kind = self._store.kind
                # An actor that drains holds its lock and listens no more: none is started then.
                self._stream = ActorChangeStream(
                    paths, self.position, _CONNECT_SECONDS, kind, start=False
                )
                self._changes = Subscription(self._stream)
            elif self._store.kind == AGENTS:
                self._changes = self._store.agents.subscribe(self.position)
            else:
                port = self._store.sessions._opened_port()
                self._changes = Subscription(
                    port.subscribe(self.position, limits.DEFAULT_TIMEOUT_SECONDS)
                )
        return self._changes, _ARRIVAL_SECONDS


def _steady(status: Status) -> Row:
    """Return the figures of a status that stand still while nothing happens."""
    return {name: value for name, value in figures_of(status).items() if name not in _VOLATILE}


def _described(change: Changed) -> Row:
    return {
        "commit_no": change.commit_no,
        "op": change.op,
        "session_id": change.session_id,
        "table": change.table,
        "agent_id": change.agent_id,
    }
