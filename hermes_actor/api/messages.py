"""Messages: writing them, reading them back, replaying them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import hermes_protocol.operations as ops
from hermes_actor.api.base import Methods
from hermes_actor.store import message_codec as _content
from hermes_actor.store import queries, replay

if TYPE_CHECKING:
    from hermes_actor.store.rows import Row

__all__ = ["MessageMethods"]


class MessageMethods(Methods):
    """The transcript of a session."""

    _CONTENT_JSON_PREFIX = _content.JSON_PREFIX

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
        return self._query(queries.get_messages, session_id)

    def get_messages_as_conversation(
        self, session_id: str, include_ancestors: bool = False
    ) -> list[Row]:
        """The transcript in the form that is sent to a model again."""
        return self._query(queries.conversation, session_id, include_ancestors)

    _is_duplicate_replayed_user_message = staticmethod(replay.is_replayed_prompt)
    _encode_content = staticmethod(_content.encode_content)
    _decode_content = staticmethod(_content.decode_content)
