"""Tables of routes and turns in a file: created by the first change that needs them.

A file of a newer agent program has ``gateway_routing``; routes are kept there, so that both
programs see the same ones. ``hermes_actor_turns`` counts its tokens up for ever.
"""

from __future__ import annotations

from hermes_actor.sqlite import Connection
from hermes_actor.store.schema import statements
from hermes_actor.store.schema_features import features_of

__all__ = ["GATEWAY_SQL", "ensure_tables"]

GATEWAY_SQL = """
CREATE TABLE IF NOT EXISTS hermes_actor_routes (
    scope TEXT NOT NULL DEFAULT '',
    session_key TEXT NOT NULL,
    entry_json TEXT NOT NULL,
    updated_at REAL NOT NULL,
    session_id TEXT GENERATED ALWAYS AS (json_extract(entry_json, '$.session_id')) VIRTUAL,
    PRIMARY KEY (scope, session_key)
);

CREATE INDEX IF NOT EXISTS hermes_actor_routes_session ON hermes_actor_routes(session_id);

CREATE TABLE IF NOT EXISTS hermes_actor_chats (
    session_id TEXT PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
    session_key TEXT NOT NULL
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS hermes_actor_chats_key ON hermes_actor_chats(session_key);

CREATE TABLE IF NOT EXISTS hermes_actor_seen (
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    message_key TEXT NOT NULL,
    message_id INTEGER NOT NULL,
    PRIMARY KEY (session_id, message_key)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS hermes_actor_transcripts (
    folder TEXT NOT NULL,
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    last_id INTEGER NOT NULL,
    lines INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (folder, session_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS hermes_actor_turns (
    token INTEGER PRIMARY KEY AUTOINCREMENT,
    root TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    kind TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started REAL NOT NULL,
    place TEXT NOT NULL,
    taken_at REAL NOT NULL,
    until REAL NOT NULL
);

CREATE TABLE IF NOT EXISTS hermes_actor_turn_waiters (
    ticket INTEGER PRIMARY KEY AUTOINCREMENT,
    root TEXT NOT NULL,
    session_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    kind TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started REAL NOT NULL,
    place TEXT NOT NULL,
    since REAL NOT NULL,
    until REAL NOT NULL
);

CREATE INDEX IF NOT EXISTS hermes_actor_turn_waiters_root ON hermes_actor_turn_waiters(root);
"""


def ensure_tables(conn: Connection) -> None:
    """Create what is missing; a file that has the tables costs nothing."""
    features = features_of(conn)
    if not (features.gateway and features.waiters):
        for statement in statements(GATEWAY_SQL):
            conn.execute(statement)
        conn.layout_checked = False  # the features have changed inside this transaction
