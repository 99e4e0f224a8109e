"""Hits of a full-text index by rank, and how to rank many of them quickly.

Few hits are ranked, joined and cut in one statement. For many, ranking is all the cost: each hit
needs its document size. ``ORDER BY rank`` would make FTS5 rank twice, so the order is taken from
``+rank``; only the page is joined; and ranges of rows are ranked side by side on several cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from hermes_actor.store.layout import layout_of
from hermes_actor.store.rows import Row, chunks, dicts, in_list, scalar
from hermes_actor.store.text_query import Plan, Route

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection

__all__ = ["COLUMNS", "Condition", "Spread", "by_rank"]

COLUMNS = """
    m.id, m.session_id, m.role, {snippet} AS snippet, m.timestamp, m.tool_name,
    s.source, s.model, s.started_at AS session_started
"""

_MANY = 2_000
"""Hits from which on ranking is worth a statement of its own."""

_HUGE = 8_000
"""Hits from which on it is worth several cores: each has to warm up a page cache of its own."""

_FIRST_LOOK = 1_000
"""Best hits that are looked at before all of them are, when a filter is set."""

_CHUNK = 100
_MAX_PARTS = 4

_Part: TypeAlias = tuple[object, list[tuple[float, int]]]
Spread: TypeAlias = Callable[[Sequence[Callable[["Connection"], _Part]]], list[_Part]]
"""Runs functions side by side, each in a snapshot of its own, and returns their results."""


class Condition(NamedTuple):
    """An SQL condition on ``m`` and ``s``; ``"1"`` lets everything through."""

    sql: str
    parameters: list[Any]


def by_rank(
    conn: Connection,
    plan: Plan,
    only: Condition,
    limit: int | None,
    offset: int | None,
    spread: Spread,
) -> list[Row]:
    """One page of hits, best rank first, equal ranks by id."""
    table = "messages_fts" if plan.route is Route.WORDS else "messages_fts_trigram"
    # A prefix is expensive to look up anew: its one statement must do everything.
    if limit is not None and limit > 0 and offset is not None and "*" not in plan.match:
        hits = _count(conn, table, plan.match)
        if hits >= _MANY:
            ranking = _Ranking(conn, table, plan.match, spread if hits >= _HUGE else None)
            return _page(ranking, only, limit, max(offset, 0))
    # CROSS JOIN pins the order of the loops: the index delivers hits by rank, and rows are
    # fetched only for the page. Any other order cuts a snippet for every hit.
    return dicts(
        conn,
        f"SELECT {COLUMNS.format(snippet=_snippet(table))} FROM {table}"
        f" CROSS JOIN messages m ON m.id = {table}.rowid"
        f" CROSS JOIN sessions s ON s.id = m.session_id"
        f" WHERE {table} MATCH ? AND {only.sql} ORDER BY rank LIMIT ? OFFSET ?",
        (plan.match, *only.parameters, limit, offset),
    )


def _snippet(table: str) -> str:
    return f"snippet({table}, 0, '>>>', '<<<', '...', 40)"


def _count(conn: Connection, table: str, match: str) -> int:
    """How many hits there are, counted no further than matters."""
    bounded = f"SELECT COUNT(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?)"
    return int(scalar(conn, bounded, (match, _HUGE)))


class _Ranking(NamedTuple):
    """One question to one index, and the means to rank on several cores if it has many hits."""

    conn: Connection
    table: str
    match: str
    spread: Spread | None

    def best(self, count: int) -> list[int]:
        """Ids of the *count* best hits (all if negative), best first."""
        results = self._side_by_side(count) if self.spread else []
        # Ranks of different snapshots must not be mixed.
        if not results or any(seen != _state(self.conn) for seen, _ in results):
            results = [self._rank(None, None, count)(self.conn)]
        ranked = sorted(hit for _, hits in results for hit in hits)
        return [message_id for _, message_id in (ranked if count < 0 else ranked[:count])]

    def _side_by_side(self, count: int) -> list[_Part]:
        newest = scalar(self.conn, "SELECT MAX(id) FROM messages") or 0
        parts = min(_cores(), _MAX_PARTS)
        if parts == 1 or not layout_of(self.conn).watermark:
            return []
        assert self.spread is not None
        bounds = [newest * part // parts for part in range(parts + 1)]
        return self.spread([self._rank(low, high, count) for low, high in pairwise(bounds)])

    def _rank(self, low: int | None, high: int | None, count: int) -> Callable[[Connection], _Part]:
        within = "" if low is None else " AND rowid > ? AND rowid <= ?"
        sql = (
            f"SELECT rank, rowid FROM {self.table} WHERE {self.table} MATCH ?{within}"
            f" ORDER BY +rank, rowid LIMIT ?"
        )
        parameters = (self.match, count) if low is None else (self.match, low, high, count)
        return lambda conn: (_state(conn), conn.execute(sql, parameters).fetchall())


def _page(ranking: _Ranking, only: Condition, limit: int, offset: int) -> list[Row]:
    wanted = offset + limit
    # The best thousand hold a page of what most filters let through.
    first_look = wanted if only.sql == "1" else max(_FIRST_LOOK, wanted)
    for look in (first_look, -1):
        best = ranking.best(look)
        rows = _rows(ranking.conn, best, only, wanted)
        if len(rows) == wanted or len(best) < look:
            break
    rows = rows[offset:]
    snippets: dict[int, str] = {}
    table = ranking.table
    for part in chunks([row["id"] for row in rows], _CHUNK):
        snippets |= dict(
            ranking.conn.execute(
                f"SELECT rowid, {_snippet(table)} FROM {table}"
                f" WHERE {table} MATCH ? AND rowid IN {in_list(len(part))}",
                (ranking.match, *part),
            ).fetchall()
        )
    for row in rows:
        row["snippet"] = snippets[row["id"]]
    return rows


def _rows(conn: Connection, ids: list[int], only: Condition, wanted: int) -> list[Row]:
    """The first *wanted* rows of *ids* that pass the filter, in order; snippets come later."""
    passed: list[Row] = []
    for part in chunks(ids, _CHUNK):
        found = dicts(
            conn,
            f"SELECT {COLUMNS.format(snippet='NULL')} FROM messages m"
            f" JOIN sessions s ON s.id = m.session_id"
            f" WHERE m.id IN {in_list(len(part))} AND {only.sql}",
            (*part, *only.parameters),
        )
        by_id = {row["id"]: row for row in found}
        passed += [by_id[message_id] for message_id in part if message_id in by_id]
        if len(passed) >= wanted:
            break
    return passed[:wanted]


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _state(conn: Connection) -> object:
    """What tells that two snapshots hold the same messages and the same index."""
    if not layout_of(conn).watermark:
        return None
    return conn.execute(
        "SELECT value FROM hermes_actor_meta WHERE key IN ('commit_no', 'watermark') ORDER BY key"
    ).fetchall()
