"""Search on MySQL and MariaDB: words by FULLTEXT, parts of texts by LIKE.

FULLTEXT has a minimal length of words, a list of words that it leaves out, and takes ``_`` for a
letter. So it is given a column of its own, ``words``, in which a message stands as the words that
FTS5 sees; short and left-out ones have a mark behind them. The same is done to a query, and so
all words count on every server, whatever its settings are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    MetaData,
    Text,
    and_,
    func,
    inspect,
    literal,
    literal_column,
    not_,
    or_,
)
from sqlalchemy.dialects.mysql import LONGTEXT, match

from hermes_actor.providers.server.tables import messages
from hermes_actor.providers.server.text_search import Node, Not, Or, Phrase, words_of
from hermes_actor.providers.server.values import KEPT_NUL, encode_text
from hermes_actor.store.titles import escape_like

__all__ = [
    "ADD_WORDS",
    "has_words",
    "messages_with_words",
    "part_match",
    "words_column",
    "words_match",
    "words_rank",
]

ADD_WORDS = (
    "ALTER TABLE messages ADD COLUMN words LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,"
    " ADD FULLTEXT INDEX hermes_actor_messages_words (words)"
)

messages_with_words = messages.to_metadata(MetaData())
"""The table as rows are inserted into it."""
messages_with_words.append_column(Column("words", LONGTEXT()))
_words: ColumnElement[Any] = literal_column("messages.words")

_SHORT = 4
"""Words below this length get the mark: servers leave them out below three, or below four."""
_LONGEST = 80
"""Characters of a word that count; servers index up to 84."""
_MARK = "__"
# What InnoDB leaves out if nobody has told it otherwise, and is not short.
_LEFT_OUT = frozenset({"about", "from", "that", "this", "what", "when", "where", "will", "with"})


def has_words(conn: Connection) -> bool:
    return any(column["name"] == "words" for column in inspect(conn).get_columns("messages"))


def _marked(word: str) -> str:
    word = word[:_LONGEST]
    return word + _MARK if len(word) < _SHORT or word in _LEFT_OUT else word


def words_column(values: Mapping[str, Any]) -> str:
    """What the column ``words`` holds for a message."""
    found: list[str] = []
    for name in ("content", "tool_name", "tool_calls"):
        value = values.get(name)
        if isinstance(value, str):
            found += words_of(value)
    return " ".join(map(_marked, found))


def words_match(tree: Node) -> ColumnElement[bool]:
    if isinstance(tree, Phrase):
        return _against(tree) > 0
    if isinstance(tree, Not):
        return and_(words_match(tree.kept), not_(words_match(tree.dropped)))
    join = or_ if isinstance(tree, Or) else and_
    return join(*map(words_match, tree.parts))


def words_rank(tree: Node) -> ColumnElement[Any]:
    """The sum over all phrases that are looked for."""
    if isinstance(tree, Phrase):
        return _against(tree)
    parts = (tree.kept,) if isinstance(tree, Not) else tree.parts
    total: ColumnElement[Any] = literal(0.0)
    for part in parts:
        total = total + words_rank(part)
    return total


def _against(phrase: Phrase) -> ColumnElement[Any]:
    *before, last = phrase.words
    if phrase.prefix:
        quoted = f'+"{" ".join(map(_marked, before))}" ' if before else ""
        wanted = f"{quoted}+{last[:_LONGEST]}*"
    elif before:
        wanted = f'"{" ".join(map(_marked, phrase.words))}"'
    else:
        wanted = f"+{_marked(last)}"  # a phrase of one word would be looked for in the text again
    return match(_words, against=wanted).in_boolean_mode()


def part_match(phrase: Phrase) -> ColumnElement[bool]:
    """Which messages hold a text, in any of the columns that are searched."""
    joined = func.concat_ws(
        " ",
        func.coalesce(messages.c.content, ""),
        func.coalesce(messages.c.tool_name, ""),
        func.coalesce(messages.c.tool_calls, ""),
    )
    seen = func.lower(func.substring_index(joined, KEPT_NUL, 1), type_=Text())
    wanted = escape_like((encode_text(phrase.text) or "").lower())
    return seen.like(f"%{wanted}%", escape="\\")
