"""Telegram topics, and the hand-off of a conversation to another platform."""

from __future__ import annotations

import time
from typing import Any

import hermes_protocol.operations as ops
from hermes_actor.api.base import Methods
from hermes_actor.api.change import Change, change
from hermes_actor.errors import Closed, RequestError
from hermes_actor.store import queries
from hermes_actor.store.rows import Row

__all__ = ["GatewayMethods"]

_HANDOFF_ERROR_LENGTH = 500


class GatewayMethods(Methods):
    """The part of a store that gateways to chat platforms use."""

    # --- Telegram topics -------------------------------------------------------------------
    # Ids of Telegram arrive as numbers or as text and are stored as text. The tables are created
    # by the first change; a read never creates them.

    @change
    def apply_telegram_topic_migration(self) -> Change[None]:
        """Create the tables of topic mode, or bring them up to date. Repeating it is harmless."""
        return Change(ops.TopicsMigrate())

    @change
    def enable_telegram_topic_mode(
        self,
        *,
        chat_id: Any,
        user_id: Any,
        has_topics_enabled: bool | None = None,
        allows_users_to_create_topics: bool | None = None,
    ) -> Change[None]:
        """Switch topic mode on for a chat.

        Args:
            has_topics_enabled: What Telegram reported about the bot; ``None`` is not known.
            allows_users_to_create_topics: Likewise.
        """
        return Change(
            ops.TopicsEnable(
                chat_id=str(chat_id),
                user_id=str(user_id),
                now=time.time(),
                has_topics_enabled=_flag(has_topics_enabled),
                allows_users_to_create_topics=_flag(allows_users_to_create_topics),
            )
        )

    @change
    def disable_telegram_topic_mode(
        self, *, chat_id: Any, clear_bindings: bool = True
    ) -> Change[None]:
        """Switch topic mode off for a chat, and by default forget the bindings of its topics.

        An unknown chat changes nothing.
        """
        return Change(
            ops.TopicsDisable(
                chat_id=str(chat_id), now=time.time(), clear_bindings=bool(clear_bindings)
            )
        )

    def is_telegram_topic_mode_enabled(self, *, chat_id: Any, user_id: Any) -> bool:
        """Return True if topic mode is on for this chat and user."""
        return self._query(queries.topic_mode_enabled, str(chat_id), str(user_id))

    def get_telegram_topic_binding(self, *, chat_id: Any, thread_id: Any) -> Row | None:
        """Return the row that binds a topic to a session; ``None`` if it is not bound."""
        return self._query(queries.topic_binding, str(chat_id), str(thread_id))

    @change
    def bind_telegram_topic(
        self,
        *,
        chat_id: Any,
        thread_id: Any,
        user_id: Any,
        session_key: Any,
        session_id: Any,
        managed_mode: str = "auto",
    ) -> Change[None]:
        """Bind a topic to a session; an earlier binding of the topic is replaced.

        Raises:
            TopicLinked: another topic holds the session (a ``ValueError``).
            ConstraintFailed: there is no such session.
        """
        return Change(
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
        """Return True if a topic of any chat holds the session."""
        return self._query(queries.is_linked_to_topic, str(session_id))

    def list_unlinked_telegram_sessions_for_user(
        self, *, chat_id: Any, user_id: Any, limit: int = 10
    ) -> list[Row]:
        """Return Telegram sessions of a user that no topic of any chat holds, latest active first.

        Args:
            chat_id: Accepted for symmetry; sessions of all chats are listed.
        """
        return self._query(queries.unlinked_telegram_sessions, str(user_id), int(limit))

    # --- hand-off of a conversation to another platform --------------------------------------

    @change
    def request_handoff(self, session_id: str, platform: str) -> Change[bool]:
        """Ask that a conversation goes on at *platform*: its state becomes ``pending``.

        Returns:
            ``False``, and nothing has changed, while a hand-off of it is pending or running, or if
            there is no such session.
        """
        return Change(ops.HandoffRequest(id=session_id, platform=platform))

    def get_handoff_state(self, session_id: str) -> Row | None:
        """Return ``state``, ``platform`` and ``error`` of the latest hand-off of a session.

        The state is ``None``, ``pending``, ``running``, ``completed`` or ``failed``. Returns
        ``None`` if there is no such session, if it cannot be read, or after :meth:`close`.
        """
        try:
            return self._query(queries.handoff_state, session_id)
        except (Closed, RequestError):
            return None

    def list_pending_handoffs(self) -> list[Row]:
        """Return the rows of sessions whose hand-off is pending, oldest session first.

        The list is empty if they cannot be read, and after :meth:`close`.
        """
        try:
            return self._query(queries.pending_handoffs)
        except (Closed, RequestError):
            return []

    @change
    def claim_handoff(self, session_id: str) -> Change[bool]:
        """Take a pending hand-off: its state becomes ``running``.

        Returns:
            ``True`` for exactly one caller of all processes, ``False`` for every other.
        """
        return Change(ops.HandoffClaim(id=session_id))

    @change
    def complete_handoff(self, session_id: str) -> Change[None]:
        """Record that the hand-off of a session has succeeded. An unknown id changes nothing."""
        return Change(ops.HandoffFinish(id=session_id, state="completed"))

    @change
    def fail_handoff(self, session_id: str, error: str) -> Change[None]:
        """Record that the hand-off of a session has failed, and why.

        The error is cut to 500 characters. An unknown id changes nothing.
        """
        return Change(
            ops.HandoffFinish(id=session_id, state="failed", error=error[:_HANDOFF_ERROR_LENGTH])
        )


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)
