"""Session rows, their titles, their ids and their lineage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, SupportsInt, TypedDict, Unpack

import hermes_protocol.operations as ops
from hermes_actor import limits
from hermes_actor.api.base import Methods, fenced, token_of
from hermes_actor.api.change import Change, change, no_result
from hermes_actor.errors import Closed, RequestError
from hermes_actor.ids import new_session_id
from hermes_actor.store import message_codec, queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions import title_text

if TYPE_CHECKING:
    from hermes_actor.api.turns import Turn
    from hermes_actor.store.gateway.tables import Held, Waiter

__all__ = ["SessionMethods"]


class _SessionFieldsButModel(TypedDict, total=False):
    """Optional columns of a new session."""

    model_config: dict[str, Any] | None
    system_prompt: str | None
    user_id: str | None
    parent_session_id: str | None


class _SessionFields(_SessionFieldsButModel, total=False):
    model: str | None


class SessionMethods(Methods):
    """Sessions: creation, end, title, id and lineage."""

    MAX_TITLE_LENGTH = title_text.MAX_TITLE_LENGTH

    # --- session rows ----------------------------------------------------------------------

    @change
    def create_session(
        self, session_id: str, source: str, **kwargs: Unpack[_SessionFields]
    ) -> Change[str]:
        """Insert a session unless its id exists; the first writer of an id wins.

        Args:
            session_id: Any text.
            source: The platform that the conversation takes place on, such as ``cli``.
            kwargs: ``model``, ``model_config`` (a dict), ``system_prompt``, ``user_id``,
                ``parent_session_id``.

        Returns:
            *session_id*, also if the session existed and nothing has changed.

        Raises:
            ConstraintFailed: there is no such parent.
        """
        return Change(_session_create(session_id, source, **kwargs), lambda _inserted: session_id)

    @change
    def ensure_session(
        self,
        session_id: str,
        source: str = "unknown",
        model: str | None = None,
        **kwargs: Unpack[_SessionFieldsButModel],
    ) -> Change[str]:
        """Insert a session unless its id exists, for callers that know no more than the id.

        Arguments, result and errors are those of :meth:`create_session`.
        """
        operation = _session_create(session_id, source, model=model, **kwargs)
        return Change(operation, lambda _inserted: session_id)

    def _insert_session_row(self, session_id: str, source: str, *args: Any, **kwargs: Any) -> None:
        self._submit(_session_create(session_id, source, *args, **kwargs))

    @change
    def continue_session(
        self, old: str, new: str | None = None, *, turn: SupportsInt | None = None
    ) -> Change[str]:
        """End *old* with ``compression`` and start its continuation, as one change.

        The child inherits source, user, model and prompt, and gets the next title of the lineage
        if *old* has one. Chats that had the session *old* have the child from then on.

        Args:
            turn: The turn under which it is done; it covers the child, too.

        Returns:
            The id of the child: *new*, or a generated one.

        Raises:
            UnknownSession: there is no session *old*.
            SessionEnded: *old* has ended for another reason.
            ConstraintFailed: a session *new* exists.
            TurnLost: the turn has ended, and nothing was changed.
        """
        if new is None:
            new = new_session_id(hex_len=6)
        operation = ops.SessionContinue(old=old, new=new, now=time.time(), turn=token_of(turn))
        return Change(operation, lambda continued: continued.id)

    def get_session(self, session_id: str) -> Row | None:
        """Return the row of a session; ``None`` if there is no such session."""
        return self._query(queries.get_session, session_id)

    @change
    def end_session(
        self, session_id: str, end_reason: str, *, turn: SupportsInt | None = None
    ) -> Change[None]:
        """End an open session; the first end wins. An unknown id changes nothing.

        Raises:
            TurnLost: *turn* was given and has ended.
        """
        operation = ops.SessionEnd(
            id=session_id, ended_at=time.time(), end_reason=end_reason, turn=token_of(turn)
        )
        return Change(operation, no_result)

    # --- turns -------------------------------------------------------------------------------

    def turn(
        self,
        session_id: str,
        *,
        holder: str = "",
        kind: str = "turn",
        wait: float = 0.0,
        seconds: float = limits.TURN_SECONDS,
    ) -> Turn:
        """Take the turn of a conversation: ``with db.turn("s1", wait=20) as turn:``.

        One conversation, with all its continuations, has one turn at a time, across threads,
        processes and restarts. It ends with the block, with the process of its holder, or when
        *seconds* have passed since it was taken or renewed.

        Args:
            holder: A name for people, such as the platform.
            kind: What it is for, such as ``compress``.
            wait: Seconds to wait for another holder. Those who wait are served as they came.
            seconds: Longest time without :meth:`Turn.renew`.

        Raises:
            TurnBusy: another one still holds it after *wait* seconds; the message names it.
        """
        from hermes_actor.api.turns import TurnRequest

        return TurnRequest(self, session_id, holder, kind, wait, seconds).wait()

    def list_turns(self) -> list[Held]:
        """Return the turns that are held, oldest first, also those of processes that have ended."""
        from hermes_actor.api import turns as _answers  # noqa: F401 - registers the query

        return self._query(queries.all_turns)

    def list_turn_waiters(self) -> list[Waiter]:
        """Return all who wait for a turn, in the order of their coming.

        Each conversation has a line of its own, named by ``root``.
        """
        from hermes_actor.api import turns as _answers  # noqa: F401 - registers the query

        return self._query(queries.all_turn_waiters)

    def steal_turn(self, session_id: str) -> bool:
        """End the turn of a conversation for an operator; later writes under it are refused.

        Returns:
            Whether there was one.
        """
        return self._submit(ops.TurnSteal(session_id=session_id))

    @change
    def reopen_session(self, session_id: str, *, turn: SupportsInt | None = None) -> Change[None]:
        """Clear time and reason of the end of a session. An unknown id changes nothing.

        Raises:
            TurnLost: *turn* was given and has ended.
        """
        return Change(ops.SessionReopen(id=session_id, **fenced(turn)), no_result)

    @change
    def update_system_prompt(
        self, session_id: str, system_prompt: str, *, turn: SupportsInt | None = None
    ) -> Change[None]:
        """Overwrite the system prompt of a session. An unknown id changes nothing.

        Raises:
            TurnLost: *turn* was given and has ended.
        """
        operation = ops.SessionPrompt(id=session_id, system_prompt=system_prompt, **fenced(turn))
        return Change(operation, no_result)

    @change
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
        *,
        turn: SupportsInt | None = None,
    ) -> Change[None]:
        """Add token counts and cost to a session. A missing session is created as ``unknown``.

        Of *cost_status*, *cost_source* and *pricing_version* the latest value counts, of the
        billing route and the model the first.

        Args:
            absolute: Set the counters and the cost in place of adding to them.
            turn: The turn under which they are booked; see :meth:`turn`.

        Raises:
            TurnLost: the turn has ended, and nothing was booked.
        """
        return Change(
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
                turn=token_of(turn),
            )
        )

    # --- titles ----------------------------------------------------------------------------

    @staticmethod
    def sanitize_title(title: str | None) -> str | None:
        """Return *title* without control and invisible characters and with single spaces.

        Returns:
            The clean title; ``None`` if nothing is left of it.

        Raises:
            ValueError: it is longer than ``MAX_TITLE_LENGTH`` characters.
        """
        return title_text.sanitize_title(title)

    @change
    def set_session_title(
        self, session_id: str, title: str | None, *, turn: SupportsInt | None = None
    ) -> Change[bool]:
        """Clean a title by :meth:`sanitize_title` and set it; ``None`` clears it.

        A title is unique among all sessions that have one.

        Returns:
            ``False`` if there is no such session.

        Raises:
            TitleInUse: another session has it (a ``ValueError``).
            TurnLost: *turn* was given and has ended.
            ValueError: it is too long.
        """
        clean = self.sanitize_title(title)
        return Change(ops.SessionTitle(id=session_id, title=clean, **fenced(turn)))

    def get_session_title(self, session_id: str) -> str | None:
        """Return the title of a session; ``None`` if it has none, or there is no such session."""
        return self._query(queries.session_title, session_id)

    def get_session_by_title(self, title: str) -> Row | None:
        """Return the row of the session with exactly this title, or ``None``."""
        return self._query(queries.session_by_title, title)

    def resolve_session_by_title(self, title: str) -> str | None:
        """Return the id of the latest ``title #N``, else of the session with exactly *title*.

        Returns ``None`` if there is neither.
        """
        return self._query(queries.resolve_title, title)

    def get_next_title_in_lineage(self, base_title: str) -> str:
        """Return the title itself if it is free, else ``title #N`` with the next number.

        Nothing is reserved: another session may take the title before it is set.
        """
        return self._query(queries.next_title_in_lineage, base_title)

    # --- ids and lineage -------------------------------------------------------------------

    def resolve_session_id(self, session_id_or_prefix: str) -> str | None:
        """Return the exact id, else the only id that begins so, else ``None``."""
        return self._query(queries.resolve_session_id, session_id_or_prefix)

    def get_compression_tip(self, session_id: str | None) -> str | None:
        """Return the last session of the chain of continuations that begins at *session_id*.

        That is *session_id* itself if it was not continued.
        """
        return self._query(queries.compression_tip, session_id)

    def resolve_resume_session_id(self, session_id: str) -> str:
        """Return the session at which a resume of *session_id* should go on.

        That is the session itself if it has messages, else the first one below it that has; and
        the session itself if it cannot be read, and after :meth:`close`.
        """
        if not session_id:
            return session_id
        try:
            return self._query(queries.resume_target, session_id)
        except (Closed, RequestError):
            return session_id

    def _session_lineage_root_to_tip(self, session_id: str) -> list[str]:
        return self._query(queries.lineage_root_to_tip, session_id)


def _session_create(
    session_id: str,
    source: str,
    model: str | None = None,
    model_config: dict[str, Any] | None = None,
    system_prompt: str | None = None,
    user_id: str | None = None,
    parent_session_id: str | None = None,
) -> ops.SessionCreate:
    return ops.SessionCreate(
        id=session_id,
        source=source,
        started_at=time.time(),
        user_id=user_id,
        model=model,
        model_config=message_codec.encode_json(model_config),
        system_prompt=system_prompt,
        parent_session_id=parent_session_id,
    )
