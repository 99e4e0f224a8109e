"""The chats of one folder as they are stored: questions about them, and no change.

What the next message of a chat meets follows from its route, its session, the turn of its
conversation, the settings and the clock; :class:`Chats` puts them together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hermes_actor.api.turns import ended_turn
from hermes_actor.gateway.config import GatewayConfig, load_gateway_config
from hermes_actor.gateway.entries import SessionEntry
from hermes_actor.gateway.keys import build_session_key
from hermes_actor.gateway.policies import SessionResetPolicy, Thresholds
from hermes_actor.gateway.sources import SessionSource
from hermes_actor.store import queries
from hermes_actor.store.gateway.route_rules import last_use, reset_reason
from hermes_actor.store.gateway.tables import RouteState, StoredRoute
from hermes_actor.system.process_identity import own_place

if TYPE_CHECKING:
    from hermes_actor.api.provider import StoreMethods

__all__ = ["ActiveProcesses", "Chats", "local_time", "readable"]

_log = logging.getLogger("hermes_actor.gateway")

ActiveProcesses: TypeAlias = Callable[[str], bool | float | None]
"""Says by session key if a chat has a background process, or how old its youngest one is."""


class Chats:
    """Reads the chats of one folder. It changes nothing, and starts no actor.

    Args:
        db: The store.
        sessions_dir: The folder of ``sessions.json``; its resolved path is the scope of the routes.
        many_hosts: Whether other hosts use the store, with folders of their own.
        config: Default: the settings of the home.
        has_active_processes_fn: As for :class:`SessionStore`.
        clock: Returns the local time; default: that of the system.
    """

    def __init__(
        self,
        db: StoreMethods,
        sessions_dir: Path,
        *,
        many_hosts: bool = False,
        config: GatewayConfig | None = None,
        has_active_processes_fn: ActiveProcesses | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.db = db
        self.sessions_dir = sessions_dir.resolve()
        self.config = config or load_gateway_config(self.sessions_dir.parent)
        self.clock = clock or local_time
        self.scope = str(self.sessions_dir)
        if many_hosts:
            # Two hosts may share a database, but not a folder.
            self.scope = f"{own_place().partition('/')[0]}:{self.scope}"
        self._active = has_active_processes_fn

    def session_key(self, source: SessionSource) -> str:
        """Return the key of the chat that *source* is about, by the settings of this gateway."""
        return build_session_key(
            source,
            self.config.group_sessions_per_user,
            self.config.thread_sessions_per_user,
            source.profile if self.config.multiplex_profiles else None,
            self.sessions_dir.parent,
        )

    def list_sessions(self, active_minutes: int | None = None) -> list[SessionEntry]:
        """Return the entries of all chats, latest use first; broken ones are left out."""
        found = sorted(self.routes(), key=lambda one: one.updated_at, reverse=True)
        if active_minutes is not None:
            since = (self.clock() - timedelta(minutes=active_minutes)).timestamp()
            found = [route for route in found if route.updated_at >= since]
        return [entry for route in found if (entry := readable(route)) is not None]

    def routes(self) -> list[StoredRoute]:
        """Return the routes of this gateway as they are stored."""
        return self.db._query(queries.all_routes, self.scope)

    def has_any_sessions(self) -> bool:
        """Return True if there was a session before the present one."""
        return self.db.session_count() > 1

    def lookup_by_session_id(self, session_id: str) -> SessionEntry | None:
        """Return the entry of the chat that has this session."""
        for scope, route in self.db._query(queries.routes_of_session, session_id):
            if scope == self.scope:
                return readable(route)
        return None

    def peek_session_id(self, key: str) -> str | None:
        """Return the session of a chat without touching it; ``None`` for an unknown key."""
        entry = self._peek(key)
        return None if entry is None else str(entry["session_id"])

    def state(self, key: str) -> RouteState | None:
        """Return the route of a chat with the state of its session, for commands and tests."""
        return self.db._query(queries.route_state, self.scope, key)

    def verdict(self, state: RouteState) -> str | None:
        """Return why the next message of a chat would begin another session; ``None``: it goes on.

        The question of the expiry watcher and of ``gateway routes``.
        """
        return self._reason(state, self.clock())

    def thresholds(self, entry: dict[str, Any]) -> Thresholds:
        """Return the times before which this chat has expired now."""
        return self._policy(entry).thresholds(self.clock())

    def _peek(self, key: str) -> dict[str, Any] | None:
        state = self.state(key)
        return None if state is None else state.route.entry

    def get_model_override(self, key: str) -> dict[str, Any] | None:
        """Return what :meth:`set_model_override` has kept."""
        entry = self._peek(key)
        return None if entry is None else entry.get("model_override")

    def _reason(self, state: RouteState, now: datetime) -> str | None:
        """Return why the session of a chat is to be reset now, if it is."""
        entry = state.route.entry
        if entry.get("suspended"):
            return "suspended"
        policy = self._policy(entry)
        if self.has_active_processes(state.route.key, policy) or self.has_turn(state):
            return None
        used = last_use(state.route, state.last_message, now.timestamp())
        return reset_reason(entry, used, *policy.thresholds(now), self._fresh_after(policy, now))

    def has_turn(self, state: RouteState) -> bool:
        """Return True if the conversation of a chat has a turn, held by a process that lives."""
        turn = state.turn
        now = self.clock().timestamp()
        return turn is not None and turn.until > now and not ended_turn(turn)

    def _policy(self, entry: dict[str, Any]) -> SessionResetPolicy:
        return self.config.get_reset_policy(entry.get("platform"), entry.get("chat_type"))

    def _fresh_after(self, policy: SessionResetPolicy, now: datetime) -> str | None:
        seconds = self.config.auto_continue_freshness
        if policy.mode == "none" or seconds <= 0:
            return None
        return (now - timedelta(seconds=seconds)).isoformat()

    def has_active_processes(self, key: str, policy: SessionResetPolicy) -> bool:
        """Return True if a chat has a background process that counts under its policy.

        A callback that fails counts as one.
        """
        if self._active is None:
            return False
        try:
            found = self._active(key)
        except Exception:
            _log.exception("the callback for background processes failed for %r", key)
            return True
        hours = policy.bg_process_max_age_hours
        if isinstance(found, bool) or found is None or hours <= 0:
            return bool(found) or type(found) in (int, float)
        # A forgotten preview server would keep a chat from its reset for ever.
        return found <= hours * 3600


def local_time() -> datetime:
    """Return the local time."""
    # By the clock that turns and messages go by, too.
    return datetime.fromtimestamp(time.time())


def readable(route: StoredRoute) -> SessionEntry | None:
    try:
        return SessionEntry.from_dict(route.entry)
    except (KeyError, TypeError, ValueError) as error:
        _log.warning("the entry of chat %r is left out: %s", route.key, error)
        return None
