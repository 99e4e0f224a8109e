"""The index for CJK terms of one or two characters, which have no trigram of their own.

It holds every CJK character of a message, and every two that stand side by side, as an array that a
function of the store cuts from the text. A term is in a message only if its pairs are, so the index
gives candidates, and the specified LIKE decides. Only messages that are not ASCII are in it.

The function names a high cost: the planner must not call it for every row when the index is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    and_,
    bindparam,
    literal_column,
    or_,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.types import encode_text
from hermes_actor.store.search.query import CJK_RANGES, contains_cjk, is_cjk

__all__ = ["INDEX", "STATEMENTS", "candidates", "is_there", "is_wanted"]

INDEX = "hermes_actor_messages_cjk"

_TEXT = (
    "coalesce({0}content, '') || ' ' || coalesce({0}tool_name, '') || ' ' ||"
    " coalesce({0}tool_calls, '')"
)
_NOT_ASCII = f"octet_length({_TEXT}) > char_length({_TEXT})"
_CUT = f"hermes_actor_cjk({_TEXT})"

_CLASS = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in CJK_RANGES)
# Two characters at a time: once from the first of a run, once from the second.
_PAIRS = r"regexp_replace({runs}, '([^ ])([^ ])', '\1\2 ', 'g')"
_FROM_SECOND = r"regexp_replace(runs, '(^| )([^ ])', '\1\2 ', 'g')"
_FUNCTION = (
    "CREATE OR REPLACE FUNCTION hermes_actor_cjk(whole text) RETURNS text[]"
    " LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE COST 10000 AS $$"
    " SELECT array_remove(array_remove(string_to_array(runs, NULL)"
    f" || string_to_array({_PAIRS.format(runs='runs')}, ' ')"
    f" || string_to_array({_PAIRS.format(runs=_FROM_SECOND)}, ' '), ''), ' ')"
    f" FROM regexp_replace(whole, '[^{_CLASS}]+', ' ', 'g') runs $$"
)
STATEMENTS = (
    _FUNCTION,
    f"CREATE INDEX IF NOT EXISTS {INDEX} ON messages USING gin ({_CUT.format('')})"
    f" WHERE {_NOT_ASCII.format('')}",
)
"""The statements that make function and index."""

_IS_THERE = text(f"SELECT to_regclass('{INDEX}') IS NOT NULL")
# While rows are copied into a store, it has no search index at all.
_IS_WANTED = text(
    f"SELECT to_regclass('{INDEX}') IS NULL"
    " AND to_regclass('hermes_actor_messages_words') IS NOT NULL"
)

_cut: ColumnElement[Any] = literal_column(_CUT.format("messages."), ARRAY(Text))
_not_ascii: ColumnElement[Any] = literal_column(f"({_NOT_ASCII.format('messages.')})")


def can_be_made(conn: Connection) -> bool:
    """Return True in a database that knows the characters of Unicode."""
    return conn.execute(text("SELECT current_setting('server_encoding')")).scalar() == "UTF8"


def is_wanted(conn: Connection) -> bool:
    """Return True for a complete store of an earlier version, which lacks the index."""
    return bool(conn.execute(_IS_WANTED).scalar()) and can_be_made(conn)


def is_there(conn: ServerConnection) -> bool:
    """Return True if the index can be used now."""
    return bool(conn.scalar(_IS_THERE))


def candidates(terms: Sequence[str]) -> ColumnElement[bool] | None:
    """Return a condition that every message with one of *terms* meets, answered by the index.

    ``None`` if a term has no CJK character: the index cannot tell then.
    """
    if not all(map(contains_cjk, terms)):
        return None
    found = [
        _cut.op("@>", is_comparison=True)(
            bindparam(None, _pieces(encode_text(term) or ""), type_=ARRAY(Text))
        )
        for term in terms
    ]
    return and_(_not_ascii, or_(*found))


def _pieces(term: str) -> list[str]:
    """Return what the index holds of *term*: its pairs, and characters that are in none."""
    marks = [is_cjk(ord(character)) for character in term]
    pairs = [at for at in range(len(term) - 1) if marks[at] and marks[at + 1]]
    paired = {place for at in pairs for place in (at, at + 1)}
    alone = [at for at, mark in enumerate(marks) if mark and at not in paired]
    return sorted({*(term[at : at + 2] for at in pairs), *(term[at] for at in alone)})
