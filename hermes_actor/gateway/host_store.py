"""The session store of hermes-agent with its chats in ours: a subclass of the class of the host.

The host reaches into its store: it changes entries and saves them, and iterates over the index. So
its class, its entries and its policies stay, and only what moves a chat from one session to another
is one operation. What the host writes into an entry goes to the store with :meth:`_save`.

For releases whose names and signatures are known; see :mod:`hermes_actor.attach.typed`.
"""

from __future__ import annotations

import logging
import types
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hermes_protocol.operations as ops
from hermes_actor.errors import WrongKind
from hermes_actor.gateway.config import GatewayConfig
from hermes_actor.gateway.policies import SessionResetPolicy
from hermes_actor.gateway.sources import SessionSource
from hermes_actor.gateway.store import SessionStore
from hermes_actor.store.gateway.entries import dumps

if TYPE_CHECKING:
    from hermes_actor.session_db import SessionDB

__all__ = ["routed_store"]

_log = logging.getLogger("hermes_actor.gateway")


@dataclass
class _HostSource(SessionSource):
    """A source of the host, with the key that the host has built from it."""

    key: str = ""


class _HostChats(SessionStore):
    """Our store of the chats of a host: keys, policies and clock are the host's."""

    def session_key(self, source: SessionSource) -> str:
        return source.key if isinstance(source, _HostSource) else super().session_key(source)


def routed_store(module: types.ModuleType) -> type:
    """Return a subclass of ``SessionStore`` of *module*, the host's ``gateway.session``."""
    base: Any = module.SessionStore
    entry_of = module.SessionEntry.from_dict

    class RoutedSessionStore(base):  # type: ignore[misc]
        """The session store of the host, with its chats in the store of hermes-actor."""

        def __init__(
            self, sessions_dir: Path, config: Any, has_active_processes_fn: Any = None
        ) -> None:
            super().__init__(sessions_dir, config, has_active_processes_fn)
            self._loaded: bool
            self._seen: dict[str, dict[str, Any]] = {}
            """Each entry as it was last read from the store, or written to it."""
            self._chats: Any = None
            """Our store; none where the chats stay in the index of the host."""
            ours = None if self._db is None else _store_of(self._db)
            if ours is not None:
                self._chats = _HostChats(
                    Path(sessions_dir),
                    _config_of(module, config),
                    has_active_processes_fn,
                    db=ours,
                    # Looked up at each call, as the host does.
                    clock=lambda: _time_of(module),
                )

        # --- index ---------------------------------------------------------------------------

        def _ensure_loaded_locked(self) -> None:
            if self._chats is None:
                super()._ensure_loaded_locked()
            elif not self._loaded:
                self._load()
                self._loaded = True

        def _load(self) -> None:
            """Read every chat. Entries that the host holds stay the same objects."""
            stored = {route.key: route.entry for route in self._chats.routes()}
            for key in set(self._entries) - set(stored):
                del self._entries[key]
                self._seen.pop(key, None)
            for key, entry in stored.items():
                self._install(key, entry)

        def _install(self, key: str, stored: dict[str, Any]) -> Any:
            try:
                entry = entry_of(stored)
            except (KeyError, TypeError, ValueError):
                return self._entries.get(key)  # it names a platform that the host does not know
            if key in self._entries:
                before = self._entries[key].origin
                if before is not None and before.to_dict() == stored.get("origin"):
                    entry.origin = before  # it may know more than what is stored
                vars(self._entries[key]).update(vars(entry))
            else:
                self._entries[key] = entry
            self._seen[key] = self._entries[key].to_dict()
            return self._entries[key]

        def _read_again(self, key: str) -> Any:
            state = self._chats.state(key)
            with self._lock:
                self._ensure_loaded_locked()
                return None if state is None else self._install(key, state.route.entry)

        def _save(self) -> None:
            """Store what the host has changed in its entries since they were read."""
            if self._chats is None:
                super()._save()
                return
            now = {key: entry.to_dict() for key, entry in self._entries.items()}
            put = {key: entry for key, entry in now.items() if entry != self._seen.get(key)}
            drop = [key for key in self._seen if key not in now]
            if not put and not drop:
                return
            refused = self._chats.db._submit(
                ops.RoutesWrite(
                    scope=self._chats.scope,
                    now=_time_of(module).timestamp(),
                    put={key: dumps(entry) for key, entry in put.items()},
                    times={key: _used_at(entry) for key, entry in put.items()},
                    drop=drop,
                    # Another process has moved the chat meanwhile: what is written here is older.
                    expect={
                        key: self._seen[key]["session_id"]
                        for key in (*put, *drop)
                        if key in self._seen
                    },
                )
            )
            self._seen = now
            if refused:
                self._load()
            self._chats.touched()

        def _save_entries(self) -> None:
            """Store the entries; called by releases that do not hold the lock then."""
            with self._lock:
                self._save()

        # --- what moves a chat -----------------------------------------------------------------

        def get_or_create_session(self, source: Any, force_new: bool = False) -> Any:
            """Return the entry of a chat, as the host's class does."""
            if self._chats is None:
                return super().get_or_create_session(source, force_new)
            key = self._generate_session_key(source)
            found = self._chats.get_or_create_session(_source_of(source, key), force_new)
            with self._lock:
                self._ensure_loaded_locked()
                entry = self._install(key, found.to_dict())
                if found.outcome in ("created", "reset"):
                    entry.origin = source
                return entry

        def reset_session(self, session_key: str, display_name: str | None = None) -> Any:
            """Start another session for a chat; ``None`` for an unknown key."""
            if self._chats is None:
                return super().reset_session(session_key, display_name)
            found = self._chats.reset_session(session_key, display_name)
            return None if found is None else self._read_again(session_key)

        def switch_session(self, session_key: str, target_session_id: str) -> Any:
            """Have a chat go on in another session; ``None`` for an unknown key."""
            if self._chats is None:
                return super().switch_session(session_key, target_session_id)
            if self._chats.peek_session_id(session_key) is None:
                return None
            # The host takes any id, and makes the session with the first message.
            self._chats.db.ensure_session(target_session_id)
            self._chats.switch_session(session_key, target_session_id)
            return self._read_again(session_key)

        # --- marks ---------------------------------------------------------------------------

        def update_session(self, session_key: str, last_prompt_tokens: int | None = None) -> None:
            """Note that a chat was used now."""
            if self._chats is None:
                super().update_session(session_key, last_prompt_tokens)
                return
            self._chats.update_session(session_key, last_prompt_tokens)
            self._read_again(session_key)

        def suspend_recently_active(self, max_age_seconds: int = 120) -> int:
            """Mark the chats that were in use when a gateway died; return how many."""
            if self._chats is None:
                return int(super().suspend_recently_active(max_age_seconds))
            marked: int = self._chats.suspend_recently_active(max_age_seconds)
            self._load_again()
            return marked

        def prune_old_entries(self, max_age_days: int) -> int:
            """Forget chats that were not used for so many days; return how many."""
            if self._chats is None:
                return int(super().prune_old_entries(max_age_days))
            gone: int = self._chats.prune_old_entries(max_age_days)
            self._load_again()
            return gone

        def list_sessions(self, active_minutes: int | None = None) -> Any:
            """Return the entries, those of other processes as well."""
            if self._chats is not None:
                self._load_again()
            return super().list_sessions(active_minutes)

        def _load_again(self) -> None:
            with self._lock:
                self._load()
                self._loaded = True

    RoutedSessionStore.__name__ = RoutedSessionStore.__qualname__ = "SessionStore"
    RoutedSessionStore.__module__ = module.__name__
    return RoutedSessionStore


