"""Hits of a full-text index by rank or by id, and how to rank many of them quickly.

Few hits are ranked, joined and cut in one statement. For many, ranking is all the cost: each hit
needs its document size. ``ORDER BY rank`` would make FTS5 rank twice, so the order is taken from
``+rank``, and only the page is joined. (Ranking ranges of rows side by side on several cores was
tried: SQLite's allocator serialises the threads, and the gain did not show.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hermes_actor.sqlite import Connection
from hermes_actor.store.rows import Row, chunks, dicts, lenient_text, placeholders, scalar
from hermes_actor.store.search.snippets import add_snippets, snippet_if_short

__all__ = ["COLUMNS", "Condition", "by_id", "by_rank", "count_hits"]

COLUMNS = """
    m.id, m.session_id, m.role, {snippet} AS snippet, m.timestamp, m.tool_name,
    s.source, s.model, s.started_at AS session_started
"""

_MANY = 2_000
"""Hits from which on ranking is worth a statement of its own."""

_FIRST_LOOK = 1_000
"""Best hits that are looked at before all of them are, when a filter is set."""

_CHUNK = 100


class Condition(NamedTuple):
    """An SQL condition on ``m`` and ``s``; ``"1"`` lets everything through."""

    sql: str
    parameters: list[Any]


def by_rank(
    conn: Connection,
    table: str,
    match: str,
    only: Condition,
    limit: int | None,
    offset: int | None,
    newest_first: bool = False,
) -> list[Row]:
    """Return one page of hits in a full-text table, best rank first, equal ranks by id.

    *newest_first*: the highest id of equal ranks first.
    """
    with lenient_text(conn):
        # A prefix is expensive to look up twice: its one statement must do everything.
        cheap = limit is not None and limit > 0 and offset is not None and "*" not in match
        if newest_first or (cheap and _has_many(conn, table, match)):
            assert limit is not None
            assert offset is not None
            return _page(conn, table, match, only, limit, max(offset, 0), newest_first)
        # CROSS JOIN pins the order of the loops: the index delivers hits by rank, and rows are
        # fetched only for the page. Any other order cuts a snippet for every hit.
        rows = dicts(
            conn,
            f"SELECT {COLUMNS.format(snippet=snippet_if_short(table))} FROM {table}"
            f" CROSS JOIN messages m ON m.id = {table}.rowid"
            f" CROSS JOIN sessions s ON s.id = m.session_id"
            f" WHERE {table} MATCH ? AND {only.sql} ORDER BY rank LIMIT ? OFFSET ?",
            (match, *only.parameters, limit, offset),
        )
        add_snippets(conn, table, match, rows)
        return rows


def by_id(
    conn: Connection,
    table: str,
    match: str,
    only: Condition,
    before: int | None,
    limit: int | None,
    offset: int | None,
) -> list[Row]:
    """Return one page of hits in a full-text table, the highest id first, below *before*.

    The index gives its rows in this order and from this place on, so a page costs what it shows.
    """
    with lenient_text(conn):
        rows = dicts(
            conn,
            f"SELECT {COLUMNS.format(snippet=snippet_if_short(table))} FROM {table}"
            f" CROSS JOIN messages m ON m.id = {table}.rowid"
            f" CROSS JOIN sessions s ON s.id = m.session_id"
            f" WHERE {table} MATCH ? AND {table}.rowid < ? AND {only.sql}"
            f" ORDER BY {table}.rowid DESC LIMIT ? OFFSET ?",
            (match, 2**63 - 1 if before is None else before, *only.parameters, limit, offset),
        )
        add_snippets(conn, table, match, rows)
        return rows


def _has_many(conn: Connection, table: str, match: str) -> bool:
    bounded = f"SELECT COUNT(*) FROM (SELECT 1 FROM {table} WHERE {table} MATCH ? LIMIT ?)"
    return bool(scalar(conn, bounded, (match, _MANY)) == _MANY)


def count_hits(conn: Connection, table: str, match: str, only: Condition) -> int:
    """Return the number of hits that pass the filter."""
    hits = (
        f"{table} CROSS JOIN messages m ON m.id = {table}.rowid"
        " CROSS JOIN sessions s ON s.id = m.session_id"
    )
    sql = f"SELECT COUNT(*) FROM {hits} WHERE {table} MATCH ? AND {only.sql}"
    return int(scalar(conn, sql, (match, *only.parameters)))


def _best(conn: Connection, table: str, match: str, count: int, newest_first: bool) -> list[int]:
    """Return the ids of the *count* best hits (all if negative), best first."""
    end = "rowid DESC" if newest_first else "rowid"
    rows = conn.execute(
        f"SELECT rowid FROM {table} WHERE {table} MATCH ? ORDER BY +rank, {end} LIMIT ?",
        (match, count),
    ).fetchall()
    return [message_id for (message_id,) in rows]


def _page(
    conn: Connection,
    table: str,
    match: str,
    only: Condition,
    limit: int,
    offset: int,
    newest_first: bool,
) -> list[Row]:
    wanted = offset + limit
    # The best thousand hold a page of what most filters let through.
    first_look = wanted if only.sql == "1" else max(_FIRST_LOOK, wanted)
    for look in (first_look, -1):
        best = _best(conn, table, match, look, newest_first)
        rows = _rows(conn, best, only, wanted)
        if len(rows) == wanted or len(best) < look:
            break
    rows = rows[offset:]
    add_snippets(conn, table, match, rows)
    return rows


def _rows(conn: Connection, ids: list[int], only: Condition, wanted: int) -> list[Row]:
    """Return the first *wanted* rows of *ids* that pass the filter, in order, without snippets."""
    passed: list[Row] = []
    for part in chunks(ids, _CHUNK):
        found = dicts(
            conn,
            f"SELECT {COLUMNS.format(snippet='NULL')} FROM messages m"
            f" JOIN sessions s ON s.id = m.session_id"
            f" WHERE m.id IN {placeholders(len(part))} AND {only.sql}",
            (*part, *only.parameters),
        )
        by_id = {row["id"]: row for row in found}
        passed += [by_id[message_id] for message_id in part if message_id in by_id]
        if len(passed) >= wanted:
            break
    return passed[:wanted]
