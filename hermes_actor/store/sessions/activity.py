"""Sessions by latest activity, without looking at all of them.

The activity of a session is its latest message, or its start if it has none. In lists it counts
for every session from which it can be reached over compression edges, so that a continued
conversation rises as a whole.

Two plans, equal results. The *walk* reads the message index from the newest end, climbs from each
session it meets to the sessions that it counts for, and stops when the page is full; it touches
little more than it shows. The *survey* looks at every candidate; it is right for small sources,
for files whose index is still being built, and when the walk does not come to an end soon.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from hermes_actor.sqlite import Connection, sqlite3
from hermes_actor.store.rows import scalar
from hermes_actor.store.schema_features import features_of
from hermes_actor.store.sessions.lineage import activity_of, continuations, continued

__all__ = ["Listed", "by_activity", "lineage_activity"]

_WALK_BUDGET = 20_000  # index entries; about 5 ms, a tenth of surveying 10,000 sessions
_FIRST_WINDOW = 256  # messages; a page of 20 sessions is rarely longer, and it costs 0.1 ms
_SMALL_SOURCE = 200  # sessions; surveying so few is cheaper than any walk that misses them

_MESSAGE_INDEX = "hermes_actor_messages_time"


class Listed(NamedTuple):
    """Sessions that a list may show: an SQL condition on ``s``, and the source if it is one."""

    where: str
    parameters: tuple[Any, ...]
    source: str | None
    after: tuple[float, float, str] | None = None
    """Only what comes after this activity, start and id; what has come in between moves nothing."""


class _Entry(NamedTuple):
    activity: float
    started_at: float
    id: str


def _order(entry: _Entry) -> tuple[object, ...]:
    return _rank(entry.activity), _rank(entry.started_at), entry.id


def _rank(time: object) -> tuple[bool, object]:
    """Return a sort key for times in SQLite's order: numbers before text of foreign programs."""
    return isinstance(time, str), time


def by_activity(
    conn: Connection, listed: Listed, *, limit: int, offset: int, through_lineage: bool
) -> list[str]:
    """Return the ids of one page: latest activity first, then latest start, then highest id."""
    if limit == 0:
        return []
    offset = max(offset, 0)
    entries: list[_Entry] | None = None
    if limit > 0 and _MESSAGE_INDEX in features_of(conn).indexes and not _is_small(conn, listed):
        entries = _walk(conn, listed, offset + limit, through_lineage)
    if entries is None:
        entries = _survey(conn, listed, through_lineage)
    entries.sort(key=_order, reverse=True)
    stop = None if limit < 0 else min(offset + limit, sys.maxsize)
    return [entry.id for entry in islice(entries, min(offset, sys.maxsize), stop)]


def _is_small(conn: Connection, listed: Listed) -> bool:
    if listed.source is None:
        return False
    count = scalar(
        conn,
        "SELECT COUNT(*) FROM (SELECT 1 FROM sessions WHERE source = ? LIMIT ?)",
        (listed.source, _SMALL_SOURCE),
    )
    return bool(count < _SMALL_SOURCE)


# --- the walk --------------------------------------------------------------------------------


def _walk(
    conn: Connection, listed: Listed, wanted: int, through_lineage: bool
) -> list[_Entry] | None:
    """Return at least the first *wanted* entries; ``None`` if the budget ends before them."""
    entries: list[_Entry] = []
    counted: set[str] = set()
    last: object = None
    after = None if listed.after is None else _Entry(*listed.after)
    with closing(_newest_first(conn, after)) as stream:
        for activity, session_id in islice(stream, _WALK_BUDGET):
            # Entries of equal activity are ordered by what only their rows tell.
            if len(entries) >= wanted and activity != last:
                return entries
            for reached in _climb(conn, session_id, counted, through_lineage):
                started_at = scalar(
                    conn,
                    f"SELECT s.started_at FROM sessions s WHERE s.id = ? AND {listed.where}",
                    (reached, *listed.parameters),
                )
                if started_at is None:
                    continue
                entry = _Entry(activity, started_at, reached)
                if after is not None and not _is_after(conn, entry, after, through_lineage):
                    continue
                entries.append(entry)
                last = activity
        if next(stream, None) is None:
            return entries
    return None


