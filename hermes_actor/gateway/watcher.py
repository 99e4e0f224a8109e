"""Expiry watcher: ends conversations that have expired, after their memories were saved.

``before_reset`` is called at least once, ``session_finalize`` at most once per session: the claim
of the route, one operation, has one winner in all processes. A conversation with a turn is left
alone, and while the hook runs the watcher itself holds the turn.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import suppress

import hermes_protocol.operations as ops
from hermes_actor.api.turns import Turn
from hermes_actor.errors import HermesActorError, TurnBusy
from hermes_actor.gateway.store import SessionStore
from hermes_actor.store import queries
from hermes_actor.store.gateway.tables import RouteState, StoredRoute

__all__ = ["Watcher"]

_log = logging.getLogger("hermes_actor.gateway")

_TRIES = 3
"""Failures of one chat after which its session is finished without its memory hook."""
_PRUNE_SECONDS = 3600.0


class Watcher:
    """Looks for expired conversations every *every* seconds, beginning after *first*.

    It also brings the transcript files up to date, and forgets old chats once an hour.
    """

    def __init__(self, store: SessionStore, *, every: float = 300.0, first: float = 60.0) -> None:
        self._store = store
        self._every = every
        self._first = first
        self._failures: Counter[str] = Counter()
        self._stop = threading.Event()
        self._pruned_at: float | None = None

    def run(self) -> None:
        """Watch until :meth:`stop`, in the calling thread. An error ends one round, not this."""
        wait = self._first
        while not self._stop.wait(wait):
            wait = self._every
            self._guarded_round()

    async def arun(self) -> None:
        """Watch until the task is cancelled."""
        import anyio
        import anyio.to_thread

        wait = self._first
        while True:
            await anyio.sleep(wait)
            wait = self._every
            await anyio.to_thread.run_sync(self._guarded_round)

    def _guarded_round(self) -> None:
        try:
            self.round()
        except HermesActorError as error:
            _log.warning("expired sessions were not looked at: %s", error)
        except Exception:
            # A full disk or a fault of ours: the next round may be better, no watcher never is.
            _log.exception("expired sessions were not looked at")

    def stop(self) -> None:
        """End :meth:`run` after the session that it is at."""
        self._stop.set()

    def round(self) -> list[str]:
        """Finish what has expired now; return the ids of the sessions."""
        store = self._store
        finished = []
        for route in self._candidates():
            if self._stop.is_set():
                break
            try:
                session_id = self._finish(route)
            except TurnBusy:
                continue  # a message has come; the next round looks again
            except HermesActorError as error:
                self._failures[route.key] += 1
                _log.warning("chat %s was not finished: %s", route.key, error)
                continue
            except Exception:
                # A route that another program has broken keeps no other chat from its end.
                self._failures[route.key] += 1
                _log.exception("chat %s was not finished", route.key)
                continue
            self._failures.pop(route.key, None)
            if session_id is not None:
                finished.append(session_id)
        if store.config.write_jsonl:
            store.transcripts.catch_up()
        self._prune()
        return finished

    def _candidates(self) -> list[StoredRoute]:
        """Return routes that may have expired: unused since the latest threshold of any policy."""
        now, config = self._store.clock(), self._store.config
        policies = [
            config.default_reset_policy,
            *config.reset_by_platform.values(),
            *config.reset_by_type.values(),
        ]
        latest = [one for p in policies if (one := p.thresholds(now).latest) is not None]
        if not latest:
            return []
        found = self._store.db._query(queries.unused_routes, self._store.scope, max(latest))
        return [route for route in found if not route.entry.get("expiry_finalized")]

    def _finish(self, route: StoredRoute) -> str | None:
        store = self._store
        state = self._expired(route.key)
        if state is None:
            return None
        turn = store.db.turn(state.tip, holder="watcher", kind="flush", wait=0)
        try:
            finished = self._claim(route.key, turn)
        finally:
            # What was claimed is announced, whatever comes of this: no other watcher will do it.
            with suppress(HermesActorError):
                turn.release()
        if finished is None:
            return None
        platform = finished.route.entry.get("platform")
        store.hooks.call(
            "session_finalize", session_id=finished.tip, platform=platform, reason="session_expired"
        )
        store.touched()
        return finished.tip

    def _claim(self, key: str, turn: Turn) -> RouteState | None:
        """Finish the session under its *turn*; return what it was, if this watcher did."""
        store = self._store
        # Under the turn the state is looked at once more: a message may have come before it.
        state, used_before = self._still_expired(key, int(turn))
        if state is None:
            return None
        reason = self._reason(state)
        if self._failures[key] < _TRIES:
            store.remember(state, reason)
        claim = ops.RouteClaim(
            scope=store.scope,
            key=key,
            session_id=state.tip,
            now=store.clock().timestamp(),
            reason=reason,
            before=used_before,
            turn=int(turn),
        )
        return state if store.db._submit(claim) else None

    def _expired(self, key: str) -> RouteState | None:
        state = self._store.state(key)
        if state is None or state.route.entry.get("expiry_finalized"):
            return None
        return state if self._store.verdict(state) in ("idle", "daily") else None

    def _still_expired(self, key: str, token: int) -> tuple[RouteState | None, float]:
        state = self._store.state(key)
        if state is None or state.route.entry.get("expiry_finalized"):
            return None, 0.0
        # Our own turn does not keep it.
        if state.turn is not None and state.turn.token == token:
            state = state._replace(turn=None)
        if self._store.verdict(state) not in ("idle", "daily"):
            return None, 0.0
        return state, self._store.thresholds(state.route.entry).latest or 0.0

    def _reason(self, state: RouteState) -> str:
        return self._store.verdict(state) or "idle"

    def _prune(self) -> None:
        now = self._store.clock().timestamp()
        if self._pruned_at is None or now - self._pruned_at >= _PRUNE_SECONDS:
            self._pruned_at = now
            self._store.prune_old_entries(self._store.config.session_store_max_age_days)
