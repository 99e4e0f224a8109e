"""Messages: writing them, reading them back, replaying them."""

from __future__ import annotations

import time
from typing import Any, SupportsInt

import hermes_protocol.operations as ops
from hermes_actor.api.base import Methods, fenced, token_of
from hermes_actor.api.change import Change, change
from hermes_actor.store import message_codec as _codec
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_protocol.values import to_value

__all__ = ["MessageMethods"]


class MessageMethods(Methods):
    """The transcript of a session."""

    _CONTENT_JSON_PREFIX = _codec.JSON_PREFIX

    @change
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
        *,
        turn: SupportsInt | None = None,
    ) -> Change[int]:
        """Add a message and raise the counters of its session.

        Args:
            content: Text, bytes, a number, or a value that JSON can hold.
            turn: The turn under which it is written; see :meth:`SessionDB.turn`.

        Returns:
            The id of the message. Ids grow in the order in which messages were added.

        Raises:
            ConstraintFailed: there is no such session.
            TurnLost: the turn has ended, and nothing was written.
            UnicodeEncodeError: the content holds lone surrogates. In other fields they are
                replaced.
        """
        row = ops.MessageRow(
            role=role,
            timestamp=time.time(),
            content=to_value(_codec.encode_content(content)),
            tool_name=tool_name,
            tool_calls=_codec.encode_json(tool_calls),
            tool_call_id=tool_call_id,
            token_count=token_count,
            finish_reason=finish_reason,
            reasoning=reasoning,
            reasoning_content=reasoning_content,
            reasoning_details=_codec.encode_json(reasoning_details),
            codex_reasoning_items=_codec.encode_json(codex_reasoning_items),
            codex_message_items=_codec.encode_json(codex_message_items),
            calls=_codec.count_calls(tool_calls),
        )
        return Change(ops.MessageAppend(session_id=session_id, message=row, turn=token_of(turn)))

    @change
    def replace_messages(
        self,
        session_id: str,
        messages: list[dict[str, Any]],
        *,
        turn: SupportsInt | None = None,
    ) -> Change[None]:
        """Replace the transcript of a session, as one change; on any error the old one stays.

        Args:
            messages: Dicts with the argument names of :meth:`append_message`. Reasoning is kept
                for role ``assistant`` only. Messages get new ids, and times one microsecond apart.
            turn: As for :meth:`append_message`.

        Raises:
            ConstraintFailed: there is no such session, and *messages* is not empty.
            TurnLost: the turn has ended, and nothing was written.
        """
        rows = _codec.transcript_rows(time.time(), messages)
        return Change(ops.MessagesReplace(session_id=session_id, messages=rows, **fenced(turn)))

    @change
    def clear_messages(self, session_id: str, *, turn: SupportsInt | None = None) -> Change[None]:
        """Remove the transcript of a session and set its counters to zero.

        The session stays. An unknown id changes nothing.

        Raises:
            TurnLost: *turn* was given and has ended.
        """
        return Change(ops.MessagesClear(session_id=session_id, **fenced(turn)))

    def get_messages(self, session_id: str) -> list[Row]:
        """Return every message in the order of insertion, content and tool calls decoded.

        The list is empty if there is no such session.
        """
        return self._query(queries.get_messages, session_id)

    def get_messages_as_conversation(
        self, session_id: str, include_ancestors: bool = False
    ) -> list[Row]:
        """Return the transcript in the form that is sent to a model again.

        Leaked memory context is removed from it. All rows are read from one state.

        Args:
            include_ancestors: Put the transcripts of the sessions that this one continues before
                it, without the prompts that a resume repeated.
        """
        return self._query(queries.conversation, session_id, include_ancestors)

    _encode_content = staticmethod(_codec.encode_content)
    _decode_content = staticmethod(_codec.decode_content)

    @staticmethod
    def _is_duplicate_replayed_user_message(
        kept: list[dict[str, Any]], message: dict[str, Any]
    ) -> bool:
        from hermes_actor.store.replay import is_replayed_prompt

        return is_replayed_prompt(kept, message)
