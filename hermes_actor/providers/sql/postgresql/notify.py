"""Subscribers of a store on PostgreSQL: the changes that they read, and their wake-ups.

Changes are reported in the order of their transactions, and only when no earlier one can come any
more: a number is drawn before its transaction is committed, and another one may be quicker.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import closing
from typing import Any, cast

import psycopg
from sqlalchemy import ColumnElement, Engine, func, literal_column, select, text

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.dialect import Cursor, Step
from hermes_actor.providers.sql.tables import changes, followers

__all__ = ["CHANNEL", "TELL", "changes_after", "listen", "newest_change", "place_after"]

CHANNEL = "hermes_actor_changes"
_FOLLOW_SECONDS = 10
"""Subscriber heartbeat interval. NOTIFY is skipped when no subscriber was seen recently."""
_NOTICE_SECONDS = 1.0
"""Longest time until the listening thread of a closed subscription ends."""

TELL = select(func.pg_notify(CHANNEL, func.current_schema())).where(
    select(followers.c.client).where(followers.c.until > func.now()).exists()
)
"""NOTIFY makes commits wait for each other, so it is skipped when no subscriber listens."""

_FINISHED = text("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1")
_PLACE = text("SELECT xid, commit_no FROM hermes_actor_changes WHERE commit_no = :after")
_NEWEST = text(
    "SELECT commit_no FROM hermes_actor_changes"
    " WHERE xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
    " ORDER BY xid DESC, commit_no DESC LIMIT 1"
)
_xid: ColumnElement[Any] = literal_column("xid")
_NEXT = text(
    "SELECT xid, commit_no, op, session_id FROM hermes_actor_changes"
    " WHERE (xid, commit_no) > (:xid, :after)"
    " AND xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
    " ORDER BY xid, commit_no LIMIT :some"
).columns(_xid, changes.c.commit_no, changes.c.op, changes.c.session_id)
_FOLLOW = (
    "INSERT INTO hermes_actor_followers (client, until)"
    " VALUES (%(client)s, now() + make_interval(secs => %(seconds)s))"
    " ON CONFLICT (client) DO UPDATE SET until = excluded.until"
)


def place_after(conn: ServerConnection, after: int | None) -> Cursor:
    """Return the cursor after ``commit_no`` *after*, the start if it is unknown.

    ``None``: after all transactions that no running one can precede any more.
    """
    if after is None:
        return (conn.scalar(_FINISHED), 2**62)  # after all changes of that transaction
    rows = conn.tuples(_PLACE, {"after": after})
    return rows[0] if rows else (0, 0)


def newest_change(conn: ServerConnection) -> int:
    """Return the last change of transactions that no running one can precede; 0 without any."""
    return conn.scalar(_NEWEST) or 0


def changes_after(conn: ServerConnection, place: Cursor, limit: int) -> list[Step]:
    """Return at most *limit* changes of transactions that no running one can precede."""
    bound = {"xid": place[0], "after": place[1], "some": limit}
    return [
        Step((xid, number), number, op, session_id)
        for xid, number, op, session_id in conn.tuples(_NEXT, bound)
    ]


def listen(engine: Engine, heard: threading.Event, stop: threading.Event) -> None:
    """Set *heard* at every NOTIFY, and at every heartbeat, until *stop* is set.

    Holds a connection of its own and registers it as a subscriber. Raises ``psycopg.Error`` when
    the connection is lost.
    """
    # A connection of its own: it is held for as long as the subscription lives.
    with closing(_raw(engine)) as conn:
        conn.autocommit = True
        conn.execute(f"LISTEN {CHANNEL}")
        me = {"client": os.urandom(16).hex(), "seconds": 3 * _FOLLOW_SECONDS}
        while not stop.is_set():
            conn.execute(_FOLLOW, me)
            heard.set()
            renew = time.monotonic() + _FOLLOW_SECONDS
            while time.monotonic() < renew and not stop.is_set():
                for _ in conn.notifies(timeout=_NOTICE_SECONDS, stop_after=1):
                    heard.set()
        conn.execute("DELETE FROM hermes_actor_followers WHERE client = %(client)s", me)


def _raw(engine: Engine) -> psycopg.Connection[Any]:
    fairy = engine.raw_connection()
    conn = cast("psycopg.Connection[Any]", fairy.driver_connection)
    fairy.detach()
    return conn
