"""The search of memories: words in rank order, then pieces of text wherever they occur."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hermes_actor.agents import words
from hermes_actor.agents.records import record
from hermes_actor.agents.rows import Row, Rows
from hermes_actor.agents.tables import TABLES
from hermes_actor.agents.values import scope_of
from hermes_actor.errors import BadValue

__all__ = ["Principal", "entry", "newest", "search", "visible", "with_old_words"]

_MEMORIES = TABLES["memories"]
_RECORD = "memory_key, content, metadata, grants, created_at, updated_at"

_AT_ONCE = 200
"""Conditions of one statement: servers and SQLite end at some nesting of them."""
_MOST_PIECES = 2_000

Principal = tuple[str | None, str | None]
"""User id and role of the caller, for whom memories are filtered."""


def visible(grants: Any, principal: Principal | None) -> bool:
    """Return True if the caller may read a memory with these *grants*."""
    if principal is None or not grants:
        return True
    user_id, role = principal
    if role == "owner":
        return True
    if user_id is None and role is None:
        return False
    callers = {"role": role, "user": user_id}
    return any(
        isinstance(one, dict)
        and (one.get("type") == "any" or _fits(callers, one.get("type"), one.get("value")))
        for one in grants
    )


def _fits(callers: dict[str, str | None], kind: Any, value: Any) -> bool:
    return kind in callers and value is not None and callers[kind] == value


def newest(
    rows: Rows, agent_id: str, prefix: str, limit: int, principal: Principal | None
) -> list[Row]:
    """Return the memories whose key begins with *prefix*, newest first."""
    values = {**scope_of(_MEMORIES, agent_id), "prefix": prefix, "length": len(prefix)}
    begins = " AND substr(memory_key, 1, :length) = :prefix" if prefix else ""
    if not prefix:
        del values["prefix"], values["length"]
    # Grants are in JSON: with a principal the cut comes after the filter.
    cut = f" LIMIT {limit}" if principal is None else ""
    found = rows.all(
        f"SELECT {_RECORD} FROM @memories WHERE agent_id = :agent_id{begins}"
        f" ORDER BY updated_at DESC, memory_key{cut}",
        values,
    )
    return _kept([entry(row) for row in found], limit, principal)


def search(
    rows: Rows, agent_id: str, query: str, limit: int, principal: Principal | None
) -> list[Row]:
    """Return the memories that match *query*, the best first.

    Raises :class:`BadValue` for more than 2,000 words.
    """
    if not query.strip():
        return []
    keys = _by_words(rows, agent_id, query)
    if len(keys) < limit or principal is not None:
        there = set(keys)
        keys += [key for key in _by_pieces(rows, agent_id, query) if key not in there]
    if principal is None:
        keys = keys[:limit]
    return _kept(_entries(rows, agent_id, keys), limit, principal)


def _by_words(rows: Rows, agent_id: str, query: str) -> list[str]:
    """Return the keys of the memories that hold every word of *query*, by rank."""
    lexemes = list(words.positions(query))
    if not lexemes:
        return []
    values: Row = dict(scope_of(_MEMORIES, agent_id))
    values |= {f"w{number}": f" {word}\t" for number, word in enumerate(lexemes[:_AT_ONCE])}
    holds = " AND ".join(
        f"{rows.position('content_lex', f':{name}')} > 0" for name in values if name != "agent_id"
    )
    found = rows.all(
        f"SELECT memory_key, updated_at, content_lex FROM @memories WHERE agent_id = :agent_id"
        f" AND {holds} ORDER BY updated_at DESC, memory_key",
        values,
    )
    rest = [f" {word}\t" for word in lexemes[_AT_ONCE:]]
    found = [row for row in found if all(word in row["content_lex"] for word in rest)]
    # A stable sort keeps the order of the query among equals.
    found.sort(key=lambda row: -words.rank(words.unpacked(row["content_lex"], lexemes)))
    return [row["memory_key"] for row in found]


def _by_pieces(rows: Rows, agent_id: str, query: str) -> list[str]:
    """Return the keys of the memories that hold any piece of *query*, those with most first."""
    pieces = words.pieces(query)
    if len(pieces) > _MOST_PIECES:
        raise BadValue(f"the query has {len(pieces)} words; the most is {_MOST_PIECES}")
    counted: Counter[tuple[str, str]] = Counter()
    for start in range(0, len(pieces), _AT_ONCE):
        for row in _holding_some(rows, agent_id, pieces[start : start + _AT_ONCE]):
            counted[row["memory_key"], row["updated_at"]] += int(row["hits"])
    # Sorts are stable: the last one decides first.
    best = sorted(counted, key=lambda one: one[0])
    best.sort(key=lambda one: one[1], reverse=True)
    best.sort(key=lambda one: -counted[one])
    return [key for key, _ in best]


def _holding_some(rows: Rows, agent_id: str, pieces: list[str]) -> list[Row]:
    """Return the memories that hold any of *pieces*, and how many of them each one holds."""
    values: Row = dict(scope_of(_MEMORIES, agent_id))
    values |= {f"p{number}": piece for number, piece in enumerate(pieces)}
    hits = " + ".join(
        f"(CASE WHEN {rows.position('key_fold', f':p{n}')} > 0"
        f" OR {rows.position('content_fold', f':p{n}')} > 0 THEN 1 ELSE 0 END)"
        for n in range(len(pieces))
    )
    return rows.all(
        f"SELECT memory_key, updated_at, hits FROM (SELECT memory_key, updated_at, {hits} AS hits"
        " FROM @memories WHERE agent_id = :agent_id) AS counted WHERE hits > 0",
        values,
    )


def _entries(rows: Rows, agent_id: str, keys: list[str]) -> list[Row]:
    """Return the memories of *keys*, in their order."""
    made: dict[str, Row] = {}
    for start in range(0, len(keys), 500):
        some = keys[start : start + 500]
        values = {**scope_of(_MEMORIES, agent_id), **{f"k{n}": k for n, k in enumerate(some)}}
        listed = ", ".join(f":k{number}" for number in range(len(some)))
        for row in rows.all(
            f"SELECT {_RECORD} FROM @memories WHERE agent_id = :agent_id"
            f" AND memory_key IN ({listed})",
            values,
        ):
            made[row["memory_key"]] = entry(row)
    return [made[key] for key in keys]


def _kept(entries: list[Row], limit: int, principal: Principal | None) -> list[Row]:
    return [one for one in entries if visible(one["grants"], principal)][:limit]


def entry(row: Row) -> Row:
    """Return a memory as callers get it: its key under ``id``."""
    made = record(_MEMORIES, row)
    made.pop("agent_id", None)
    return {"id": made.pop("memory_key"), **made}


def with_old_words(rows: Rows, after: tuple[str, str], limit: int) -> list[Row]:
    """Return the next memories of all agents, to be indexed again."""
    return rows.all(
        "SELECT agent_id, memory_key, content, updated_at FROM @memories"
        " WHERE agent_id > :agent OR (agent_id = :agent AND memory_key > :key)"
        f" ORDER BY agent_id, memory_key LIMIT {limit}",
        {"agent": after[0], "key": after[1]},
    )
