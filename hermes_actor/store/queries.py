"""The reads that every kind of store answers: counterparts of the operations, which change it.

A :class:`Query` is a name with types. A function marked ``@answers(query)`` answers it from an
SQLite connection (here, in the module of its subject) or from a server (in
``hermes_actor/providers/sql``). The methods of a SessionDB name the query and know neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

from hermes_actor.store.rows import Row

if TYPE_CHECKING:
    from hermes_actor.store.gateway.tables import (
        Held,
        RouteState,
        StoredRoute,
        TranscriptState,
        TurnLine,
        Waiter,
    )
    from hermes_actor.store.raw_rows import StoredRow, StoreSummary
    from hermes_actor.store.search.query import Filters
    from hermes_actor.store.sessions.counts import ConversationCounts
    from hermes_actor.store.sessions.insights import Usage, Window
    from hermes_actor.store.sessions.page import Order, Page, Position
    from hermes_actor.store.sessions.session_tree import TreeNode

__all__ = ["Query"]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Query(Generic[P, R]):
    """A read with arguments *P* and a result *R*.

    Args:
        view: The state that the answer is read from. ``"statement"``: the answer is a single
            statement, or several that need not agree. ``"snapshot"``: all statements see one
            state. ``"index"``: a snapshot in which the full-text indexes cover every message that
            was acknowledged before.
    """

    __slots__ = ("view",)

    def __init__(self, view: Literal["statement", "snapshot", "index"] = "statement") -> None:
        self.view = view


# --- sessions, titles, lineage -----------------------------------------------------------------

get_session: Query[[str], Row | None] = Query()
resolve_session_id: Query[[str], str | None] = Query("snapshot")
session_count: Query[[str | None], int] = Query()
session_title: Query[[str], str | None] = Query()
queued_title: Query[[Any], str | None] = Query()
session_by_title: Query[[str], Row | None] = Query()
resolve_title: Query[[str], str | None] = Query("snapshot")
next_title_in_lineage: Query[[str], str] = Query()
compression_tip: Query[[str | None], str | None] = Query("snapshot")
resume_target: Query[[str], str] = Query()
lineage_root_to_tip: Query[[str], list[str]] = Query("snapshot")
delegates_of: Query[[Any], list[Any]] = Query("snapshot")

# --- messages ----------------------------------------------------------------------------------

get_messages: Query[[str], list[Row]] = Query()
message_slice: Query[[str, int | None, int | None, int], list[Row]] = Query("snapshot")
"""Of a session, the first visible messages after an id, or the last ones before an id."""
message: Query[[str, int], Row | None] = Query()
"""Of a session, one message by its id."""
conversation: Query[[str, bool], list[Row]] = Query("snapshot")
"""Of a session, and with ``True`` of its ancestors before it."""
export_session: Query[[str], Row | None] = Query("snapshot")
message_count: Query[[str | None], int] = Query()

# --- lists and search --------------------------------------------------------------------------

list_sessions: Query[[Page, bool, Order], list[Row]] = Query("snapshot")
"""One page; with compression tips in the place of their roots; in an order."""
position_in_lists: Query[[str], Position | None] = Query("snapshot")
listed_session: Query[[str], Row | None] = Query()
search_sessions: Query[[str | None, int, int], list[Row]] = Query("snapshot")
search_messages: Query[[str | None, Filters, int, int], list[Row]] = Query("index")
count_matches: Query[[str | None, Filters], int] = Query("index")
fulltext_tables: Query[[], list[str]] = Query()

# --- what the command line shows ---------------------------------------------------------------

visible_counts: Query[[], tuple[dict[str, int], int]] = Query("snapshot")
matching_sessions: Query[[Mapping[str, Any], bool | None], list[Row]] = Query("snapshot")
"""Ended sessions that meet every condition; archived ones only, others only, or both."""
with_delegates: Query[[list[Row]], list[Row]] = Query("snapshot")
ids_by_activity: Query[[str | None, int], list[str]] = Query("snapshot")
"""Sessions of a source, children included, latest active first; a negative limit is none."""
ids_with_prefix: Query[[str, int], list[str]] = Query()
session_family: Query[[str], list[TreeNode]] = Query("snapshot")
compression_lineage: Query[[str], list[str]] = Query("snapshot")
session_record: Query[[str], Row | None] = Query("snapshot")
"""A session as an export writes it, with ``archived``, ``last_active`` and ``messages``."""
is_archived: Query[[str], bool] = Query()
conversation_counts: Query[[str], ConversationCounts] = Query()
usage: Query[[Window, Callable[[Usage], Row]], Row] = Query("snapshot")
"""The result of a function of the figures of a window of time."""

# --- key and value pairs, hand-off, Telegram topics --------------------------------------------

get_meta: Query[[str], str | None] = Query()
content_bytes: Query[[], int] = Query("snapshot")
handoff_state: Query[[str], Row | None] = Query()
pending_handoffs: Query[[], list[Row]] = Query()
topic_mode_enabled: Query[[str, str], bool] = Query()
topic_binding: Query[[str, str], Row | None] = Query()
is_linked_to_topic: Query[[str], bool] = Query()
unlinked_telegram_sessions: Query[[str, int], list[Row]] = Query("snapshot")

# --- routes of chats, turns of conversations, transcript files -----------------------------------

route_state: Query[[str, str], RouteState | None] = Query("snapshot")
"""Of a scope and the key of a chat: all that decides about its next message."""
all_routes: Query[[str], list[StoredRoute]] = Query()
route_scopes: Query[[], list[str]] = Query()
routes_of_session: Query[[str], list[tuple[str, StoredRoute]]] = Query()
unused_routes: Query[[str, float], list[StoredRoute]] = Query()
"""Of a scope, those last used before a time."""
all_turns: Query[[], list[Held]] = Query()
all_turn_waiters: Query[[], list[Waiter]] = Query()
turn_line: Query[[str, int, float], TurnLine] = Query("snapshot")
"""Of a session, by a ticket (0: none) and the time: its turn, and who comes next."""
sessions_of_chat: Query[[str, str, str | None, int], list[str]] = Query()
"""Ids by source, key and, unless ``None``, user; latest first, up to a limit."""
transcript_state: Query[[str, str], TranscriptState | None] = Query()
messages_after: Query[[str, int], tuple[int, list[Row]]] = Query("snapshot")
"""Of a session: how many visible messages there are up to an id, and those after it."""
transcripts_behind: Query[[str, str], list[str]] = Query("snapshot")
"""Sessions with routes of a scope, or with files of a folder, that have messages not in a file."""

# --- rows as they are stored, for a migration --------------------------------------------------

store_summary: Query[[], StoreSummary] = Query("snapshot")
session_page: Query[[int], list[StoredRow]] = Query("snapshot")
"""Sessions after a position in the order of their creation."""
message_page: Query[[int, int, str | None], list[StoredRow]] = Query("snapshot")
"""Messages with an id above the first number and up to the second, of one session or of all."""
table_rows: Query[[str], list[StoredRow] | None] = Query("snapshot")
indexed_count: Query[[], int | None] = Query()
