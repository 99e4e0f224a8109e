"""SessionStore: the session of every chat, with one operation for every change of it.

The rules are in :mod:`hermes_actor.store.gateway.route_rules` and run in the transaction of the
writer. What stays here needs a clock, a policy, a folder or a hook. In the steady state a message
costs one read: the route is written again only once a minute.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsInt

import hermes_protocol.operations as ops
from hermes_actor.api.base import fenced, token_of
from hermes_actor.api.turns import Turn, ended_turn
from hermes_actor.errors import TurnBusy, TurnLost
from hermes_actor.gateway.chats import ActiveProcesses, Chats, local_time, readable
from hermes_actor.gateway.config import GatewayConfig
from hermes_actor.gateway.entries import NOT_PENDING, NOT_RESET, SessionEntry, pending_marks
from hermes_actor.gateway.hooks import Hooks
from hermes_actor.gateway.import_index import import_index
from hermes_actor.gateway.mirror import Mirror
from hermes_actor.gateway.sources import SessionSource
from hermes_actor.gateway.transcripts import Transcripts, message_row
from hermes_actor.ids import new_session_id
from hermes_actor.store import queries
from hermes_actor.store.gateway import entries as stored
from hermes_actor.store.gateway.tables import RouteState, StoredRoute

if TYPE_CHECKING:
    from hermes_actor.gateway.turns import ChatTurn
    from hermes_actor.session_db import SessionDB

__all__ = ["SessionStore"]

_log = logging.getLogger("hermes_actor.gateway")

_TOUCH_SECONDS = 60.0
"""A route that was used less than this ago is not written for another message."""
_RECENT_SECONDS = 120
_RESET_SECONDS = 5.0
"""Longest time of a reset after its hook."""


class SessionStore(Chats):
    """Maps chats to sessions. Safe to use from any thread, and from many processes on one store.

    Args:
        sessions_dir: The folder of ``sessions.json`` and the transcripts; its resolved path is the
            scope of the routes. Default: ``sessions`` in the home of the database.
        config: Default: the settings of the home.
        has_active_processes_fn: Called with a session key; a chat with a background process is
            never reset, expired or pruned. It may return the age of the youngest process in
            seconds instead of ``True``; one older than ``bg_process_max_age_hours`` of the policy
            does not count. A callback that raises counts as active.
        db: The store; default: the default store, which :meth:`close` closes.
        clock: Returns the local time; default: that of the system.
        hooks: Default: those of installed packages.
    """

    db: SessionDB

    def __init__(
        self,
        sessions_dir: Path | None = None,
        config: GatewayConfig | None = None,
        has_active_processes_fn: ActiveProcesses | None = None,
        *,
        db: SessionDB | None = None,
        clock: Callable[[], datetime] | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self._owned = db is None
        opened = db if db is not None else _default_db()
        super().__init__(
            opened,
            sessions_dir or Path(opened.db_path).parent / "sessions",
            many_hosts=opened.capabilities.many_hosts,
            config=config,
            has_active_processes_fn=has_active_processes_fn,
            clock=clock,
        )
        self.hooks = hooks or Hooks()
        self.transcripts = Transcripts(self.db, self.sessions_dir, self.scope)
        self.mirror = Mirror(self.db, self.sessions_dir, self.scope)
        self._guard = threading.Lock()
        self._imported = False

    def close(self) -> None:
        """Write what is left of the index file, and close the store if it was opened here."""
        self.flush()
        if self._owned:
            self.db.close()

    def flush(self) -> None:
        """Write the index file if routes have changed since it was written."""
        if self.config.write_sessions_json:
            self.mirror.flush()

    # --- sessions of chats -----------------------------------------------------------------

    def get_or_create_session(self, source: SessionSource, force_new: bool = False) -> SessionEntry:
        """Return the entry of a chat; its session exists, and is open.

        The reset policy of the chat decides whether it is the same session as before. The hook
        ``before_reset`` is called first if the watcher has not come to it.
        """
        key, now = self.session_key(source), self.clock()
        self._import_once()
        state = self.state(key)
        if state is not None and not force_new:
            kept = self._kept(state, now)
            if kept is not None:
                return kept
            if self._is_to_be_remembered(state, now) or self._is_ending(state, now):
                return self._remember_and_open(source, state)
        return self._open(source, key, now, state, force_new)

    def _kept(self, state: RouteState, now: datetime) -> SessionEntry | None:
        """Return the entry if nothing about it has to be written."""
        route, session = state.route, state.session
        fresh = 0 <= now.timestamp() - route.updated_at < _TOUCH_SECONDS
        entry = route.entry
        moved = state.tip != entry["session_id"]
        new = entry.get("created_at") == entry.get("updated_at") or entry.get("suspended")
        if not fresh or moved or new or session is None or session.ended_at is not None:
            return None
        if _is_flushed(state):
            return None
        if self._reason(state, now) is not None:
            return None
        entry = entry | {"updated_at": now.isoformat()}
        return self._entry(route.key, ops.Route(entry=stored.dumps(entry)))

    def _open(
        self,
        source: SessionSource,
        key: str,
        now: datetime,
        state: RouteState | None,
        force_new: bool,
        turn: Turn | None = None,
    ) -> SessionEntry:
        policy = self.config.get_reset_policy(source.platform, source.chat_type)
        limits = policy.thresholds(now)
        new_id = new_session_id(now.timestamp())
        operation = ops.RouteOpen(
            scope=self.scope,
            key=key,
            now=now.timestamp(),
            now_text=now.isoformat(),
            new_id=new_id,
            entry=stored.dumps(_new_entry(source, key, new_id, now).to_dict()),
            peer=_peer(source),
            idle_before=limits.idle_before,
            daily_before=limits.daily_before,
            fresh_after=self._fresh_after(policy, now),
            held=self.has_active_processes(key, policy),
            force_new=force_new,
            seen=None if state is None else state.route.entry["session_id"],
            gone=0 if state is None else ended_turn(state.turn),
            turn=token_of(turn),
        )
        return self._changed(key, self.db._submit(operation), source)

    def _changed(
        self, key: str, route: ops.Route, source: SessionSource | None = None
    ) -> SessionEntry:
        """Return the entry of a change, after the index file and the hooks have heard of it."""
        entry = self._entry(key, route)
        self._mirror(soon=route.outcome == "kept")
        if route.outcome == "created":
            self.hooks.call("session_start", entry=entry, source=source)
        if route.outcome == "reset":
            self.hooks.call("session_reset", entry=entry, old_id=route.old_id, reason=route.reason)
        return entry

    @staticmethod
    def _entry(key: str, route: ops.Route) -> SessionEntry:
        data = json.loads(route.entry)
        try:
            entry = SessionEntry.from_dict(data)
        except (KeyError, TypeError, ValueError) as error:
            # Another program has written it. What it says is of less value than the message.
            _log.warning("the entry of chat %r is read in part: %r", key, error)
            now = local_time()
            entry = SessionEntry(key, str(data["session_id"]), now, now)
        entry.outcome = route.outcome
        return entry

    def _mirror(self, *, soon: bool) -> None:
        if self.config.write_sessions_json:
            self.mirror.changed(soon=soon)

    def reset_session(self, key: str, display_name: str | None = None) -> SessionEntry | None:
        """End the session of a chat and start another one; ``None`` for an unknown key."""
        now = self.clock()
        return self._change(
            ops.RouteReset(
                scope=self.scope,
                key=key,
                new_id=new_session_id(now.timestamp()),
                now=now.timestamp(),
                now_text=now.isoformat(),
                display_name=display_name,
            )
        )

    def switch_session(self, key: str, target_id: str) -> SessionEntry | None:
        """Have a chat go on in another session; ``None`` for an unknown key.

        Raises:
            UnknownSession: there is no session *target_id*.
        """
        now = self.clock()
        return self._change(
            ops.RouteSwitch(
                scope=self.scope,
                key=key,
                target=target_id,
                now=now.timestamp(),
                now_text=now.isoformat(),
            )
        )

    def _change(self, operation: ops.RouteReset | ops.RouteSwitch) -> SessionEntry | None:
        self._import_once()
        route = self.db._submit(operation)
        return None if route is None else self._changed(operation.key, route)

    # --- marks of an entry -------------------------------------------------------------------

    def update_session(self, key: str, last_prompt_tokens: int | None = None) -> None:
        """Note that a chat was used now, and how large its prompt was. Ignores an unknown key."""
        now = self.clock()
        fields: dict[str, Any] = {"updated_at": now.isoformat()}
        if last_prompt_tokens is not None:
            fields["last_prompt_tokens"] = last_prompt_tokens
        self._set(key, fields, now=now.timestamp())

    def suspend_session(self, key: str) -> bool:
        """Have the next message of a chat begin another session; return False if it is unknown."""
        return self._set(key, {"suspended": True}) is not None

    def mark_resume_pending(self, key: str, reason: str = "restart_timeout") -> bool:
        """Note that a chat was interrupted and is to go on; False if unknown or suspended."""
        marks = pending_marks(reason, self.clock())
        return self._set(key, marks, unless=["suspended"]) is not None

    def clear_resume_pending(self, key: str) -> bool:
        """Take that note back; return False if there was none."""
        entry = self._peek(key)
        if entry is None or not entry.get("resume_pending"):
            return False
        return self._set(key, NOT_PENDING, expect=entry["session_id"]) is not None

    def clear_reset_flags(self, key: str) -> None:
        """Forget that the session of a chat came from a reset: its first message was handled."""
        self._set(key, NOT_RESET)

    def set_model_override(self, key: str, override: dict[str, Any] | None) -> bool:
        """Keep model, provider and base URL for a chat; never anything secret."""
        kept = {
            name: value
            for name, value in (override or {}).items()
            if name in ("model", "provider", "base_url") and value
        }
        return self._set(key, {"model_override": kept or None}) is not None

    def _set(self, key: str, fields: dict[str, Any], **options: Any) -> ops.Route | None:
        self._import_once()
        route = self.db._submit(self.route_change(key, fields, **options))
        if route is not None:
            self.touched()
        return route

    def route_change(self, key: str, fields: dict[str, Any], **options: Any) -> ops.RouteChange:
        """Return the operation that merges *fields* into the entry of a chat."""
        return ops.RouteChange(scope=self.scope, key=key, set=stored.dumps(fields), **options)

    def touched(self) -> None:
        """Have the index file follow a change that no reader of it waits for."""
        self._mirror(soon=True)

    # --- many chats --------------------------------------------------------------------------

    def suspend_recently_active(self, max_age_seconds: int = _RECENT_SECONDS) -> int:
        """Mark the chats that were in use when a gateway died, to go on; return how many."""
        self._import_once()
        now = self.clock()
        marked = self.db._submit(
            ops.RoutesMark(
                scope=self.scope,
                since=now.timestamp() - max_age_seconds,
                now_text=now.isoformat(),
                reason="restart_interrupted",
            )
        )
        if marked:
            self.touched()
        return marked

    def prune_old_entries(self, max_age_days: int | None) -> int:
        """Forget chats that were not used for so many days; return how many.

        Suspended ones stay, and those with a background process. Sessions are not removed.
        """
        if not max_age_days or max_age_days <= 0:
            return 0
        self._import_once()
        before = (self.clock() - timedelta(days=max_age_days)).timestamp()
        old = self.db._query(queries.unused_routes, self.scope, before)
        keep = [
            route.key
            for route in old
            if self.has_active_processes(route.key, self._policy(route.entry))
        ]
        gone = self.db._submit(ops.RoutesPrune(scope=self.scope, before=before, keep=keep))
        if gone:
            self._mirror(soon=False)
        return len(gone)

    def routes(self) -> list[StoredRoute]:
        """Return the routes of this gateway as they are stored."""
        self._import_once()
        return super().routes()

    def _peek(self, key: str) -> dict[str, Any] | None:
        self._import_once()
        return super()._peek(key)

    def _is_to_be_remembered(self, state: RouteState, now: datetime) -> bool:
        """Return True if the session ends with the next operation, and its hook is to be called."""
        if state.route.entry.get("expiry_finalized") or not self.hooks.has("before_reset"):
            return False
        return self._reason(state, now) is not None

    def _is_ending(self, state: RouteState, now: datetime) -> bool:
        """Return True if another one calls the memory hook of the session, and then ends it."""
        is_flushed = self.has_turn(state) and _is_flushed(state)
        return is_flushed and self._reason(state._replace(turn=None), now) is not None

    def _remember_and_open(self, source: SessionSource, state: RouteState) -> SessionEntry:
        """Call the memory hook of a session and end it, under one turn of its conversation.

        So messages that come together call it once, and a watcher does not call it besides. Another
        one's turn of a suspended chat is not waited for: its holder may be stuck.
        """
        key, tip = state.route.key, state.tip
        wait = self.hooks.seconds + _RESET_SECONDS
        if self.has_turn(state) and not _is_flushed(state):
            wait = 0.0
        try:
            turn = self.db.turn(tip, holder="reset", kind="flush", wait=wait)
        except TurnBusy:
            return self._open(source, key, self.clock(), state, False)
        with turn:
            again, now = self.state(key), self.clock()
            if again is None or again.tip != tip:
                return self._open(source, key, now, again, False)  # another one has ended it
            again = again._replace(turn=None)
            reason = self._reason(again, now)
            if reason is not None and self._is_to_be_remembered(again, now):
                self.remember(again, reason)
            with suppress(TurnLost):  # an operator, or a clock, has ended it meanwhile
                return self._open(source, key, self.clock(), again, False, turn)
        return self._open(source, key, self.clock(), again, False)

    def remember(self, state: RouteState, reason: str) -> bool:
        """Give the hook ``before_reset`` its chance, unless the conversation is too short for it.

        Returns False if a hook was still running when its time was over.
        """
        if not self.hooks.has("before_reset"):
            return True
        transcript = self.load_transcript(state.tip)
        entry = readable(state.route)
        too_short = len(transcript) < self.config.memory_min_messages
        if entry is None or too_short or state.tip.startswith("cron_"):
            return True
        return self.hooks.call_limited(
            "before_reset", entry=entry, reason=reason, transcript=transcript
        )

    def _import_once(self) -> None:
        """Take over the index file of another program, the first time that the scope is used."""
        if self._imported:
            return
        with self._guard:
            if not self._imported:
                import_index(self.db, self.sessions_dir, self.scope, self.clock())
                self._imported = True

    # --- turns and transcripts -----------------------------------------------------------------

    def begin_turn(
        self,
        source: SessionSource,
        content: Any,
        *,
        message_key: str | None = None,
        wait: float = 20.0,
        holder: str | None = None,
    ) -> ChatTurn:
        """Take the turn of a chat and store the user's message: what a gateway does per message.

        Args:
            message_key: The id of the message on its platform; a second delivery is not stored.
            wait: Seconds to wait while another process answers the same chat.

        Raises:
            TurnBusy: another one still answers.
        """
        from hermes_actor.gateway.turns import ChatRequest

        request = ChatRequest(
            self, source, content, message_key=message_key, wait=wait, holder=holder
        )
        return request.wait()

    def append_to_transcript(
        self,
        session_id: str,
        message: dict[str, Any],
        skip_db: bool = False,
        *,
        turn: SupportsInt | None = None,
    ) -> int | None:
        """Add a message to a session; with *skip_db* only to its file, as older hosts do.

        Returns the id of the message, or ``None``.
        """
        if skip_db:
            self.transcripts.append_line(session_id, message)
            return None
        row = message_row(message, self.clock())
        operation = ops.MessageAppend(session_id=session_id, message=row, **fenced(turn))
        return self.db._submit(operation)

    def rewrite_transcript(
        self,
        session_id: str,
        messages: list[dict[str, Any]],
        *,
        turn: SupportsInt | None = None,
    ) -> None:
        """Replace the messages of a session, and then its file."""
        self.db.replace_messages(session_id, messages, turn=turn)
        self.follow_transcript(session_id)

    def follow_transcript(self, session_id: str) -> None:
        """Bring the transcript file of a session up to date, if files are kept.

        A failure is logged: the messages are stored, and the watcher catches up.
        """
        if self.config.write_jsonl:
            self.transcripts.try_follow(session_id)

    def load_transcript(self, session_id: str) -> list[dict[str, Any]]:
        """Return the messages of a session, of the store or of a longer file of another program."""
        return self.transcripts.load(session_id)

    def get_transcript_path(self, session_id: str) -> Path:
        """Return the path of the transcript file. Raises ``ValueError`` for an id like a path."""
        return self.transcripts.path(session_id)


def _is_flushed(state: RouteState) -> bool:
    """Return True if the turn of a conversation is that of a memory hook, and not of an answer."""
    return state.turn is not None and state.turn.kind == "flush"


def _default_db() -> SessionDB:
    from hermes_actor.session_db import SessionDB

    return SessionDB()


def _new_entry(source: SessionSource, key: str, session_id: str, now: datetime) -> SessionEntry:
    return SessionEntry(
        session_key=key,
        session_id=session_id,
        created_at=now,
        updated_at=now,
        origin=source,
        display_name=source.chat_name,
        platform=source.platform,
        chat_type=source.chat_type,
    )


def _peer(source: SessionSource) -> ops.Peer:
    def text(value: object) -> str | None:
        return None if value is None else str(value)

    return ops.Peer(
        source=source.platform,
        user_id=text(source.user_id),
        chat_id=text(source.chat_id),
        chat_type=source.chat_type,
        thread_id=text(source.thread_id),
        display_name=source.chat_name,
        origin_json=stored.dumps(source.to_dict()),
        profile_name=source.profile,
    )
