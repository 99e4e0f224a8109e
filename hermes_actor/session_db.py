"""SessionDB: sessions and messages of an agent, as callers have always known them.

Reads run in the calling process, on read-only connections. Every change becomes one operation
and goes to the one writer of the file. This module takes the time, encodes values to their stored
form, cleans titles and removes transcript files; it holds no SQL.

One class, because it is one contract: its fifty methods are thin and stand in the order of their
description in ``docs/reference/session-db.md``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hermes_protocol.operations as ops
from hermes_actor.availability import record_init_error
from hermes_actor.client.facade import Facade, Parameters
from hermes_actor.client.reader import Reader
from hermes_actor.errors import Closed, HermesActorError, RequestError
from hermes_actor.paths import default_db_path, place_of
from hermes_actor.sqlite import sqlite3
from hermes_actor.store import (
    content,
    conversation,
    lineage,
    listing,
    messages,
    meta,
    search,
    sessions,
    text_query,
    titles,
    topics,
)
from hermes_actor.store.sql import names_index
from hermes_actor.store.surrogates import without_surrogates

if TYPE_CHECKING:
    from hermes_actor.client.port import WriterPort
    from hermes_actor.paths import Place
    from hermes_actor.pipeline import Pipeline
    from hermes_actor.sqlite import Connection
    from hermes_actor.store.rows import Row
    from hermes_protocol.operations import Operation

__all__ = ["DEFAULT_DB_PATH", "SessionDB"]

R = TypeVar("R")

DEFAULT_DB_PATH = default_db_path()
"""Computed once, at import: a later change of ``HERMES_HOME`` does not move the store."""

_DAY_SECONDS = 86_400.0
_GHOST_AGE_SECONDS = _DAY_SECONDS
_ORPHAN_AGE_SECONDS = 7 * _DAY_SECONDS
_EXPORT_LIMIT = 100_000
_HANDOFF_ERROR_LENGTH = 500

_log = logging.getLogger("hermes_state")


class SessionDB:
    """The session store of one agent. Safe to use from any thread.

    Args:
        db_path: The database file, as a ``Path``; default ``HERMES_HOME/state.db``.
        mode: ``"embedded"`` runs the writer as a thread of this process.
        patience: Seconds that a call waits for the writer before it gives up.

    Raises:
        StorageError: the file cannot be used; the class says why, and the file is untouched.
        Owned: another process owns the writer.
    """

    MAX_TITLE_LENGTH = titles.MAX_TITLE_LENGTH

    # The write path that these described is gone; the names are part of the contract.
    _WRITE_MAX_RETRIES = 15
    _WRITE_RETRY_MIN_S = 0.020
    _WRITE_RETRY_MAX_S = 0.150
    _CHECKPOINT_EVERY_N_WRITES = 50
    _CONTENT_JSON_PREFIX = content.JSON_PREFIX

    def __init__(
        self,
        db_path: Path | None = None,
        *,
        mode: str = "embedded",
        patience: float = 30.0,
    ) -> None:
        self.db_path = db_path or _default_path()
        self.db_path.parent.mkdir(parents=True, exist_ok=True)
        self._patience = patience
        self._lock = threading.RLock()
        self._port: WriterPort | None = None
        try:
            place = place_of(self.db_path)
            self._port = _open_port(mode, place, patience)
            self._reader = Reader(place)
        except Exception as error:
            record_init_error(error)
            raise
        self._conn: Facade | None = Facade(self._read_sql, self._submit, self._execute_write)

    def close(self) -> None:
        """Stop using the store. Calling it again is harmless; other objects are not disturbed."""
        with self._lock:
            port, self._port, self._conn = self._port, None, None
        if port is not None:
            self._reader.close()
            port.release()

    def _submit(self, operation: Operation[R]) -> R:
        port = self._port
        if port is None:
            raise Closed("this SessionDB is closed")
        try:
            return port.submit(operation, self._patience)
        except UnicodeEncodeError:
            # Lone surrogates cannot be stored. In the text of a message that is the caller's
            # error; anywhere else it must not cost the change.
            clean = without_surrogates(operation)
            if clean is operation:
                raise
            return port.submit(clean, self._patience)

    def pipeline(self) -> Pipeline:
        """Several changes in one round trip; see :mod:`hermes_actor.pipeline`."""
        from hermes_actor.pipeline import Pipeline

        return Pipeline(self)

    # --- session rows ----------------------------------------------------------------------

    def create_session(self, session_id: str, source: str, **kwargs: Any) -> str:
        """Insert a session unless its id exists; the first writer of an id wins.

        Keywords: ``model``, ``model_config``, ``system_prompt``, ``user_id``,
        ``parent_session_id``. Returns *session_id*.
        """
        self._insert_session_row(session_id, source, **kwargs)
        return session_id

    def ensure_session(
        self, session_id: str, source: str = "unknown", model: str | None = None, **kwargs: Any
    ) -> str:
        """Like :meth:`create_session`, for callers that know no more than the id."""
        self._insert_session_row(session_id, source, model=model, **kwargs)
        return session_id

    def _insert_session_row(
        self,
        session_id: str,
        source: str,
        model: str | None = None,
        model_config: dict[str, Any] | None = None,
        system_prompt: str | None = None,
        user_id: str | None = None,
        parent_session_id: str | None = None,
    ) -> None:
        self._submit(
            ops.SessionCreate(
                id=session_id,
                source=source,
                started_at=time.time(),
                user_id=user_id,
                model=model,
                model_config=content.encode_json(model_config),
                system_prompt=system_prompt,
                parent_session_id=parent_session_id,
            )
        )

    def continue_session(self, old: str, new: str | None = None) -> str:
        """End *old* with ``compression`` and start its continuation, as one change.

        The child inherits source, user, model and prompt, and gets the next title of the lineage
        if *old* has one. Returns the id of the child (made up if *new* is not given).

        Raises:
            UnknownSession: there is no session *old*.
            SessionEnded: *old* has ended for another reason.
            ConstraintFailed: a session *new* exists.
        """
        if new is None:
            second = time.strftime("%Y%m%d_%H%M%S", time.localtime(time.time()))
            new = f"{second}_{os.urandom(3).hex()}"
        return self._submit(ops.SessionContinue(old=old, new=new, now=time.time())).id

    def get_session(self, session_id: str) -> Row | None:
        return self._reader.query(sessions.get_session, session_id)

    def end_session(self, session_id: str, end_reason: str) -> None:
        """End an open session; the first end wins."""
        self._submit(ops.SessionEnd(id=session_id, ended_at=time.time(), end_reason=end_reason))

    def reopen_session(self, session_id: str) -> None:
        self._submit(ops.SessionReopen(id=session_id))

    def update_system_prompt(self, session_id: str, system_prompt: str) -> None:
        self._submit(ops.SessionPrompt(id=session_id, system_prompt=system_prompt))

    def update_token_counts(
        self,
        session_id: str,
        input_tokens: int = 0,
        output_tokens: int = 0,
        model: str | None = None,
        cache_read_tokens: int = 0,
        cache_write_tokens: int = 0,
        reasoning_tokens: int = 0,
        estimated_cost_usd: float | None = None,
        actual_cost_usd: float | None = None,
        cost_status: str | None = None,
        cost_source: str | None = None,
        pricing_version: str | None = None,
        billing_provider: str | None = None,
        billing_base_url: str | None = None,
        billing_mode: str | None = None,
        api_call_count: int = 0,
        absolute: bool = False,
    ) -> None:
        """Add token counts and cost to a session, or set them (*absolute*)."""
        self._submit(
            ops.SessionTokens(
                id=session_id,
                started_at=time.time(),
                absolute=bool(absolute),
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                cache_read_tokens=cache_read_tokens,
                cache_write_tokens=cache_write_tokens,
                reasoning_tokens=reasoning_tokens,
                api_call_count=api_call_count,
                estimated_cost_usd=estimated_cost_usd,
                actual_cost_usd=actual_cost_usd,
                cost_status=cost_status,
                cost_source=cost_source,
                pricing_version=pricing_version,
                billing_provider=billing_provider,
                billing_base_url=billing_base_url,
                billing_mode=billing_mode,
                model=model,
            )
        )

    # --- titles ----------------------------------------------------------------------------

    @staticmethod
    def sanitize_title(title: str | None) -> str | None:
        """The clean title, ``None`` if nothing is left; ``ValueError`` if it is too long."""
        return titles.sanitize_title(title)

    def set_session_title(self, session_id: str, title: str | None) -> bool:
        """Set or clear a title; ``False`` if there is no such session.

        Raises:
            TitleInUse: another session has it (a ``ValueError``).
        """
        return self._submit(ops.SessionTitle(id=session_id, title=self.sanitize_title(title)))

    def get_session_title(self, session_id: str) -> str | None:
        return self._reader.query(titles.title_of, session_id)

    def get_session_by_title(self, title: str) -> Row | None:
        return self._reader.query(titles.by_title, title)

    def resolve_session_by_title(self, title: str) -> str | None:
        """The latest numbered continuation of *title*, else the session that has exactly it."""
        return self._reader.snapshot(titles.resolve_title, title)

    def get_next_title_in_lineage(self, base_title: str) -> str:
        return self._reader.query(titles.next_in_lineage, base_title)

    # --- ids and lineage -------------------------------------------------------------------

    def resolve_session_id(self, session_id_or_prefix: str) -> str | None:
        """The exact id, else the only id that begins so."""
        return self._reader.snapshot(sessions.resolve_id, session_id_or_prefix)

    def get_compression_tip(self, session_id: str | None) -> str | None:
        """The last session of the compression chain that begins at *session_id*."""
        return self._reader.snapshot(lineage.compression_tip, session_id)

    def resolve_resume_session_id(self, session_id: str) -> str:
        """Where a resume of *session_id* should go: the first session below it with messages."""
        if not session_id:
            return session_id
        try:
            return self._reader.query(lineage.resume_target, session_id)
        except (Closed, RequestError):
            return session_id

    def _session_lineage_root_to_tip(self, session_id: str) -> list[str]:
        return self._reader.snapshot(lineage.root_to_tip, session_id)

    # --- messages --------------------------------------------------------------------------

    def append_message(
        self,
        session_id: str,
        role: str,
        content: Any = None,
        tool_name: str | None = None,
        tool_calls: Any = None,
        tool_call_id: str | None = None,
        token_count: int | None = None,
        finish_reason: str | None = None,
        reasoning: str | None = None,
        reasoning_content: str | None = None,
        reasoning_details: Any = None,
        codex_reasoning_items: Any = None,
        codex_message_items: Any = None,
    ) -> int:
        """Add a message and raise the counters of its session. Returns the message id."""
        message = {
            "role": role,
            "content": content,
            "tool_name": tool_name,
            "tool_calls": tool_calls,
            "tool_call_id": tool_call_id,
            "token_count": token_count,
            "finish_reason": finish_reason,
            "reasoning": reasoning,
            "reasoning_content": reasoning_content,
            "reasoning_details": reasoning_details,
            "codex_reasoning_items": codex_reasoning_items,
            "codex_message_items": codex_message_items,
        }
        row = _content.message_row(time.time(), message)
        return self._submit(ops.MessageAppend(session_id=session_id, message=row))

    def replace_messages(self, session_id: str, messages: list[dict[str, Any]]) -> None:
        """Replace the transcript of a session; on any error the old one stays."""
        rows = _content.transcript_rows(time.time(), messages)
        self._submit(ops.MessagesReplace(session_id=session_id, messages=rows))

    def clear_messages(self, session_id: str) -> None:
        self._submit(ops.MessagesClear(session_id=session_id))

    def get_messages(self, session_id: str) -> list[Row]:
        """Every message in the order of insertion, content and tool calls decoded."""
        return self._reader.query(messages.get_messages, session_id)

    def get_messages_as_conversation(
        self, session_id: str, include_ancestors: bool = False
    ) -> list[Row]:
        """The transcript in the form that is sent to a model again."""
        return self._reader.snapshot(conversation.conversation, session_id, include_ancestors)

    _is_duplicate_replayed_user_message = staticmethod(conversation.is_replayed_prompt)
    _encode_content = staticmethod(content.encode_content)
    _decode_content = staticmethod(content.decode_content)

    # --- lists and search ------------------------------------------------------------------

    def list_sessions_rich(
        self,
        source: str | None = None,
        exclude_sources: Sequence[str] | None = None,
        limit: int = 20,
        offset: int = 0,
        include_children: bool = False,
        project_compression_tips: bool = True,
        order_by_last_active: bool = False,
    ) -> list[Row]:
        """Sessions with preview and last activity, newest (or latest active) first."""
        return self._reader.snapshot(
            lambda conn: listing.list_rich(
                conn,
                source=source,
                exclude_sources=exclude_sources,
                limit=limit,
                offset=offset,
                include_children=include_children,
                project_tips=project_compression_tips,
                order_by_last_active=order_by_last_active,
            )
        )

    def _get_session_rich_row(self, session_id: str) -> Row | None:
        return self._reader.query(listing.rich_row, session_id)

    def search_sessions(
        self, source: str | None = None, limit: int = 20, offset: int = 0
    ) -> list[Row]:
        """All sessions, children included, latest active first."""
        return self._reader.snapshot(listing.search_sessions, source, limit, offset)

    def session_count(self, source: str | None = None) -> int:
        return self._reader.query(sessions.session_count, source)

    def message_count(self, session_id: str | None = None) -> int:
        return self._reader.query(messages.message_count, session_id)

    def search_messages(
        self,
        query: str | None,
        source_filter: Sequence[str] | None = None,
        exclude_sources: Sequence[str] | None = None,
        role_filter: Sequence[str] | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> list[Row]:
        """Messages that match *query*, best first, each with its neighbours.

        Complete: every message acknowledged before the call is looked at. Raises
        :class:`IndexBehind` if the full-text index cannot be brought so far in time.
        """
        filters = search.Filters(source_filter, exclude_sources, role_filter)
        return self._with_complete_index(search.search_messages, query, filters, limit, offset)

    def _with_complete_index(self, function: Callable[..., R], *arguments: Any) -> R:
        """Run *function* in a snapshot in which the indexes cover all that was there before."""

        def ask(conn: Connection) -> tuple[int | None, R | None]:
            behind = search.index_lag(conn)
            return (behind, None) if behind is not None else (None, function(conn, *arguments))

        behind, result = self._reader.snapshot(ask)
        if behind is None:
            return result  # type: ignore[return-value]
        if self._port is None:
            raise Closed("this SessionDB is closed")
        # Once the owner has caught up, messages that arrived meanwhile are not waited for.
        self._port.catch_up(behind, self._patience)
        return self._reader.snapshot(function, *arguments)

    _sanitize_fts5_query = staticmethod(text_query.sanitize)
    _contains_cjk = staticmethod(text_query.contains_cjk)
    _count_cjk = staticmethod(text_query.count_cjk)
    _is_cjk_codepoint = staticmethod(text_query.is_cjk)

    # --- export and removal ----------------------------------------------------------------

    def export_session(self, session_id: str) -> Row | None:
        """The session with its messages, in one consistent state."""

        def export(conn: Connection) -> Row | None:
            row = sessions.get_session(conn, session_id)
            return row and {**row, "messages": messages.get_messages(conn, session_id)}

        return self._reader.snapshot(export)

    def export_all(self, source: str | None = None) -> list[Row]:
        """Every session with its messages, latest active first.

        Read session by session, so that no snapshot is held for long; a session that is removed
        meanwhile is exported without messages.
        """
        return [
            {**row, "messages": self.get_messages(row["id"])}
            for row in self.search_sessions(source, limit=_EXPORT_LIMIT)
        ]

    def delete_session(self, session_id: str, sessions_dir: Path | None = None) -> bool:
        """Remove a session, its messages and its transcript files; ``False`` if unknown."""
        if not self._submit(ops.SessionDelete(id=session_id)):
            return False
        self._remove_session_files(sessions_dir, session_id)
        return True

    def prune_sessions(
        self,
        older_than_days: float = 90,
        source: str | None = None,
        sessions_dir: Path | None = None,
    ) -> int:
        """Remove ended sessions that started longer ago; returns how many."""
        operation = ops.SessionsPrune(
            started_before=time.time() - older_than_days * _DAY_SECONDS, source=source
        )
        total, more = 0, True
        while more:
            pruned = self._submit(operation)
            for session_id in pruned.ids:
                self._remove_session_files(sessions_dir, session_id)
            total, more = total + len(pruned.ids), pruned.more
        return total

    @staticmethod
    def _remove_session_files(sessions_dir: Path | None, session_id: str) -> None:
        if sessions_dir is None:
            return
        found = [sessions_dir / f"{session_id}.json", sessions_dir / f"{session_id}.jsonl"]
        with contextlib.suppress(OSError, ValueError):
            found += sessions_dir.glob(f"request_dump_{session_id}_*.json")
        for path in found:
            with contextlib.suppress(OSError):
                path.unlink()

    def prune_empty_ghost_sessions(self, sessions_dir: Path | None = None) -> int:
        """Remove ended, untitled sessions of the terminal UI without messages, a day old."""
        removed = self._submit(
            ops.SessionsPruneGhosts(started_before=time.time() - _GHOST_AGE_SECONDS)
        )
        for session_id in removed:
            self._remove_session_files(sessions_dir, session_id)
        return len(removed)

    def finalize_orphaned_compression_sessions(self) -> int:
        """End continuations that never called a model and are a week old; removes nothing."""
        now = time.time()
        return self._submit(
            ops.SessionsFinalizeOrphans(now=now, started_before=now - _ORPHAN_AGE_SECONDS)
        )

    # --- meta and upkeep -------------------------------------------------------------------

    def get_meta(self, key: str) -> str | None:
        return self._reader.query(meta.get_meta, key)

    def set_meta(self, key: str, value: Any) -> None:
        self._submit(ops.MetaSet(key=key, value=value))

    def vacuum(self) -> None:
        """Rewrite the file without holes. Writers wait meanwhile."""
        self._submit(ops.Vacuum())

    def maybe_auto_prune_and_vacuum(
        self,
        retention_days: float = 90,
        min_interval_hours: float = 24,
        vacuum: bool = True,
        sessions_dir: Path | None = None,
    ) -> dict[str, Any]:
        """Prune, at most once per interval over all processes. Never raises."""
        result: dict[str, Any] = {"skipped": False, "pruned": 0, "vacuumed": False}
        try:
            now = time.time()
            with contextlib.suppress(TypeError, ValueError):
                if now - float(self.get_meta("last_auto_prune") or "") < min_interval_hours * 3600:
                    result["skipped"] = True
                    return result
            result["pruned"] = self.prune_sessions(retention_days, sessions_dir=sessions_dir)
            if vacuum and result["pruned"]:
                try:
                    self.vacuum()
                    result["vacuumed"] = True
                except (HermesActorError, sqlite3.Error) as error:
                    _log.warning("vacuum after pruning failed: %s", error)
            self.set_meta("last_auto_prune", str(now))
        except Exception as error:
            _log.warning("automatic pruning failed: %s", error)
            result["error"] = str(error)
        return result

    # --- Telegram topics -------------------------------------------------------------------

    def apply_telegram_topic_migration(self) -> None:
        self._submit(ops.TopicsMigrate())

    def enable_telegram_topic_mode(
        self,
        *,
        chat_id: Any,
        user_id: Any,
        has_topics_enabled: bool | None = None,
        allows_users_to_create_topics: bool | None = None,
    ) -> None:
        self._submit(
            ops.TopicsEnable(
                chat_id=str(chat_id),
                user_id=str(user_id),
                now=time.time(),
                has_topics_enabled=_flag(has_topics_enabled),
                allows_users_to_create_topics=_flag(allows_users_to_create_topics),
            )
        )

    def disable_telegram_topic_mode(self, *, chat_id: Any, clear_bindings: bool = True) -> None:
        self._submit(
            ops.TopicsDisable(
                chat_id=str(chat_id), now=time.time(), clear_bindings=bool(clear_bindings)
            )
        )

    def is_telegram_topic_mode_enabled(self, *, chat_id: Any, user_id: Any) -> bool:
        return self._reader.query(topics.mode_enabled, str(chat_id), str(user_id))

    def get_telegram_topic_binding(self, *, chat_id: Any, thread_id: Any) -> Row | None:
        return self._reader.query(topics.binding, str(chat_id), str(thread_id))

    def bind_telegram_topic(
        self,
        *,
        chat_id: Any,
        thread_id: Any,
        user_id: Any,
        session_key: Any,
        session_id: Any,
        managed_mode: str = "auto",
    ) -> None:
        """Bind a topic to a session. Raises :class:`TopicLinked` if another topic holds it."""
        self._submit(
            ops.TopicsBind(
                chat_id=str(chat_id),
                thread_id=str(thread_id),
                user_id=str(user_id),
                session_key=str(session_key),
                session_id=str(session_id),
                managed_mode=str(managed_mode),
                now=time.time(),
            )
        )

    def is_telegram_session_linked_to_topic(self, *, session_id: Any) -> bool:
        return self._reader.query(topics.is_linked, str(session_id))

    def list_unlinked_telegram_sessions_for_user(
        self, *, chat_id: Any, user_id: Any, limit: int = 10
    ) -> list[Row]:
        """Telegram sessions of a user that no topic holds (in any chat), latest active first."""
        return self._reader.snapshot(listing.unlinked_telegram_sessions, str(user_id), int(limit))

    # --- handoff of a conversation to another platform --------------------------------------

    def request_handoff(self, session_id: str, platform: str) -> bool:
        return self._submit(ops.HandoffRequest(id=session_id, platform=platform))

    def get_handoff_state(self, session_id: str) -> Row | None:
        try:
            return self._reader.query(meta.handoff_state, session_id)
        except (Closed, RequestError):
            return None

    def list_pending_handoffs(self) -> list[Row]:
        try:
            return self._reader.query(meta.pending_handoffs)
        except (Closed, RequestError):
            return []

    def claim_handoff(self, session_id: str) -> bool:
        """Take a pending hand-off; true for exactly one caller."""
        return self._submit(ops.HandoffClaim(id=session_id))

    def complete_handoff(self, session_id: str) -> None:
        self._submit(ops.HandoffFinish(id=session_id, state="completed"))

    def fail_handoff(self, session_id: str, error: str) -> None:
        self._submit(
            ops.HandoffFinish(id=session_id, state="failed", error=error[:_HANDOFF_ERROR_LENGTH])
        )

    # --- internals that other programs use ---------------------------------------------------

    def _execute_write(self, fn: Callable[[Any], R]) -> R:
        """Run ``fn(conn)`` inside one transaction of the writer; what it raises undoes it."""
        if self._port is None:
            raise Closed("this SessionDB is closed")
        lease = self._port.lease(self._patience)
        try:
            result = fn(Facade(None, lease.execute, None))
        except BaseException:
            with contextlib.suppress(HermesActorError):
                lease.rollback()
            raise
        lease.commit()
        return result

    def _read_sql(self, sql: str, parameters: Parameters) -> tuple[Any, list[Any]]:
        def run(conn: Connection) -> tuple[Any, list[Any]]:
            cursor = conn.cursor()
            cursor.row_factory = sqlite3.Row
            cursor.execute(sql, parameters)
            return cursor.description, cursor.fetchall()

        if names_index(sql):
            return self._with_complete_index(run)
        return self._reader.query(run)

    @staticmethod
    def _parse_schema_columns(schema_sql: str) -> dict[str, dict[str, str]]:
        from hermes_actor.engine.columns import parse_schema_columns

        return parse_schema_columns(schema_sql)


_content = content
"""The module, under a name that the parameter of ``append_message`` does not hide."""


def _default_path() -> Path:
    """The default of the drop-in module if that is loaded: its users move the store there."""
    drop_in = sys.modules.get("hermes_actor.hermes_state")
    return getattr(drop_in, "DEFAULT_DB_PATH", DEFAULT_DB_PATH)


def _open_port(mode: str, place: Place, patience: float) -> WriterPort:
    if mode == "actor":
        from hermes_actor.client.blocking import share as share_actor

        return share_actor(place, patience)
    if mode == "embedded":
        from hermes_actor.embedded import share as share_writer

        return share_writer(place)
    raise ValueError(f"unknown mode {mode!r}; use 'actor' or 'embedded'")


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)
