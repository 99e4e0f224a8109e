"""Routes and turns of a file: the rows that the rules work on, and the reads of gateways."""

from __future__ import annotations

from typing import Any

import hermes_protocol.operations as ops
from hermes_actor.sqlite import Connection
from hermes_actor.store import messages
from hermes_actor.store.gateway import route_rules, turn_rules
from hermes_actor.store.gateway.doubles import find_double
from hermes_actor.store.gateway.entries import dumps, loads
from hermes_actor.store.gateway.schema import ensure_tables
from hermes_actor.store.gateway.tables import (
    Held,
    SessionState,
    StoredRoute,
    UserMessage,
    Waiter,
)
from hermes_actor.store.registry import applies
from hermes_actor.store.rows import is_there, placeholders, scalar, upsert
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.sessions import sessions
from hermes_actor.store.sessions.lineage import compression_tip, continued, walk_lineage
from hermes_protocol.values import from_value

__all__ = ["FileTables", "double_of", "fence_operation", "follow_continuation", "require_turn"]

_ROUTE = "SELECT session_key, entry_json, updated_at FROM {table} WHERE scope = ?"
_TURN = f"SELECT {', '.join(Held._fields)} FROM hermes_actor_turns WHERE"
_WAITER = f"SELECT {', '.join(Waiter._fields)} FROM hermes_actor_turn_waiters"
_ACCIDENTS = ", ".join(f"'{reason}'" for reason in route_rules.ACCIDENTS)


