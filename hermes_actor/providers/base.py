"""What every store of sessions can do: the contract that all providers share.

A provider keeps the sessions of an agent somewhere: in an SQLite file behind the actor, on a
PostgreSQL or MySQL server, or where a third party puts them. Callers see the same methods with
the same signatures and the same results; what may differ is declared in :class:`Capabilities`,
and listed with its reason in ``docs/reference/providers.md``.

A third party implements :class:`SessionDBProvider` and names its class in the entry point group
``hermes_actor.sessiondb_providers``; the name of the entry point is the value of
``sessiondb.provider`` and the scheme of its URLs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

if TYPE_CHECKING:
    from typing import Self

    from hermes_actor.client.subscription import Subscription
    from hermes_actor.pipeline import Pipeline
    from hermes_actor.store.rows import Row
    from hermes_protocol.operations import Imported, MessageRow, SessionRow

__all__ = ["Capabilities", "SessionDBProvider"]


class Capabilities(NamedTuple):
    """What a provider promises beyond the methods themselves."""

    durability: Literal["synced", "relaxed"]
    """``synced``: acknowledged means on disk. ``relaxed``: a crash of the server may take back the
    last acknowledged changes, though never a part of one."""
    changes: Literal["pushed", "polled", "none"]
    """How followers of :meth:`SessionDBProvider.subscribe` hear of a change."""
    search: frozenset[str]
    """Kinds of search: ``words``, ``phrases``, ``prefixes``, ``stems``, ``cjk``, ``substrings``,
    ``similarity``."""
    many_hosts: bool
    """Whether processes on several hosts may use one store."""
    private_sql: bool
    """Whether ``_conn`` and ``_execute_write`` take SQL of the caller."""


class SessionDBProvider(ABC):
    """A store of sessions. Every method is safe to call from any thread.

    The contract of each method is that of :class:`hermes_actor.SessionDB`; see
    ``docs/reference/session-db.md``.
    """

    provider: ClassVar[str]
    """The name under which it is chosen."""

    @classmethod
    @abstractmethod
    def from_url(
        cls, url: str, *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> Self:
        """Open the store that *url* names.

        *settings* holds the other keys of ``sessiondb`` in ``config.yaml``. What goes wrong is
        raised as :class:`hermes_actor.errors.OpenError`; no message repeats a password.
        """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this store, as it was opened, promises."""

    @abstractmethod
    def close(self) -> None:
        """Stop using the store. Calling it again is harmless."""

    @abstractmethod
    def pipeline(self) -> Pipeline:
        """Several changes in one round trip; see :mod:`hermes_actor.pipeline`."""

    @abstractmethod
    def subscribe(self, after: int | None = None) -> Subscription:
        """Follow the changes of the store, whoever makes them."""

    # --- sessions, titles, lineage ---------------------------------------------------------------

    @abstractmethod
    def create_session(self, session_id: str, source: str, **kwargs: Any) -> str: ...

    @abstractmethod
    def ensure_session(
        self, session_id: str, source: str = "unknown", model: str | None = None, **kwargs: Any
    ) -> str: ...

    @abstractmethod
    def continue_session(self, old: str, new: str | None = None) -> str: ...

    @abstractmethod
    def get_session(self, session_id: str) -> Row | None: ...

    @abstractmethod
    def end_session(self, session_id: str, end_reason: str) -> None: ...

    @abstractmethod
    def reopen_session(self, session_id: str) -> None: ...

    @abstractmethod
    def update_system_prompt(self, session_id: str, system_prompt: str) -> None: ...

    @abstractmethod
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
    ) -> None: ...

    @staticmethod
    @abstractmethod
    def sanitize_title(title: str | None) -> str | None: ...

    @abstractmethod
    def set_session_title(self, session_id: str, title: str | None) -> bool: ...

    @abstractmethod
    def get_session_title(self, session_id: str) -> str | None: ...

    @abstractmethod
    def get_session_by_title(self, title: str) -> Row | None: ...

    @abstractmethod
    def resolve_session_by_title(self, title: str) -> str | None: ...

    @abstractmethod
    def get_next_title_in_lineage(self, base_title: str) -> str: ...

    @abstractmethod
    def resolve_session_id(self, session_id_or_prefix: str) -> str | None: ...

    @abstractmethod
    def get_compression_tip(self, session_id: str | None) -> str | None: ...

    @abstractmethod
    def resolve_resume_session_id(self, session_id: str) -> str: ...

    # --- messages --------------------------------------------------------------------------------

    @abstractmethod
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
    ) -> int: ...

    @abstractmethod
    def replace_messages(self, session_id: str, messages: list[dict[str, Any]]) -> None: ...

    @abstractmethod
    def clear_messages(self, session_id: str) -> None: ...

    @abstractmethod
    def get_messages(self, session_id: str) -> list[Row]: ...

    @abstractmethod
    def get_messages_as_conversation(
        self, session_id: str, include_ancestors: bool = False
    ) -> list[Row]: ...

    # --- lists, search, export -------------------------------------------------------------------

    @abstractmethod
    def list_sessions_rich(
        self,
        source: str | None = None,
        exclude_sources: Sequence[str] | None = None,
        limit: int = 20,
        offset: int = 0,
        include_children: bool = False,
        project_compression_tips: bool = True,
        order_by_last_active: bool = False,
    ) -> list[Row]: ...

    @abstractmethod
    def search_sessions(
        self, source: str | None = None, limit: int = 20, offset: int = 0
    ) -> list[Row]: ...

    @abstractmethod
    def session_count(self, source: str | None = None) -> int: ...

    @abstractmethod
    def message_count(self, session_id: str | None = None) -> int: ...

    @abstractmethod
    def search_messages(
        self,
        query: str | None,
        source_filter: Sequence[str] | None = None,
        exclude_sources: Sequence[str] | None = None,
        role_filter: Sequence[str] | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> list[Row]: ...

    @abstractmethod
    def export_session(self, session_id: str) -> Row | None: ...

    @abstractmethod
    def export_all(self, source: str | None = None) -> list[Row]: ...

    # --- removal and upkeep ----------------------------------------------------------------------

    @abstractmethod
    def delete_session(self, session_id: str, sessions_dir: Path | None = None) -> bool: ...

    @abstractmethod
    def prune_sessions(
        self,
        older_than_days: float = 90,
        source: str | None = None,
        sessions_dir: Path | None = None,
    ) -> int: ...

    @abstractmethod
    def prune_empty_ghost_sessions(self, sessions_dir: Path | None = None) -> int: ...

    @abstractmethod
    def finalize_orphaned_compression_sessions(self) -> int: ...

    @abstractmethod
    def get_meta(self, key: str) -> str | None: ...

    @abstractmethod
    def set_meta(self, key: str, value: Any) -> None: ...

    @abstractmethod
    def vacuum(self) -> None: ...

    @abstractmethod
    def maybe_auto_prune_and_vacuum(
        self,
        retention_days: float = 90,
        min_interval_hours: float = 24,
        vacuum: bool = True,
        sessions_dir: Path | None = None,
    ) -> dict[str, Any]: ...

    # --- platforms -------------------------------------------------------------------------------

    @abstractmethod
    def apply_telegram_topic_migration(self) -> None: ...

    @abstractmethod
    def enable_telegram_topic_mode(
        self,
        *,
        chat_id: Any,
        user_id: Any,
        has_topics_enabled: bool | None = None,
        allows_users_to_create_topics: bool | None = None,
    ) -> None: ...

    @abstractmethod
    def disable_telegram_topic_mode(self, *, chat_id: Any, clear_bindings: bool = True) -> None: ...

    @abstractmethod
    def is_telegram_topic_mode_enabled(self, *, chat_id: Any, user_id: Any) -> bool: ...

    @abstractmethod
    def get_telegram_topic_binding(self, *, chat_id: Any, thread_id: Any) -> Row | None: ...

    @abstractmethod
    def bind_telegram_topic(
        self,
        *,
        chat_id: Any,
        thread_id: Any,
        user_id: Any,
        session_key: Any,
        session_id: Any,
        managed_mode: str = "auto",
    ) -> None: ...

    @abstractmethod
    def is_telegram_session_linked_to_topic(self, *, session_id: Any) -> bool: ...

    @abstractmethod
    def list_unlinked_telegram_sessions_for_user(
        self, *, chat_id: Any, user_id: Any, limit: int = 10
    ) -> list[Row]: ...

    @abstractmethod
    def request_handoff(self, session_id: str, platform: str) -> bool: ...

    @abstractmethod
    def get_handoff_state(self, session_id: str) -> Row | None: ...

    @abstractmethod
    def list_pending_handoffs(self) -> list[Row]: ...

    @abstractmethod
    def claim_handoff(self, session_id: str) -> bool: ...

    @abstractmethod
    def complete_handoff(self, session_id: str) -> None: ...

    @abstractmethod
    def fail_handoff(self, session_id: str, error: str) -> None: ...

    # --- putting away, bringing in, naming -------------------------------------------------------

    @abstractmethod
    def archive_session(self, session_id: str, archived: bool = True) -> list[str]: ...

    @abstractmethod
    def remove_sessions(
        self,
        session_ids: list[str],
        sessions_dir: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]: ...

    @abstractmethod
    def delete_session_if(
        self, session_id: str, messages: int, newest: int, sessions_dir: Path | None = None
    ) -> bool: ...

    @abstractmethod
    def import_session(
        self, session: SessionRow, messages: list[MessageRow], archived: bool = False
    ) -> Imported: ...

    @abstractmethod
    def queue_title(self, session_id: str, title: str | None) -> bool: ...

    @abstractmethod
    def get_queued_title(self, session_id: str) -> str | None: ...

    @abstractmethod
    def move_session_title(self, session_id: str, title: str) -> bool: ...

    @abstractmethod
    def set_default_title(self, session_id: str, title: str) -> str | None: ...

    @abstractmethod
    def merge_indexes(self, progress: Callable[[str], None] | None = None) -> int: ...
