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
    literal_column,
    not_,
    or_,
)
from sqlalchemy.dialects.mysql import LONGTEXT, match

from hermes_actor.providers.sql.query_tree import (
    Node,
    Not,
    Or,
    Phrase,
    looked_for,
    words_of,
)
from hermes_actor.providers.sql.tables import messages
from hermes_actor.providers.sql.types import KEPT_NUL, like_literal
from hermes_actor.store.sessions.title_text import escape_like

__all__ = [
    "ADD_WORDS", "has_words", "messages_with_words", "part_match", "words_column", "words_match",
    "words_rank",
]  # fmt: skip

ADD_WORDS = (
    "ALTER TABLE messages ADD COLUMN words LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,"
    " ADD FULLTEXT INDEX hermes_actor_messages_words (words)"
)

messages_with_words = messages.to_metadata(MetaData())
"""The table of messages for inserts: with the column ``words``."""
messages_with_words.append_column(Column("words", LONGTEXT()))
_words: ColumnElement[Any] = literal_column("messages.words")

_SHORT = 4
"""Words below this length get the mark: servers leave them out below three, or below four."""
_LONGEST = 80
"""Characters of a word that count; servers index up to 84."""
_MARK = "__"
_LONGEST_PHRASE = 50
"""Words of a phrase that FULLTEXT is asked for; servers refuse some hundred."""
# Words that InnoDB leaves out by default, and that are not short.
_LEFT_OUT = frozenset({"about", "from", "that", "this", "what", "when", "where", "will", "with"})


def has_words(conn: Connection) -> bool:
    """Return True if ``messages`` has the column ``words``."""
    return any(column["name"] == "words" for column in inspect(conn).get_columns("messages"))


def _marked(word: str) -> str:
    word = word[:_LONGEST]
    return word + _MARK if len(word) < _SHORT or word in _LEFT_OUT else word


def words_column(values: Mapping[str, Any]) -> str:
    """Return the value of the column ``words`` for a message."""
    found: list[str] = []
    for name in ("content", "tool_name", "tool_calls"):
        value = values.get(name)
        if isinstance(value, str):
            found += words_of(value)
    return " ".join(map(_marked, found))


def words_match(tree: Node) -> ColumnElement[bool]:
    """Return a condition: messages that match a tree of words.

    All phrases of one node are one expression for the server: as conditions of their own, some
    hundred of them overrun its stack.
    """
    if isinstance(tree, Not):
        return and_(words_match(tree.kept), not_(words_match(tree.dropped)))
    parts = (tree,) if isinstance(tree, Phrase) else tree.parts
    phrases = [part for part in parts if isinstance(part, Phrase)]
    simple = [phrase for phrase in phrases if not _is_read_again(phrase)]
    needed = "" if isinstance(tree, Or) else "+"
    conditions = [words_match(part) for part in parts if not isinstance(part, Phrase)]
    conditions += [_words_in_a_row(phrase) for phrase in phrases if _is_read_again(phrase)]
    if simple:
        conditions.append(_against(" ".join(needed + _written(one) for one in simple)) > 0)
    return or_(*conditions) if isinstance(tree, Or) else and_(*conditions)


def words_rank(tree: Node) -> ColumnElement[Any]:
    """Return a rank: how often the phrases occur, rare ones counting more."""
    return _against(" ".join(map(_written, looked_for(tree))))


def _against(wanted: str) -> ColumnElement[Any]:
    return match(_words, against=wanted).in_boolean_mode()


def _written(phrase: Phrase) -> str:
    """Return a phrase in FULLTEXT syntax; one that FULLTEXT cannot check loses its order."""
    *before, last = phrase.words
    if _is_read_again(phrase) or phrase.prefix:
        return " ".join([*map(_marked, before), f"{last[:_LONGEST]}{'*' * phrase.prefix}"])
    if before:
        return f'"{" ".join(map(_marked, phrase.words))}"'
    return _marked(last)  # a phrase of one word would be looked for in the text again


def _is_read_again(phrase: Phrase) -> bool:
    """Return True if FULLTEXT cannot check the order of the words.

    It supports neither a phrase that ends in a prefix nor one of many words.
    """
    return len(phrase.words) > (1 if phrase.prefix else _LONGEST_PHRASE)


def _words_in_a_row(phrase: Phrase) -> ColumnElement[bool]:
    """Return a condition: FULLTEXT finds messages with all words, LIKE those with them in a row."""
    *before, last = phrase.words
    end = last[:_LONGEST] if phrase.prefix else f"{_marked(last)} "
    row = escape_like(" ".join([*map(_marked, before), end]))
    in_a_row = func.concat(" ", _words, " ", type_=Text()).like(f"% {row}%", escape="\\")
    wanted = [*map(_marked, before), f"{last[:_LONGEST]}*" if phrase.prefix else _marked(last)]
    return and_(_against(" ".join(f"+{word}" for word in dict.fromkeys(wanted))) > 0, in_a_row)


def part_match(part: str) -> ColumnElement[bool]:
    """Return a condition: messages that hold the text *part*, in any searched column."""
    joined = func.concat_ws(
        " ",
        func.coalesce(messages.c.content, ""),
        func.coalesce(messages.c.tool_name, ""),
        func.coalesce(messages.c.tool_calls, ""),
    )
    seen = func.lower(func.substring_index(joined, KEPT_NUL, 1), type_=Text())
    return seen.like(func.lower(f"%{like_literal(part)}%"), escape="\\")
