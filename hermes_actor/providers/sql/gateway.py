"""Routes and turns on a server: the rows that the rules of the file work on, and their reads."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, delete, func, insert, or_, select, update

import hermes_protocol.operations as ops
from hermes_actor.providers.sql import messages as message_rows
from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.registry import answers, applies
from hermes_actor.providers.sql.sessions import sessions as session_rows
from hermes_actor.providers.sql.sessions.lineage import CONTINUES, child, compression_tip, parent
from hermes_actor.providers.sql.sessions.session_row import BY_ID, OF_SESSION, is_there, set_columns
from hermes_actor.providers.sql.tables import (
    MESSAGE_COLUMNS,
    archived,
    chats,
    messages,
    routes,
    seen,
    sessions,
    transcripts,
    turn_waiters,
    turns,
)
from hermes_actor.store import queries
from hermes_actor.store.gateway import route_rules, turn_rules
from hermes_actor.store.gateway.doubles import find_double
from hermes_actor.store.gateway.entries import dumps, loads
from hermes_actor.store.gateway.tables import (
    Held,
    RouteState,
    SessionState,
    StoredRoute,
    TranscriptState,
    TurnLine,
    UserMessage,
    Waiter,
)
from hermes_actor.store.message_codec import decode_row
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.lineage import walk_lineage

__all__ = ["double_of", "fence_operation", "follow_continuation", "require_turn"]

_LIVE = or_(sessions.c.ended_at.is_(None), sessions.c.end_reason.in_(route_rules.ACCIDENTS))
_ROUTE = select(routes.c.session_key, routes.c.entry_json, routes.c.updated_at).where(
    routes.c.scope == bindparam("scope")
)
_THIS = routes.c.session_key == bindparam("chat")
_TURN = select(*(turns.c[name] for name in Held._fields))
_WAITER = select(*(turn_waiters.c[name] for name in Waiter._fields))
_THIS_TICKET = turn_waiters.c.ticket == bindparam("value")
_PREVIOUS = select(parent.c.id).where(child.c.id == bindparam("key"), CONTINUES)
_EMPTY = "{}"
"""The entry of a route that a transaction is about to write."""


class ServerTables:
    """The rows of one store; see :class:`~hermes_actor.store.gateway.tables.Tables`.

    With *lock* a route or turn that is looked at stays as it is until the transaction ends.
    """

    def __init__(self, conn: ServerConnection, *, lock: bool = False) -> None:
        self._conn = conn
        self._lock = lock

    # --- routes ------------------------------------------------------------------------------

    def find(self, scope: str, key: str) -> StoredRoute | None:
        return next(iter(self._routes(_ROUTE.where(_THIS), scope=scope, chat=key)), None)

    def lock(self, scope: str, key: str) -> None:
        """Insert an empty route, for which another transaction then waits by its key."""
        row = {"scope": scope, "session_key": key, "entry_json": _EMPTY, "updated_at": 0.0}
        self._conn.dialect.insert_if_absent(self._conn, routes, {**row, "session_id": ""})

    def put(self, scope: str, route: StoredRoute) -> None:
        row = {
            "scope": scope,
            "session_key": route.key,
            "entry_json": dumps(route.entry),
            "updated_at": route.updated_at,
            "session_id": route.entry["session_id"],
        }
        self._conn.dialect.upsert(self._conn, routes, row)

    def drop(self, scope: str, key: str) -> None:
        statement = delete(routes).where(routes.c.scope == bindparam("scope"), _THIS)
        self._conn.execute(statement, {"scope": scope, "chat": key})

    def all(self, scope: str) -> list[StoredRoute]:
        """Return every route of a scope, by key."""
        return self._routes(_ROUTE.order_by(routes.c.session_key), scope=scope)

    def used_since(self, scope: str, since: float) -> list[StoredRoute]:
        return self._routes(_ROUTE.where(routes.c.updated_at >= since), scope=scope)

    def unused_since(self, scope: str, before: float) -> list[StoredRoute]:
        return self._routes(_ROUTE.where(routes.c.updated_at < before), scope=scope)

    def _routes(self, statement: Any, **values: Any) -> list[StoredRoute]:
        rows = self._conn.tuples(statement.with_for_update() if self._lock else statement, values)
        read = ((key, loads(text), used) for key, text, used in rows)
        return [StoredRoute(key, entry, used) for key, entry, used in read if entry is not None]

    def routes_to(self, session_id: str) -> list[tuple[str, StoredRoute]]:
        statement = select(
            routes.c.scope, routes.c.session_key, routes.c.entry_json, routes.c.updated_at
        ).where(routes.c.session_id == bindparam("to"))
        rows = self._conn.tuples(statement, {"to": session_id})
        read = ((scope, key, loads(text), used) for scope, key, text, used in rows)
        return [(scope, StoredRoute(key, entry, used)) for scope, key, entry, used in read if entry]

    # --- sessions ----------------------------------------------------------------------------

    def session(self, session_id: str) -> SessionState | None:
        statement = select(sessions.c.ended_at, sessions.c.end_reason).where(BY_ID)
        rows = self._conn.tuples(statement, {"key": session_id})
        return SessionState(*rows[0]) if rows else None

    def source(self, session_id: str) -> str | None:
        found = self._conn.scalar(select(sessions.c.source).where(BY_ID), {"key": session_id})
        return None if found is None else str(found)

    def create_session(self, session_id: str, key: str, peer: ops.Peer, now: float) -> None:
        row = ops.SessionCreate(
            id=session_id, source=peer.source, user_id=peer.user_id, started_at=now
        )
        session_rows.create(self._conn, row)
        chat = {"session_id": session_id, "session_key": key}
        self._conn.dialect.upsert(self._conn, chats, chat)

    def end_session(self, session_id: str, now: float, reason: str) -> None:
        set_columns(self._conn, session_id, _LIVE, ended_at=now, end_reason=reason)

    def reopen_session(self, session_id: str) -> None:
        session_rows.reopen(self._conn, ops.SessionReopen(id=session_id))

    def finalize_session(self, session_id: str) -> None:
        """Do nothing: sessions on a server have no mark besides that of the route."""

    def last_message(self, session_id: str) -> float | None:
        latest = select(func.max(messages.c.timestamp)).where(OF_SESSION)
        found: float | None = self._conn.scalar(latest, {"session": session_id})
        return found

    def newest_user_message(self, session_id: str) -> UserMessage | None:
        table = self._conn.dialect.messages
        known = select(seen.c.message_key).where(
            seen.c.session_id == table.c.session_id, seen.c.message_id == table.c.id
        )
        statement = (
            select(table.c.id, table.c.content, table.c.timestamp, known.exists())
            .where(table.c.session_id == bindparam("session"), table.c.role == "user")
            .order_by(table.c.id.desc())
            .limit(1)
        )
        rows = self._conn.tuples(statement, {"session": session_id})
        return UserMessage(*rows[0]) if rows else None

    def content_of(self, row: ops.MessageRow) -> Any:
        return message_rows.message_values(self._conn.dialect, "", row)["content"]

    def note_key(self, session_id: str, message_key: str, message_id: int) -> None:
        row = {"session_id": session_id, "message_key": message_key, "message_id": message_id}
        self._conn.execute(insert(seen), row)

    def live_session(self, key: str, source: str) -> str | None:
        statement = (
            select(sessions.c.id)
            .join(chats, chats.c.session_id == sessions.c.id)
            .where(chats.c.session_key == bindparam("chat"), _LIVE)
            .where(sessions.c.source == bindparam("of"))
            .where(select(messages.c.id).where(messages.c.session_id == sessions.c.id).exists())
            .order_by(sessions.c.started_at.desc())
            .limit(1)
        )
        found: str | None = self._conn.scalar(statement, {"chat": key, "of": source})
        return found

    def tip(self, session_id: str) -> str:
        return compression_tip(self._conn, session_id) or session_id

    def root(self, session_id: str) -> str:
        chain = walk_lineage(
            session_id, lambda one: self._conn.scalar(_PREVIOUS, {"key": one}), lambda _one: None
        )
        return chain[0]

    # --- turns -------------------------------------------------------------------------------

    def turn(self, root: str) -> Held | None:
        return self._turn(turns.c.root == bindparam("value"), root)

    def turn_by_token(self, token: int) -> Held | None:
        return self._turn(turns.c.token == bindparam("value"), token)

    def _turn(self, condition: ColumnElement[bool], value: Any) -> Held | None:
        statement = _TURN.where(condition)
        # Locked: a write under a turn must not be overtaken by the next holder.
        rows = self._conn.tuples(
            statement.with_for_update() if self._lock else statement, {"value": value}
        )
        return Held(*rows[0]) if rows else None

    def turns(self) -> list[Held]:
        """Return every turn, oldest first."""
        return [Held(*row) for row in self._conn.tuples(_TURN.order_by(turns.c.token))]

    def add_turn(self, held: Held) -> int:
        values = {name: getattr(held, name) for name in Held._fields[1:]}
        if not self._conn.dialect.insert_if_absent(self._conn, turns, values):
            # Another transaction was faster; its row is visible now, and names the holder.
            raise turn_rules.busy(held.session_id, self.turn(held.root), held.taken_at)
        found = self.turn(held.root)
        assert found is not None
        return found.token

    def set_turn(self, token: int, *, until: float | None = None, session: str = "") -> None:
        values: dict[str, Any] = {} if until is None else {"until": until}
        if session:
            values["session_id"] = session
        this = turns.c.token == bindparam("value")
        self._conn.execute(update(turns).where(this).values(values), {"value": token})

    def remove_turn(self, token: int) -> bool:
        statement = delete(turns).where(turns.c.token == bindparam("value"))
        return self._conn.execute(statement, {"value": token}).rowcount > 0

    def first_waiter(self, root: str, now: float) -> Waiter | None:
        statement = (
            _WAITER.where(turn_waiters.c.root == bindparam("of"), turn_waiters.c.until > now)
            .order_by(turn_waiters.c.ticket)
            .limit(1)
        )
        rows = self._conn.tuples(statement, {"of": root})
        return Waiter(*rows[0]) if rows else None

    def is_waiting(self, ticket: int) -> bool:
        found = select(turn_waiters.c.ticket).where(_THIS_TICKET)
        return self._conn.scalar(found, {"value": ticket}) is not None

    def waiters(self) -> list[Waiter]:
        """Return all who wait for a turn, in order."""
        return [Waiter(*row) for row in self._conn.tuples(_WAITER.order_by(turn_waiters.c.ticket))]

    def add_waiter(self, waiter: Waiter) -> int:
        values = {name: getattr(waiter, name) for name in Waiter._fields[1:]}
        made = self._conn.execute(insert(turn_waiters), values).inserted_primary_key
        assert made is not None
        return int(made[0])

    def remove_waiter(self, ticket: int) -> bool:
        statement = delete(turn_waiters).where(_THIS_TICKET)
        return self._conn.execute(statement, {"value": ticket}).rowcount > 0

    def remove_late_waiters(self, now: float) -> None:
        late = select(turn_waiters.c.ticket).where(turn_waiters.c.until <= now)
        # One by one, by their keys: a range would be locked against those who come meanwhile.
        for ticket in self._conn.column(late):
            self.remove_waiter(ticket)


def _register() -> None:
    for kind, rule in (route_rules.CHANGES | turn_rules.CHANGES).items():
        applies(kind)(
            lambda conn, op, rule=rule: rule(ServerTables(conn, lock=True), op)  # type: ignore[misc]
        )


_register()


def fence_operation(conn: ServerConnection, op: Any) -> None:
    """Compare the turn that an operation carries; raises :class:`TurnLost`."""
    turn_rules.fence_operation(ServerTables(conn, lock=True), op)


def require_turn(conn: ServerConnection, op: Any, sources: frozenset[str]) -> None:
    """Raise :class:`TurnRequired` for a write without a turn of a conversation of *sources*."""
    turn_rules.require_turn(ServerTables(conn), op, sources)


def follow_continuation(conn: ServerConnection, op: ops.SessionContinue) -> None:
    """Move the routes and the turn of a conversation to its continuation, and note its chat."""
    route_rules.continue_routes(ServerTables(conn, lock=True), op)
    key = conn.scalar(
        select(chats.c.session_key).where(chats.c.session_id == bindparam("value")),
        {"value": op.old},
    )
    if key is not None:
        conn.dialect.upsert(conn, chats, {"session_id": op.new, "session_key": key})


@applies(ops.MessageOnce)
def append_once(conn: ServerConnection, op: ops.MessageOnce) -> ops.Once:
    """Append a message unless its key is in the session."""
    # The row of the session is locked first, so that two deliveries of a message come in turn.
    is_there(conn, op.session_id, lock=True)
    this = and_(seen.c.session_id == bindparam("of"), seen.c.message_key == bindparam("message"))
    values = {"of": op.session_id, "message": op.message_key}
    known = conn.scalar(select(seen.c.message_id).where(this), values)
    if known is not None:
        return ops.Once(id=known, appended=False)
    tables = ServerTables(conn)
    if conn.dialect.settings.rules.merges_doubles:
        double = find_double(tables, op.session_id, op.message, op.message_key)
        if double is not None:
            return ops.Once(id=double)
    append = ops.MessageAppend(session_id=op.session_id, message=op.message)
    made = message_rows.append(conn, append)
    tables.note_key(op.session_id, op.message_key, made)
    return ops.Once(id=made)


def double_of(conn: ServerConnection, op: ops.MessageAppend) -> int | None:
    """Return the message that an append repeats, by the rules of ``doubles``."""
    is_there(conn, str(op.session_id), lock=True)
    return find_double(ServerTables(conn), str(op.session_id), op.message, None)


@applies(ops.TranscriptMark)
def mark_transcript(conn: ServerConnection, op: ops.TranscriptMark) -> None:
    """Keep how far the transcript file of a session has come."""
    if is_there(conn, op.session_id):
        row = {name: getattr(op, name) for name in op.__struct_fields__}
        conn.dialect.upsert(conn, transcripts, row)


# --- reads -----------------------------------------------------------------------------------


@answers(queries.route_state)
def route_state(conn: ServerConnection, scope: str, key: str) -> RouteState | None:
    """Return the route of a chat with the state of its session; ``None`` if there is none."""
    tables = ServerTables(conn)
    route = tables.find(scope, key)
    if route is None:
        return None
    tip = tables.tip(route.entry["session_id"])
    return RouteState(
        route, tip, tables.session(tip), tables.last_message(tip), tables.turn(tables.root(tip))
    )


@answers(queries.all_routes)
def all_routes(conn: ServerConnection, scope: str) -> list[StoredRoute]:
    """Return every route of a scope, by key."""
    return ServerTables(conn).all(scope)


@answers(queries.route_scopes)
def route_scopes(conn: ServerConnection) -> list[str]:
    """Return the scopes that have routes."""
    return conn.column(select(routes.c.scope).distinct().order_by(routes.c.scope))


@answers(queries.routes_of_session)
def routes_of_session(conn: ServerConnection, session_id: str) -> list[tuple[str, StoredRoute]]:
    """Return the routes that lead to a session, each with its scope."""
    return ServerTables(conn).routes_to(session_id)


@answers(queries.unused_routes)
def unused_routes(conn: ServerConnection, scope: str, before: float) -> list[StoredRoute]:
    """Return the routes of a scope that were last used before a time."""
    return ServerTables(conn).unused_since(scope, before)


@answers(queries.all_turns)
def all_turns(conn: ServerConnection) -> list[Held]:
    """Return every turn, oldest first."""
    return ServerTables(conn).turns()


@answers(queries.all_turn_waiters)
def all_turn_waiters(conn: ServerConnection) -> list[Waiter]:
    """Return all who wait for a turn, in the order of their coming."""
    return ServerTables(conn).waiters()


@answers(queries.turn_line)
def turn_line(conn: ServerConnection, session_id: str, ticket: int, now: float) -> TurnLine:
    """Return the turn of the conversation that a session belongs to, and who comes next."""
    tables = ServerTables(conn)
    root = tables.root(session_id)
    return TurnLine(tables.turn(root), tables.first_waiter(root, now), tables.is_waiting(ticket))


@answers(queries.sessions_of_chat)
def sessions_of_chat(
    conn: ServerConnection, source: str, key: str, user_id: str | None, limit: int
) -> list[str]:
    """Return sessions of a chat and of its user on the same platform, latest start first."""
    of_chat = select(chats.c.session_id).where(chats.c.session_key == bindparam("chat"))
    mine: ColumnElement[bool] = sessions.c.id.in_(of_chat)
    if user_id is not None:
        mine = or_(mine, sessions.c.user_id == bindparam("user"))
    statement = (
        select(sessions.c.id)
        .where(sessions.c.source == bindparam("of"), mine)
        .where(sessions.c.id.not_in(select(archived.c.session_id)))
        .order_by(sessions.c.started_at.desc())
        .limit(limit)
    )
    values = {"of": source, "chat": key} | ({} if user_id is None else {"user": user_id})
    return conn.column(statement, values)


def _of_file(folder: str) -> ColumnElement[bool]:
    return transcripts.c.folder == folder


@answers(queries.transcript_state)
def transcript_state(
    conn: ServerConnection, folder: str, session_id: str
) -> TranscriptState | None:
    """Return how far the transcript file of a session has come; ``None`` if it was never begun."""
    statement = select(transcripts.c.last_id, transcripts.c.lines, transcripts.c.bytes).where(
        _of_file(folder), transcripts.c.session_id == bindparam("of")
    )
    rows = conn.tuples(statement, {"of": session_id})
    return TranscriptState(*rows[0]) if rows else None


@answers(queries.messages_after)
def messages_after(conn: ServerConnection, session_id: str, last_id: int) -> tuple[int, list[Row]]:
    """Return how many messages there are up to an id, and those after it."""
    count = select(func.count()).select_from(messages).where(OF_SESSION, messages.c.id <= last_id)
    rows = (
        select(*MESSAGE_COLUMNS).where(OF_SESSION, messages.c.id > last_id).order_by(messages.c.id)
    )
    values = {"session": session_id}
    return int(conn.scalar(count, values)), [decode_row(row) for row in conn.rows(rows, values)]


@answers(queries.transcripts_behind)
def transcripts_behind(conn: ServerConnection, folder: str, scope: str) -> list[str]:
    """Return sessions whose transcript file lacks messages: routed ones, and those begun before."""
    newest = (
        select(func.max(messages.c.id))
        .where(messages.c.session_id == sessions.c.id)
        .scalar_subquery()
    )
    file = and_(transcripts.c.session_id == sessions.c.id, _of_file(folder))
    routed = select(routes.c.session_id).where(routes.c.scope == scope)
    statement = (
        select(sessions.c.id)
        .select_from(sessions.outerjoin(transcripts, file))
        .where(
            or_(
                transcripts.c.session_id.is_not(None),
                sessions.c.id.in_(routed),
                sessions.c.id.in_(select(chats.c.session_id)),
            )
        )
        .where(func.coalesce(newest, 0) != func.coalesce(transcripts.c.last_id, 0))
    )
    return conn.column(statement)
