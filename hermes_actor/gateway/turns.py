"""ChatTurn: one message of a chat from its arrival to its answer, under the turn of its session."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import hermes_protocol.operations as ops
from hermes_actor import limits
from hermes_actor.api.base import fenced
from hermes_actor.api.change import Change
from hermes_actor.api.turns import Turn, TurnRequest
from hermes_actor.errors import TurnLost
from hermes_actor.gateway import words
from hermes_actor.gateway.entries import NOT_PENDING, NOT_RESET, SessionEntry, pending_marks
from hermes_actor.gateway.sources import SessionSource
from hermes_actor.gateway.transcripts import message_row

if TYPE_CHECKING:
    from hermes_actor.gateway.store import SessionStore

__all__ = ["ChatRequest", "ChatTurn"]


class ChatTurn:
    """The turn of a chat: ``with store.begin_turn(source, text) as turn``.

    Leaving the block finishes it, unless the block did; an error inside marks the chat as
    interrupted.
    """

    def __init__(self, store: SessionStore, entry: SessionEntry, turn: Turn) -> None:
        self._store = store
        self._turn = turn
        self._ended = False
        self.entry = entry
        self.session_id = turn.session_id
        self.is_repeated = False
        """True if the message was stored before: the platform has delivered it twice."""
        policy = store.config.get_reset_policy(entry.platform, entry.chat_type)
        self.notice = words.reset_notice(entry, policy)
        """A sentence for the user about a reset, or ``None``."""
        self.context_note = words.context_note(entry)
        """A sentence for the model about a reset, or ``None``."""

    def __int__(self) -> int:
        return int(self._turn)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The conversation so far, in the form that is sent to a model."""
        return self._store.db.get_messages_as_conversation(self.session_id)

    def append(self, role: str, content: Any = None, **fields: Any) -> int:
        """Store a message under this turn. Raises :class:`TurnLost`."""
        message = {"role": role, "content": content, **fields}
        made = self._store.append_to_transcript(self.session_id, message, turn=self)
        assert made is not None
        return made

    def compress(self, messages: list[dict[str, Any]] | None = None) -> str:
        """Go on in a continuation of the session, with *messages* in it; return its id.

        The chat leads to it from then on, and this turn covers it.
        """
        db = self._store.db
        self.session_id = db.continue_session(self.session_id, turn=self)
        if messages:
            db.replace_messages(self.session_id, messages, turn=self)
        return self.session_id

    def renew(self) -> None:
        """Say that the answer is still being made."""
        self._turn.renew()

    def finish(self, last_prompt_tokens: int | None = None) -> None:
        """End the turn well: the chat was used now, and waits for nothing.

        Raises:
            TurnLost: the turn had ended before; the chat is left as its next holder has it.
        """
        now = self._store.clock()
        fields = {"updated_at": now.isoformat(), **NOT_RESET, **NOT_PENDING}
        if last_prompt_tokens is not None:
            fields["last_prompt_tokens"] = last_prompt_tokens
        self._end(fields, now=now.timestamp())
        self._store.follow_transcript(self.session_id)

    def fail(self, reason: str = "restart_timeout") -> None:
        """End the turn without an answer: the chat is to go on later, unless the turn was lost."""
        marks = pending_marks(reason, self._store.clock())
        with suppress(TurnLost):
            self._end(marks, unless=["suspended"])

    def _end(self, fields: dict[str, Any], **options: Any) -> None:
        """Note *fields* and give the turn back, together. A chat that was reset is left alone."""
        self._ended = True
        change = self._store.route_change(
            self.entry.session_key, fields, expect=self.session_id, **fenced(self), **options
        )
        with self._store.db.pipeline() as pipeline:
            pipeline._add(Change(change))
            pipeline._add(Change(ops.TurnRelease(token=int(self))))
        self._store.touched()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._ended:
            return
        if kind is None:
            self.finish()
        else:
            self.fail()


class ChatRequest:
    """A message of a chat on its way to its turn; repeated until that is free.

    Opens the route of the chat, takes the turn of its session, and stores the user's message. Each
    step is atomic, and a crash between two of them leaves what the next message completes.
    """

    def __init__(
        self,
        store: SessionStore,
        source: SessionSource,
        content: Any,
        *,
        message_key: str | None = None,
        wait: float = 20.0,
        holder: str | None = None,
    ) -> None:
        self._store = store
        self._source = source
        self._message = (content, message_key)
        self._holder = holder or source.platform
        self._until = time.monotonic() + wait
        self._entry: SessionEntry | None = None
        self._request: TurnRequest | None = None

    def attempt(self) -> ChatTurn | None:
        """Return the turn, or ``None`` if it must be waited for; raises :class:`TurnBusy`."""
        while True:
            entry, request = self._opened()
            turn = request.attempt()
            if turn is None:
                return None
            self._request = None
            try:
                now = self._store.peek_session_id(entry.session_key)
                if now in (None, entry.session_id, turn.session_id):
                    chat = ChatTurn(self._store, entry, turn)
                    return _with_message(chat, self._store, *self._message)
            except BaseException:
                turn.release()
                raise
            # While we waited, the chat was reset or switched: this turn is of another session.
            turn.release()

    def wait(self) -> ChatTurn:
        """Begin the turn, waiting for its holder; raises :class:`TurnBusy` if it takes too long."""
        try:
            while (chat := self.attempt()) is None:
                assert self._request is not None
                self._request.pause()
        finally:
            self.leave()
        return chat

    def leave(self) -> None:
        """Wait no longer; nothing happens if the turn was taken."""
        if self._request is not None:
            self._request.leave()

    def interval(self) -> float:
        """Return the time until the next attempt."""
        return 0.0 if self._request is None else self._request.interval()

    def _opened(self) -> tuple[SessionEntry, TurnRequest]:
        if self._entry is None or self._request is None:
            self._entry = self._store.get_or_create_session(self._source)
            self._request = TurnRequest(
                self._store.db,
                self._entry.session_id,
                self._holder,
                "turn",
                max(0.0, self._until - time.monotonic()),
                limits.TURN_SECONDS,
            )
        return self._entry, self._request


def _with_message(
    chat: ChatTurn, store: SessionStore, content: Any, message_key: str | None
) -> ChatTurn:
    if message_key is None:
        chat.append("user", content)
        return chat
    once = ops.MessageOnce(
        session_id=chat.session_id,
        message_key=message_key,
        message=message_row({"role": "user", "content": content}, store.clock()),
        **fenced(chat),
    )
    chat.is_repeated = not store.db._submit(once).appended
    return chat