class FileTables:
    """The rows of one file; see :class:`~hermes_actor.store.gateway.tables.Tables`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        features = features_of(conn)
        self._features = features
        self._table = features.routes or "hermes_actor_routes"

    # --- routes ------------------------------------------------------------------------------

    def find(self, scope: str, key: str) -> StoredRoute | None:
        return next(iter(self._routes("AND session_key = ?", scope, key)), None)

    def lock(self, scope: str, key: str) -> None:
        """Do nothing: a file has one writer."""

    def put(self, scope: str, route: StoredRoute) -> None:
        row = {
            "scope": scope,
            "session_key": route.key,
            "entry_json": dumps(route.entry),
            "updated_at": route.updated_at,
        }
        upsert(self._conn, self._table, row, ("scope", "session_key"))

    def drop(self, scope: str, key: str) -> None:
        sql = f"DELETE FROM {self._table} WHERE scope = ? AND session_key = ?"
        self._conn.execute(sql, (scope, key))

    def all(self, scope: str) -> list[StoredRoute]:
        """Return every route of a scope, in the order of their first appearance."""
        return self._routes("ORDER BY rowid", scope)

    def used_since(self, scope: str, since: float) -> list[StoredRoute]:
        return self._routes("AND updated_at >= ?", scope, since)

    def unused_since(self, scope: str, before: float) -> list[StoredRoute]:
        return self._routes("AND updated_at < ?", scope, before)

    def _routes(self, condition: str, *values: Any) -> list[StoredRoute]:
        sql = f"{_ROUTE.format(table=self._table)} {condition}"
        rows = self._conn.execute(sql, values).fetchall()
        # One broken entry costs its own chat a new session, and no other chat anything.
        read = ((key, loads(text), used) for key, text, used in rows)
        return [StoredRoute(key, entry, used) for key, entry, used in read if entry is not None]

    def routes_to(self, session_id: str) -> list[tuple[str, StoredRoute]]:
        column = "session_id"
        if self._table == "gateway_routing":
            column = (
                "CASE WHEN json_valid(entry_json) THEN json_extract(entry_json, '$.session_id') END"
            )
        sql = f"SELECT scope, session_key, entry_json, updated_at FROM {self._table}"
        rows = self._conn.execute(f"{sql} WHERE {column} = ?", (session_id,)).fetchall()
        read = ((scope, key, loads(text), used) for scope, key, text, used in rows)
        return [(scope, StoredRoute(key, entry, used)) for scope, key, entry, used in read if entry]

    # --- sessions ----------------------------------------------------------------------------

    def session(self, session_id: str) -> SessionState | None:
        sql = "SELECT ended_at, end_reason FROM sessions WHERE id = ?"
        row = self._conn.execute(sql, (session_id,)).fetchone()
        return None if row is None else SessionState(*row)

    def source(self, session_id: str) -> str | None:
        found = scalar(self._conn, "SELECT source FROM sessions WHERE id = ?", (session_id,))
        return None if found is None else str(found)

    def create_session(self, session_id: str, key: str, peer: ops.Peer, now: float) -> None:
        row = ops.SessionCreate(
            id=session_id, source=peer.source, user_id=peer.user_id, started_at=now
        )
        sessions.create(self._conn, row)
        values = {"session_key": key, **{n: getattr(peer, n) for n in peer.__struct_fields__}}
        there = [name for name in self._features.belongs if name in values]
        changes = ", ".join(f"{name} = ?" for name in there)
        # Where another program has begun the session: columns that it left empty are filled, too.
        sql = f"UPDATE sessions SET {changes} WHERE id = ?"
        self._conn.execute(sql, [*(values[name] for name in there), session_id])
        chat = {"session_id": session_id, "session_key": key}
        upsert(self._conn, "hermes_actor_chats", chat, ("session_id",))

    def end_session(self, session_id: str, now: float, reason: str) -> None:
        self._conn.execute(
            "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ?"
            f" AND (ended_at IS NULL OR end_reason IN ({_ACCIDENTS}))",
            (now, reason, session_id),
        )

    def reopen_session(self, session_id: str) -> None:
        sessions.reopen(self._conn, ops.SessionReopen(id=session_id))

    def finalize_session(self, session_id: str) -> None:
        if self._features.expiry_mark:
            sql = "UPDATE sessions SET expiry_finalized = 1 WHERE id = ?"
            self._conn.execute(sql, (session_id,))

    def last_message(self, session_id: str) -> float | None:
        sql = "SELECT MAX(timestamp) FROM messages WHERE session_id = ?"
        found: float | None = scalar(self._conn, sql, (session_id,))
        return found

    def newest_user_message(self, session_id: str) -> UserMessage | None:
        key = "m.platform_message_id" if self._features.platform_ids else "NULL"
        if self._features.gateway:
            key = (
                f"COALESCE({key}, (SELECT s.message_key FROM hermes_actor_seen s"
                " WHERE s.session_id = m.session_id AND s.message_id = m.id))"
            )
        sql = (
            f"SELECT m.id, m.content, m.timestamp, {key} IS NOT NULL FROM messages m"
            f" WHERE m.session_id = ? AND m.role = 'user' AND {self._features.visible}"
            " ORDER BY m.id DESC LIMIT 1"
        )
        row = self._conn.execute(sql, (session_id,)).fetchone()
        return None if row is None else UserMessage(row[0], row[1], row[2], bool(row[3]))

    def content_of(self, row: ops.MessageRow) -> Any:
        return from_value(row.content)

    def note_key(self, session_id: str, message_key: str, message_id: int) -> None:
        row = (session_id, message_key, message_id)
        self._conn.execute("INSERT INTO hermes_actor_seen VALUES (?, ?, ?)", row)
        if self._features.platform_ids:
            sql = "UPDATE messages SET platform_message_id = ? WHERE id = ?"
            self._conn.execute(sql, (message_key, message_id))

    def live_session(self, key: str, source: str) -> str | None:
        column, join = self._key_of_session()
        found: str | None = scalar(
            self._conn,
            f"SELECT s.id FROM sessions s {join} WHERE {column} = ? AND s.source = ?"
            f" AND (s.ended_at IS NULL OR s.end_reason IN ({_ACCIDENTS}))"
            " AND EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id)"
            " ORDER BY s.started_at DESC LIMIT 1",
            (key, source),
        )
        return found

    def _key_of_session(self) -> tuple[str, str]:
        """Return the column that names the chat of a session, and the join that it needs."""
        if "session_key" in self._features.belongs:
            return "s.session_key", ""
        return "k.session_key", "JOIN hermes_actor_chats k ON k.session_id = s.id"

    def tip(self, session_id: str) -> str:
        return compression_tip(self._conn, session_id) or session_id

    def root(self, session_id: str) -> str:
        chain = walk_lineage(session_id, lambda one: continued(self._conn, one), lambda _one: None)
        return chain[0]

    # --- turns -------------------------------------------------------------------------------

    def turn(self, root: str) -> Held | None:
        return self._turn("root = ?", root)

    def turn_by_token(self, token: int) -> Held | None:
        return self._turn("token = ?", token)

    def _turn(self, condition: str, value: Any) -> Held | None:
        if not self._features.gateway:
            return None
        row = self._conn.execute(f"{_TURN} {condition}", (value,)).fetchone()
        return None if row is None else Held(*row)

    def turns(self) -> list[Held]:
        """Return every turn, oldest first."""
        if not self._features.gateway:
            return []
        return [Held(*row) for row in self._conn.execute(f"{_TURN} 1 ORDER BY token").fetchall()]

    def add_turn(self, held: Held) -> int:
        columns = Held._fields[1:]
        sql = f"INSERT INTO hermes_actor_turns ({', '.join(columns)})"
        done = self._conn.execute(f"{sql} VALUES {placeholders(len(columns))}", held[1:])
        assert done.lastrowid is not None
        return done.lastrowid

    def set_turn(self, token: int, *, until: float | None = None, session: str = "") -> None:
        self._conn.execute(
            "UPDATE hermes_actor_turns SET until = COALESCE(?, until),"
            " session_id = COALESCE(NULLIF(?, ''), session_id) WHERE token = ?",
            (until, session, token),
        )

    def remove_turn(self, token: int) -> bool:
        sql = "DELETE FROM hermes_actor_turns WHERE token = ?"
        return self._conn.execute(sql, (token,)).rowcount > 0

    def first_waiter(self, root: str, now: float) -> Waiter | None:
        if not self._features.waiters:
            return None
        sql = f"{_WAITER} WHERE root = ? AND until > ? ORDER BY ticket LIMIT 1"
        row = self._conn.execute(sql, (root, now)).fetchone()
        return None if row is None else Waiter(*row)

    def is_waiting(self, ticket: int) -> bool:
        sql = "SELECT 1 FROM hermes_actor_turn_waiters WHERE ticket = ?"
        return self._features.waiters and scalar(self._conn, sql, (ticket,)) is not None

    def waiters(self) -> list[Waiter]:
        """Return all who wait for a turn, in order."""
        if not self._features.waiters:
            return []
        rows = self._conn.execute(f"{_WAITER} ORDER BY ticket").fetchall()
        return [Waiter(*row) for row in rows]

    def add_waiter(self, waiter: Waiter) -> int:
        columns = Waiter._fields[1:]
        sql = f"INSERT INTO hermes_actor_turn_waiters ({', '.join(columns)})"
        done = self._conn.execute(f"{sql} VALUES {placeholders(len(columns))}", waiter[1:])
        assert done.lastrowid is not None
        return done.lastrowid

    def remove_waiter(self, ticket: int) -> bool:
        sql = "DELETE FROM hermes_actor_turn_waiters WHERE ticket = ?"
        return self._conn.execute(sql, (ticket,)).rowcount > 0

    def remove_late_waiters(self, now: float) -> None:
        self._conn.execute("DELETE FROM hermes_actor_turn_waiters WHERE until <= ?", (now,))


def _register() -> None:
    def changes(conn: Connection) -> FileTables:
        ensure_tables(conn)
        return FileTables(conn)

    for kind, rule in (route_rules.CHANGES | turn_rules.CHANGES).items():
        applies(kind)(lambda conn, op, rule=rule: rule(changes(conn), op))  # type: ignore[misc]


_register()


def fence_operation(conn: Connection, op: Any) -> None:
    """Compare the turn that an operation carries; raises :class:`TurnLost`."""
    turn_rules.fence_operation(FileTables(conn), op)


def require_turn(conn: Connection, op: Any, sources: frozenset[str]) -> None:
    """Raise :class:`TurnRequired` for a write without a turn where the settings ask for one."""
    turn_rules.require_turn(FileTables(conn), op, sources)


def follow_continuation(conn: Connection, op: ops.SessionContinue) -> None:
    """Move the routes and the turn of a conversation to its continuation, and note its chat."""
    route_rules.continue_routes(FileTables(conn), op)
    if features_of(conn).gateway:
        conn.execute(
            "INSERT OR IGNORE INTO hermes_actor_chats SELECT ?, session_key FROM hermes_actor_chats"
            " WHERE session_id = ?",
            (op.new, op.old),
        )


@applies(ops.MessageOnce)
def append_once(conn: Connection, op: ops.MessageOnce) -> ops.Once:
    """Append a message unless its key is in the session; where messages have a column for it,
    other programs' messages count, too."""
    ensure_tables(conn)
    row = (op.session_id, op.message_key)
    known = scalar(
        conn,
        "SELECT message_id FROM hermes_actor_seen WHERE session_id = ? AND message_key = ?",
        row,
    )
    column = features_of(conn).platform_ids
    if known is None and column:
        sql = "SELECT id FROM messages WHERE session_id = ? AND platform_message_id = ?"
        known = scalar(conn, sql, row)
    if known is not None:
        return ops.Once(id=known, appended=False)
    tables = FileTables(conn)
    if conn.rules is not None and conn.rules.merges_doubles:
        double = find_double(tables, op.session_id, op.message, op.message_key)
        if double is not None:
            return ops.Once(id=double)
    made = messages.append(conn, ops.MessageAppend(session_id=op.session_id, message=op.message))
    tables.note_key(op.session_id, op.message_key, made)
    return ops.Once(id=made)


def double_of(conn: Connection, op: ops.MessageAppend) -> int | None:
    """Return the message that an append repeats, by the rules of :mod:`.doubles`."""
    return find_double(FileTables(conn), str(op.session_id), op.message, None)


@applies(ops.TranscriptMark)
def mark_transcript(conn: Connection, op: ops.TranscriptMark) -> None:
    """Keep how far the transcript file of a session has come."""
    ensure_tables(conn)
    if is_there(conn, op.session_id):
        row = {name: getattr(op, name) for name in op.__struct_fields__}
        upsert(conn, "hermes_actor_transcripts", row, ("folder", "session_id"))
