"""Telegram topic mode on a server. Its tables always exist; its version shows if it is used."""

from __future__ import annotations

from sqlalchemy import and_, bindparam, delete, not_, select, update

import hermes_protocol.operations as ops
from hermes_actor.errors import missing_session
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.meta import get_meta, set_meta
from hermes_actor.providers.sql.registry import answers, applies
from hermes_actor.providers.sql.sessions.session_row import is_there
from hermes_actor.providers.sql.tables import bindings, mode
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.schema import TOPICS_VERSION
from hermes_actor.store.sessions.telegram_topics import (
    KEPT,
    VERSION_KEY,
    binding_row,
    linked,
    mode_row,
)

__all__: list[str] = []

_BY_CHAT = mode.c.chat_id == bindparam("chat")
_THIS_TOPIC = and_(
    bindings.c.chat_id == bindparam("chat"), bindings.c.thread_id == bindparam("thread")
)


@applies(ops.TopicsMigrate)
def migrate(conn: ServerConnection, _op: ops.TopicsMigrate) -> None:
    """Record the version of topic mode; its tables are part of the schema."""
    if get_meta(conn, VERSION_KEY) != TOPICS_VERSION:
        set_meta(conn, ops.MetaSet(key=VERSION_KEY, value=TOPICS_VERSION))


@applies(ops.TopicsEnable)
def enable(conn: ServerConnection, op: ops.TopicsEnable) -> None:
    """Switch topic mode on for a chat. The first activation time is kept."""
    migrate(conn, ops.TopicsMigrate())
    conn.dialect.upsert(conn, mode, mode_row(op), KEPT)


@applies(ops.TopicsDisable)
def disable(conn: ServerConnection, op: ops.TopicsDisable) -> None:
    """Switch topic mode off for a chat; ``clear_bindings`` also removes its bindings."""
    statement = update(mode).where(_BY_CHAT).values(enabled=0, updated_at=bindparam("now"))
    conn.execute(statement, {"chat": op.chat_id, "now": op.now})
    if op.clear_bindings:
        here = bindings.c.chat_id == bindparam("chat")
        conn.execute(delete(bindings).where(here), {"chat": op.chat_id})


@applies(ops.TopicsBind)
def bind(conn: ServerConnection, op: ops.TopicsBind) -> None:
    """Bind a topic to a session, in place of the topic's earlier one.

    Raises :class:`TopicLinked` if another topic holds the session, :class:`ConstraintFailed` if the
    session does not exist.
    """
    migrate(conn, ops.TopicsMigrate())
    # Locked, so that two topics cannot take one session at the same time.
    if not is_there(conn, op.session_id, lock=True):
        raise missing_session(op.session_id)
    place = {"chat": op.chat_id, "thread": op.thread_id}
    other = conn.first(
        select(bindings.c.chat_id, bindings.c.thread_id).where(
            bindings.c.session_id == bindparam("session"), not_(_THIS_TOPIC)
        ),
        {"session": op.session_id, **place},
    )
    if other is not None:
        raise linked(op, other)
    conn.dialect.upsert(conn, bindings, binding_row(op), KEPT)


@answers(queries.topic_mode_enabled)
def mode_enabled(conn: ServerConnection, chat_id: str, user_id: str) -> bool:
    """Return True if topic mode is on for this chat and user."""
    statement = select(mode.c.enabled).where(_BY_CHAT, mode.c.user_id == bindparam("user"))
    return bool(conn.scalar(statement, {"chat": chat_id, "user": user_id}))


@answers(queries.topic_binding)
def binding(conn: ServerConnection, chat_id: str, thread_id: str) -> Row | None:
    """Return the binding of a topic; ``None`` if there is none."""
    return conn.first(select(bindings).where(_THIS_TOPIC), {"chat": chat_id, "thread": thread_id})


@answers(queries.is_linked_to_topic)
def is_linked(conn: ServerConnection, session_id: str) -> bool:
    """Return True if a topic is bound to the session."""
    by_session = bindings.c.session_id == bindparam("session")
    found = conn.scalar(select(bindings.c.chat_id).where(by_session), {"session": session_id})
    return found is not None