def _time_of(module: types.ModuleType) -> datetime:
    now: datetime = module._now()
    return now


def _used_at(entry: dict[str, Any]) -> float:
    return datetime.fromisoformat(entry["updated_at"]).timestamp()


def _source_of(source: Any, key: str) -> _HostSource:
    return _HostSource(**vars(SessionSource.from_dict(source.to_dict())), key=key)


def _store_of(db: Any) -> SessionDB | None:
    """Return our store of the file that the host has opened; ``None`` if it is of another kind."""
    from hermes_actor.session_db import SessionDB

    if isinstance(db, SessionDB):
        return db
    try:
        # Newer releases keep a class of their own, which writes through the same actor.
        return SessionDB(db.db_path)
    except WrongKind as error:
        _log.warning("attach.chats is left out, the gateway keeps its own index: %s", error)
        return None


def _config_of(module: types.ModuleType, config: Any) -> GatewayConfig:
    """Return our settings from those of the host; it writes the transcripts itself."""

    def policies(given: dict[Any, Any]) -> dict[str, SessionResetPolicy]:
        return {str(getattr(key, "value", key)): _policy_of(one) for key, one in given.items()}

    # Earlier releases let an interrupted chat go on whenever its user comes back.
    window = getattr(module, "auto_continue_freshness_window", None)
    return GatewayConfig(
        default_reset_policy=_policy_of(config.default_reset_policy),
        reset_by_type=policies(config.reset_by_type),
        reset_by_platform=policies(config.reset_by_platform),
        session_store_max_age_days=config.session_store_max_age_days,
        auto_continue_freshness=window() if window else 0.0,
        write_sessions_json=bool(getattr(config, "write_sessions_json", True)),
        write_jsonl=False,
    )


def _policy_of(policy: Any) -> SessionResetPolicy:
    return SessionResetPolicy(
        mode=policy.mode,
        at_hour=policy.at_hour,
        idle_minutes=policy.idle_minutes,
        notify=policy.notify,
        notify_exclude_platforms=tuple(policy.notify_exclude_platforms),
    )
