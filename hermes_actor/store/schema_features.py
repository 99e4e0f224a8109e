"""Features of a file's schema: columns decide, never its version number.

Files of newer versions carry columns that change what a correct query is (messages that were
taken back, sessions that were archived). The features are read once per schema cookie.
"""

from __future__ import annotations

from typing import NamedTuple

from hermes_actor.sqlite import Connection
from hermes_actor.store.schema import (
    FORMER_INDEXES,
    FTS_SHAPE,
    FTS_TRIGGERS,
    LEFTOVER,
    OWN_INDEXES,
    canonical,
)

__all__ = ["SchemaFeatures", "features_of"]


_BELONGS = (
    "user_id", "session_key", "chat_id", "chat_type", "thread_id", "display_name", "origin_json",
    "cwd", "git_branch", "git_repo_root", "profile_name",
)  # fmt: skip


_ROUTES = ("gateway_routing", "hermes_actor_routes")


class SchemaFeatures(NamedTuple):
    """The facts that queries and operations depend on."""

    active: bool
    """``messages.active``: a message may have been taken back."""
    compacted: bool
    """``messages.compacted``: a message may be summarised away but still findable."""
    archived: bool
    """``sessions.archived``: a session may be hidden from lists."""
    words: bool
    """``messages_fts`` exists."""
    trigrams: bool
    """``messages_fts_trigram`` exists."""
    deferrable: bool
    """Both full-text tables and all six triggers have exactly the shape of version 11, and no id of
    a message is given twice."""
    whole: bool
    """Both tables and all six triggers exist, in any shape, so no change is missed."""
    watermark: bool
    """``hermes_actor_meta`` exists, so the watermark can be read."""
    own_marks: bool
    """``hermes_actor_archived`` and ``hermes_actor_titles`` exist."""
    stale: bool
    """``hermes_actor_stale`` exists: it notes the messages whose index entries may be wrong."""
    indexes: frozenset[str]
    """Extra indexes of :data:`OWN_INDEXES` that exist."""
    former_indexes: tuple[str, ...]
    """Extra indexes of earlier builds that are to be dropped."""
    belongs: tuple[str, ...]
    """Columns of ``sessions`` that say whose conversation it is, and where it takes place."""
    leftovers: tuple[str, ...]
    """Tables of replaced full-text indexes that are to be removed."""
    gateway: bool
    """``hermes_actor_turns`` and the other tables of routes and turns exist."""
    waiters: bool
    """``hermes_actor_turn_waiters`` exists: earlier builds knew no order of those who wait."""
    routes: str | None
    """The table of routes: that of a newer agent program, else our own, if it exists."""
    expiry_mark: bool
    """``sessions.expiry_finalized``: an expired session is marked."""
    platform_ids: bool
    """``messages.platform_message_id``: a message may carry the id of its platform."""

    @property
    def visible(self) -> str:
        """SQL condition on ``m`` for rows that replay and previews may show."""
        return "m.active = 1" if self.active else "1"

    @property
    def findable(self) -> str:
        """SQL condition on ``m`` for rows that a search may return."""
        if not self.active:
            return "1"
        return "(m.active = 1 OR m.compacted = 1)" if self.compacted else "m.active = 1"

    @property
    def is_listable(self) -> str:
        """SQL condition on ``s`` for sessions that lists may show."""
        if not self.archived:
            return f"NOT {self.is_archived}" if self.own_marks else "1"
        return f"COALESCE(s.archived, 0) = 0 AND NOT {_marked('s', '_delegate_from')}"

    @property
    def marks_children(self) -> bool:
        """True if branches and delegates are marked in ``model_config``.

        Every other child of a compressed session then continues it, whenever it started.

        ``compacted`` came with the release that reads lineages so; the marks have no column.
        """
        return self.compacted

    @property
    def is_top_level(self) -> str:
        """SQL condition on ``s`` for sessions that are a row of their own: roots and branches."""
        branch = (
            "EXISTS (SELECT 1 FROM sessions p WHERE p.id = s.parent_session_id"
            " AND p.end_reason = 'branched' AND s.started_at >= p.ended_at)"
        )
        if self.archived:
            branch += f" OR {_marked('s', '_branched_from')}"
        return f"(s.parent_session_id IS NULL OR {branch})"

    @property
    def continues(self) -> str:
        """SQL condition: ``c``, a child of ``p``, is its continuation after a compression."""
        if not self.marks_children:
            return "p.end_reason = 'compression' AND c.started_at >= p.ended_at"
        return f"p.end_reason = 'compression' AND {self.same_conversation}"

    @property
    def same_conversation(self) -> str:
        """SQL condition on a child ``c`` where children are marked: no branch, delegate or tool."""
        return (
            f"c.source IS NOT 'tool' AND NOT {_marked('c', '_branched_from')}"
            f" AND NOT {_marked('c', '_delegate_from')}"
        )

    @property
    def unmarked_config(self) -> str:
        """SQL expression: ``model_config`` without the marks of a branch or delegate."""
        if not self.marks_children:
            return "model_config"
        return (
            "CASE WHEN json_valid(model_config) THEN json_remove(model_config,"
            " '$._branched_from', '$._delegate_from') ELSE model_config END"
        )

    @property
    def delegates(self) -> str | None:
        """SQL condition on a child ``s``: it worked for its parent and goes with it.

        ``None`` where files do not mark them.
        """
        return _marked("s", "_delegate_from") if self.archived else None

    @property
    def is_archived(self) -> str:
        """SQL condition on ``s``: the session is archived, by the column or by our own mark."""
        if self.archived:
            return "COALESCE(s.archived, 0) != 0"
        if self.own_marks:
            return "EXISTS (SELECT 1 FROM hermes_actor_archived a WHERE a.session_id = s.id)"
        return "0"


