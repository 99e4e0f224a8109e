"""Telegram topics, and the hand-off of a conversation to another platform."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import hermes_protocol.operations as ops
from hermes_actor.api.base import Methods
from hermes_actor.errors import Closed, RequestError
from hermes_actor.store import queries

if TYPE_CHECKING:
    from hermes_actor.store.rows import Row

__all__ = ["GatewayMethods"]

_HANDOFF_ERROR_LENGTH = 500


class GatewayMethods(Methods):
    """What gateways need of a store."""

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
        return self._query(queries.topic_mode_enabled, str(chat_id), str(user_id))

    def get_telegram_topic_binding(self, *, chat_id: Any, thread_id: Any) -> Row | None:
        return self._query(queries.topic_binding, str(chat_id), str(thread_id))

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
        return self._query(queries.is_linked_to_topic, str(session_id))

    def list_unlinked_telegram_sessions_for_user(
        self, *, chat_id: Any, user_id: Any, limit: int = 10
    ) -> list[Row]:
        """Telegram sessions of a user that no topic holds (in any chat), latest active first."""
        return self._query(queries.unlinked_telegram_sessions, str(user_id), int(limit))

    # --- handoff of a conversation to another platform --------------------------------------

    def request_handoff(self, session_id: str, platform: str) -> bool:
        return self._submit(ops.HandoffRequest(id=session_id, platform=platform))

    def get_handoff_state(self, session_id: str) -> Row | None:
        try:
            return self._query(queries.handoff_state, session_id)
        except (Closed, RequestError):
            return None

    def list_pending_handoffs(self) -> list[Row]:
        try:
            return self._query(queries.pending_handoffs)
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


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)
