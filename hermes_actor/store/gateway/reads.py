"""Reads of gateways from a file: routes, turns, sessions of a chat, progress of transcripts."""

from __future__ import annotations

from hermes_actor.sqlite import Connection
from hermes_actor.store import queries
from hermes_actor.store.gateway.files import FileTables
from hermes_actor.store.gateway.tables import (
    Held,
    RouteState,
    StoredRoute,
    TranscriptState,
    TurnLine,
    Waiter,
)
from hermes_actor.store.message_codec import decode_row
from hermes_actor.store.registry import answers
from hermes_actor.store.rows import Row, dicts, scalar
from hermes_actor.store.schema_features import features_of

__all__: list[str] = []


@answers(queries.route_state)
def route_state(conn: Connection, scope: str, key: str) -> RouteState | None:
    """Return the route of a chat with the state of its session; ``None`` if there is none."""
    if features_of(conn).routes is None:
        return None
    tables = FileTables(conn)
    route = tables.find(scope, key)
    if route is None:
        return None
    tip = tables.tip(route.entry["session_id"])
    return RouteState(
        route, tip, tables.session(tip), tables.last_message(tip), tables.turn(tables.root(tip))
    )


@answers(queries.all_routes)
def all_routes(conn: Connection, scope: str) -> list[StoredRoute]:
    """Return every route of a scope, in the order of their first appearance."""
    return [] if features_of(conn).routes is None else FileTables(conn).all(scope)


@answers(queries.route_scopes)
def route_scopes(conn: Connection) -> list[str]:
    """Return the scopes that have routes."""
    table = features_of(conn).routes
    if table is None:
        return []
    rows = conn.execute(f"SELECT DISTINCT scope FROM {table} ORDER BY scope").fetchall()
    return [scope for (scope,) in rows]


@answers(queries.routes_of_session)
def routes_of_session(conn: Connection, session_id: str) -> list[tuple[str, StoredRoute]]:
    """Return the routes that lead to a session, each with its scope."""
    return [] if features_of(conn).routes is None else FileTables(conn).routes_to(session_id)


@answers(queries.unused_routes)
def unused_routes(conn: Connection, scope: str, before: float) -> list[StoredRoute]:
    """Return the routes of a scope that were last used before a time."""
    return [] if features_of(conn).routes is None else FileTables(conn).unused_since(scope, before)


@answers(queries.all_turns)
def all_turns(conn: Connection) -> list[Held]:
    """Return every turn, oldest first."""
    return FileTables(conn).turns()


@answers(queries.all_turn_waiters)
def all_turn_waiters(conn: Connection) -> list[Waiter]:
    """Return all who wait for a turn, in the order of their coming."""
    return FileTables(conn).waiters()


@answers(queries.turn_line)
def turn_line(conn: Connection, session_id: str, ticket: int, now: float) -> TurnLine:
    """Return the turn of the conversation that a session belongs to, and who comes next."""
    tables = FileTables(conn)
    root = tables.root(session_id)
    return TurnLine(tables.turn(root), tables.first_waiter(root, now), tables.is_waiting(ticket))


@answers(queries.sessions_of_chat)
def sessions_of_chat(
    conn: Connection, source: str, key: str, user_id: str | None, limit: int
) -> list[str]:
    """Return sessions of a chat and of its user on the same platform, latest start first."""
    features = features_of(conn)
    mine = "s.session_key = :key"
    if "session_key" not in features.belongs:
        mine = "0"
        if features.gateway:
            mine = "s.id IN (SELECT session_id FROM hermes_actor_chats WHERE session_key = :key)"
    rows = conn.execute(
        f"SELECT s.id FROM sessions s WHERE s.source = :source AND {features.is_listable}"
        f" AND ({mine} OR s.user_id = :user) ORDER BY s.started_at DESC LIMIT :limit",
        {"source": source, "key": key, "user": user_id, "limit": limit},
    ).fetchall()
    return [session_id for (session_id,) in rows]


@answers(queries.transcript_state)
def transcript_state(conn: Connection, folder: str, session_id: str) -> TranscriptState | None:
    """Return how far the transcript file of a session has come; ``None`` if it was never begun."""
    if not features_of(conn).gateway:
        return None
    sql = "SELECT last_id, lines, bytes FROM hermes_actor_transcripts WHERE folder = ?"
    row = conn.execute(f"{sql} AND session_id = ?", (folder, session_id)).fetchone()
    return None if row is None else TranscriptState(*row)


@answers(queries.messages_after)
def messages_after(conn: Connection, session_id: str, last_id: int) -> tuple[int, list[Row]]:
    """Return how many visible messages there are up to an id, and those after it."""
    visible = features_of(conn).visible
    only = f"FROM messages m WHERE m.session_id = ? AND {visible}"
    count = int(scalar(conn, f"SELECT COUNT(*) {only} AND m.id <= ?", (session_id, last_id)))
    rows = dicts(conn, f"SELECT m.* {only} AND m.id > ? ORDER BY m.id", (session_id, last_id))
    return count, [decode_row(row) for row in rows]


@answers(queries.transcripts_behind)
def transcripts_behind(conn: Connection, folder: str, scope: str) -> list[str]:
    """Return sessions whose transcript file lacks messages: routed ones, and those begun before."""
    features = features_of(conn)
    if not features.gateway or features.routes is None:
        return []
    routed = "json_extract(r.entry_json, '$.session_id')"
    rows = conn.execute(
        f"""
        SELECT s.id FROM sessions s
        LEFT JOIN hermes_actor_transcripts t ON t.session_id = s.id AND t.folder = :folder
        WHERE (t.session_id IS NOT NULL OR s.id IN (SELECT session_id FROM hermes_actor_chats)
               OR s.id IN (SELECT CASE WHEN json_valid(r.entry_json)
               THEN {routed} END FROM {features.routes} r WHERE r.scope = :scope))
          AND COALESCE((SELECT MAX(m.id) FROM messages m WHERE m.session_id = s.id), 0)
              != COALESCE(t.last_id, 0)
        """,
        {"folder": folder, "scope": scope},
    ).fetchall()
    return [session_id for (session_id,) in rows]
