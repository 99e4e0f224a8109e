"""Session rows, their titles, their ids and their lineage."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import hermes_protocol.operations as ops
from hermes_actor.api.base import Methods
from hermes_actor.errors import Closed, RequestError
from hermes_actor.ids import new_session_id
from hermes_actor.store import message_codec, queries, titles

if TYPE_CHECKING:
    from hermes_actor.store.rows import Row

__all__ = ["SessionMethods"]


class SessionMethods(Methods):
    """Making, ending, naming and finding sessions."""

    MAX_TITLE_LENGTH = titles.MAX_TITLE_LENGTH

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
                model_config=message_codec.encode_json(model_config),
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
            new = new_session_id(hex_len=6)
        return self._submit(ops.SessionContinue(old=old, new=new, now=time.time())).id

    def get_session(self, session_id: str) -> Row | None:
        return self._query(queries.get_session, session_id)

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
        return self._query(queries.session_title, session_id)

    def get_session_by_title(self, title: str) -> Row | None:
        return self._query(queries.session_by_title, title)

    def resolve_session_by_title(self, title: str) -> str | None:
        """The latest numbered continuation of *title*, else the session that has exactly it."""
        return self._query(queries.resolve_title, title)

    def get_next_title_in_lineage(self, base_title: str) -> str:
        return self._query(queries.next_title_in_lineage, base_title)

    # --- ids and lineage -------------------------------------------------------------------

    def resolve_session_id(self, session_id_or_prefix: str) -> str | None:
        """The exact id, else the only id that begins so."""
        return self._query(queries.resolve_session_id, session_id_or_prefix)

    def get_compression_tip(self, session_id: str | None) -> str | None:
        """The last session of the compression chain that begins at *session_id*."""
        return self._query(queries.compression_tip, session_id)

    def resolve_resume_session_id(self, session_id: str) -> str:
        """Where a resume of *session_id* should go: the first session below it with messages."""
        if not session_id:
            return session_id
        try:
            return self._query(queries.resume_target, session_id)
        except (Closed, RequestError):
            return session_id

    def _session_lineage_root_to_tip(self, session_id: str) -> list[str]:
        return self._query(queries.lineage_root_to_tip, session_id)