def _marked(alias: str, key: str) -> str:
    """SQL condition: the configuration of a session carries *key*."""
    config = f"{alias}.model_config"
    return f"(json_valid({config}) AND json_extract({config}, '$.{key}') IS NOT NULL)"


def features_of(conn: Connection) -> SchemaFeatures:
    """Return the features of the file as *conn* sees it.

    Code that begins a transaction or a read clears ``layout_checked``; the schema cookie is then
    compared once, on the first call.
    """
    if conn.layout is None or not conn.layout_checked:
        (cookie,) = conn.execute("PRAGMA schema_version").fetchone()
        if conn.layout is None or conn.layout_cookie != cookie:
            conn.layout = _read(conn)
            conn.layout_cookie = cookie
        conn.layout_checked = True
    return conn.layout


def _read(conn: Connection) -> SchemaFeatures:
    messages = {row[1] for row in conn.execute("PRAGMA table_info(messages)")}
    sessions = {row[1] for row in conn.execute("PRAGMA table_info(sessions)")}
    objects = dict(
        conn.execute("SELECT name, sql FROM sqlite_master WHERE name GLOB 'messages_fts*'"
                     " OR name GLOB 'hermes_actor_*' OR name IN ('messages', 'gateway_routing')")
        .fetchall()
    )  # fmt: skip
    return SchemaFeatures(
        active="active" in messages,
        compacted="compacted" in messages,
        archived="archived" in sessions,
        words="messages_fts" in objects,
        trigrams="messages_fts_trigram" in objects,
        deferrable=" autoincrement " in canonical(objects.get("messages", ""))
        and all(
            name in objects and canonical(objects[name]) == shape
            for name, shape in FTS_SHAPE.items()
        ),
        whole=all(
            name in objects for name in ("messages_fts", "messages_fts_trigram", *FTS_TRIGGERS)
        ),
        watermark="hermes_actor_meta" in objects,
        own_marks="hermes_actor_titles" in objects,
        stale="hermes_actor_stale" in objects,
        indexes=frozenset(name for name in OWN_INDEXES if name in objects),
        former_indexes=tuple(name for name in FORMER_INDEXES if name in objects),
        belongs=tuple(name for name in _BELONGS if name in sessions),
        leftovers=tuple(name for name in objects if name.startswith(LEFTOVER)),
        gateway="hermes_actor_turns" in objects,
        waiters="hermes_actor_turn_waiters" in objects,
        routes=next((name for name in _ROUTES if name in objects), None),
        expiry_mark="expiry_finalized" in sessions,
        platform_ids="platform_message_id" in messages,
    )