def _is_after(conn: Connection, entry: _Entry, after: _Entry, through_lineage: bool) -> bool:
    """Return True if *entry* comes after *after*, and has no activity before it."""
    if _order(entry) >= _order(after):
        return False
    # A walk that begins in the middle meets older messages of sessions that stand further up.
    latest = lineage_activity(conn, entry.id) if through_lineage else _own_activity(conn, entry.id)
    return _rank(latest) <= _rank(entry.activity)


def _newest_first(
    conn: Connection, after: _Entry | None
) -> Generator[tuple[float, str], None, None]:
    """Yield activities in falling order; a session may come several times, its latest first.

    Those above the activity of *after* are left out.
    """
    before: object = None
    size = _FIRST_WINDOW
    upto = None if after is None else after.activity
    only, given = ("", ()) if after is None else (" WHERE timestamp <= ?", (upto,))
    with closing(conn.cursor()) as messages:
        messages.execute(
            f"SELECT timestamp, session_id FROM messages{only} ORDER BY timestamp DESC", given
        )
        # In windows of time: asked for without a lower end, the newest session without messages
        # costs a look at every session if there is none.
        while window := messages.fetchmany(size):
            oldest = window[-1][0]
            with closing(_without_messages(conn, oldest, before, upto)) as sessions:
                yield from heapq.merge(
                    window, sessions, key=lambda row: _rank(row[0]), reverse=True
                )
            before, size = oldest, min(2 * size, _WALK_BUDGET)
    with closing(_without_messages(conn, None, before, upto)) as sessions:
        yield from sessions


def _without_messages(
    conn: Connection, oldest: object, before: object, upto: object
) -> sqlite3.Cursor:
    """Select sessions without messages that started from *oldest* until *before*, newest first.

    None that started after *upto*.
    """
    bounds = [
        ("s.started_at >= ?", oldest), ("s.started_at < ?", before), ("s.started_at <= ?", upto),
    ]  # fmt: skip
    given = [(condition, time) for condition, time in bounds if time is not None]
    conditions = [condition for condition, _ in given]
    conditions.append("NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id)")
    return conn.execute(
        f"SELECT s.started_at, s.id FROM sessions s WHERE {' AND '.join(conditions)}"
        " ORDER BY s.started_at DESC",
        [time for _, time in given],
    )


def _climb(
    conn: Connection, session_id: str, counted: set[str], through_lineage: bool
) -> Iterator[str]:
    """The sessions for which the activity of *session_id* counts and no later one has."""
    current: str | None = session_id
    while current is not None and current not in counted:
        counted.add(current)
        yield current
        if not through_lineage:
            return
        current = continued(conn, current)


# --- the survey ------------------------------------------------------------------------------


def _survey(conn: Connection, listed: Listed, through_lineage: bool) -> list[_Entry]:
    rows = conn.execute(
        f"SELECT {activity_of('s')}, s.started_at, s.id, s.end_reason FROM sessions s"
        f" WHERE {listed.where}",
        listed.parameters,
    ).fetchall()
    entries = [
        _Entry(
            _lineage_activity(conn, session_id, activity)
            if through_lineage and end_reason == "compression"
            else activity,
            started_at,
            session_id,
        )
        for activity, started_at, session_id, end_reason in rows
    ]
    if listed.after is None:
        return entries
    limit = _order(_Entry(*listed.after))
    return [entry for entry in entries if _order(entry) < limit]


def lineage_activity(conn: Connection, session_id: str) -> float:
    """Return the latest activity of a session and of all its continuations."""
    return _lineage_activity(conn, session_id, _own_activity(conn, session_id))


def _own_activity(conn: Connection, session_id: str) -> float:
    own: float = scalar(
        conn, f"SELECT {activity_of('s')} FROM sessions s WHERE s.id = ?", (session_id,)
    )
    return own


def _lineage_activity(conn: Connection, session_id: str, own: float) -> float:
    latest, seen, waiting = own, {session_id}, [session_id]
    while waiting:
        for child, activity in continuations(conn, waiting.pop()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                latest = max(latest, activity, key=_rank)
    return latest
