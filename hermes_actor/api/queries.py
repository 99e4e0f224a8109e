"""Lists, counts, search and export."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_actor.api.base import Methods
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.search import query as _query_text
from hermes_actor.store.search.query import Filters
from hermes_actor.store.sessions.page import Page

__all__ = ["QueryMethods"]

_EXPORT_LIMIT = 100_000


class QueryMethods(Methods):
    """Reads over many sessions or messages."""

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
        """Return one page of sessions with ``preview`` and ``last_active``, newest first.

        Archived sessions are left out. A continued conversation is listed once, in the place of
        its first session with the facts of its last; ``_lineage_root_id`` names the first.

        Args:
            limit: Rows of the page; a negative number means no limit.
            include_children: List children too; else only those that are branches.
            project_compression_tips: ``False`` lists the first session of a conversation as it is.
            order_by_last_active: Latest active first; activity in any continuation counts.
        """
        return self._query(
            queries.list_sessions,
            Page(source, exclude_sources, limit, offset, include_children),
            project_compression_tips,
            "active" if order_by_last_active else "started",
        )

    def _get_session_rich_row(self, session_id: str) -> Row | None:
        return self._query(queries.listed_session, session_id)

    def search_sessions(
        self, source: str | None = None, limit: int = 20, offset: int = 0
    ) -> list[Row]:
        """Return sessions with ``last_active``, children included, latest active first."""
        return self._query(queries.search_sessions, source, limit, offset)

    def session_count(self, source: str | None = None) -> int:
        """Return the number of sessions, of one source or of all."""
        return self._query(queries.session_count, source)

    def message_count(self, session_id: str | None = None) -> int:
        """Return the number of messages, of one session or of all."""
        return self._query(queries.message_count, session_id)

    def search_messages(
        self,
        query: str | None,
        source_filter: Sequence[str] | None = None,
        exclude_sources: Sequence[str] | None = None,
        role_filter: Sequence[str] | None = None,
        limit: int = 20,
        offset: int = 0,
    ) -> list[Row]:
        """Return messages that match *query*, best first, each with its neighbours.

        Complete: every message acknowledged before the call is searched. A malformed query
        matches nothing.

        Args:
            query: Words, ``"phrases"``, prefixes (``pre*``), ``AND``, ``OR``, ``NOT``. A query with
                CJK characters matches substrings.

        Returns:
            Rows with ``id``, ``session_id``, ``role``, ``snippet``, ``timestamp``, ``tool_name``,
            ``source``, ``model``, ``session_started``, and ``context``: the messages before and
            after the hit.

        Raises:
            IndexBehind: the full-text indexes cannot be brought up to date in time.
        """
        filters = Filters(source_filter, exclude_sources, role_filter)
        return self._query(queries.search_messages, query, filters, limit, offset)

    _sanitize_fts5_query = staticmethod(_query_text.sanitize)
    _contains_cjk = staticmethod(_query_text.contains_cjk)
    _count_cjk = staticmethod(_query_text.count_cjk)
    _is_cjk_codepoint = staticmethod(_query_text.is_cjk)

    def export_session(self, session_id: str) -> Row | None:
        """Return the row of a session with ``messages``, in one consistent state.

        Returns ``None`` if there is no such session.
        """
        return self._query(queries.export_session, session_id)

    def export_all(self, source: str | None = None) -> list[Row]:
        """Return every session with ``last_active`` and ``messages``, latest active first.

        Read session by session, so that no snapshot is held for long; a session that is removed
        meanwhile is exported without messages.
        """
        return [
            {**row, "messages": self._query(queries.get_messages, row["id"])}
            for row in self.search_sessions(source, limit=_EXPORT_LIMIT)
        ]
