"""Search on PostgreSQL: words by a ``tsvector``, parts of texts by trigrams.

Both look at content, tool name and tool calls, in this order. The words of a message are the ones
that FTS5 sees: they are cut here, for messages and queries alike, and PostgreSQL gets finished
lexemes. Its own parser knows hosts, files and numbers, its ``english`` configuration passes over
common words and keeps accents; a query that is analysed in another way than the text finds too
little or too much.

Every word stands in the column ``words`` with weight A. The English stems of the words are added
with weight D, so that ``run`` finds ``running``. Stems only ever add hits: phrases, prefixes and
what a query excludes are compared with the words themselves.

A ``tsvector`` holds a megabyte, so the words of the first 200,000 characters count, and it knows
16,383 positions, so phrases are found among the first words of that number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    MetaData,
    Text,
    cast,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import REGCONFIG, TSQUERY, TSVECTOR
from sqlalchemy.types import UserDefinedType

from hermes_actor.providers.sql.connection import ServerConnection
from hermes_actor.providers.sql.query_tree import (
    And,
    Node,
    Not,
    Phrase,
    looked_for,
    words_of,
)
from hermes_actor.providers.sql.tables import messages
from hermes_actor.providers.sql.types import KEPT_NUL, StoredText, encode_text, like_literal

__all__ = [
    "PARTS", "Stems", "headlines", "mark", "messages_with_words", "part_match", "plain",
    "similar", "words_column", "words_match", "words_query", "words_rank",
]  # fmt: skip

_CHARACTERS_READ = 200_000
_LONGEST = 500
"""Characters of a word that count; a lexeme has at most 2,046 bytes."""
_LAST_POSITION = 16_383
_POSITIONS = 255
"""Positions of one lexeme that PostgreSQL keeps."""


def mark(kept: str) -> ColumnElement[str]:
    """Return an escape mark as an SQL literal, spelt as in the index on the same expression."""
    return literal_column(_quoted(kept), Text)


def _quoted(characters: str) -> str:
    return "E'" + "".join(f"\\x{ord(c):02x}" for c in characters) + "'"


_TEXT = (
    "coalesce(messages.content, '') || ' ' || coalesce(messages.tool_name, '') || ' ' ||"
    " coalesce(messages.tool_calls, '')"
)
PARTS = f"split_part({_TEXT.replace('messages.', '')}, {_quoted(KEPT_NUL)}, 1)"

_ENGLISH = cast("english", REGCONFIG)
_words: ColumnElement[Any] = literal_column("messages.words")
_parts: ColumnElement[Any] = literal_column(f"split_part({_TEXT}, {_quoted(KEPT_NUL)}, 1)", Text)


_WEIGHT_D: ColumnElement[Any] = literal_column("'D'")


class _Words(UserDefinedType[Any]):
    """A ``tsvector`` that is given as its words, and gets their stems on its way in."""

    cache_ok = True

    def get_col_spec(self, **_options: Any) -> str:
        return "tsvector"

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        words: ColumnElement[Any] = cast(bindvalue, TSVECTOR)
        each_once = func.array_to_string(func.tsvector_to_array(words), literal_column("' '"))
        return words.op("||")(func.setweight(func.to_tsvector(_ENGLISH, each_once), _WEIGHT_D))


messages_with_words = messages.to_metadata(MetaData())
"""The table of messages for inserts: with the column ``words``."""
messages_with_words.append_column(Column("words", _Words()))


def words_column(values: Mapping[str, Any]) -> str:
    """Return the words of a message with their positions, in the syntax of a ``tsvector``."""
    texts = (values.get(name) for name in ("content", "tool_name", "tool_calls"))
    whole = " ".join(text for text in texts if isinstance(text, str))
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words_of(whole[:_CHARACTERS_READ]), 1):
        places.setdefault(word[:_LONGEST], []).append(min(place, _LAST_POSITION))
    # Words are letters and digits: nothing in them has to be escaped.
    return " ".join(
        f"'{word}':{'A,'.join(map(str, found[:_POSITIONS]))}A" for word, found in places.items()
    )


def plain(column: ColumnElement[Any]) -> ColumnElement[str]:
    """Return *column* as stored text, for patterns that are in the stored form already."""
    return cast(column, Text(collation="C"))


class Stems:
    """English stems of words, fetched from the server once for each word."""

    _MOST = 10_000

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def of(self, conn: ServerConnection, tree: Node) -> Mapping[str, str | None]:
        """Return the known stems, those of *tree* among them; ``None`` for a word without one."""
        wanted = {phrase.words[0] for phrase in looked_for(tree) if _has_stem(phrase)}
        missing = sorted(wanted - self._known.keys())
        if missing:
            if len(self._known) + len(missing) > self._MOST:
                self._known = {}
            self._known = {**self._known, **dict(conn.tuples(_STEMS, {"words": missing}))}
        return self._known


_STEMS = text(
    "SELECT word, (ts_lexize('english_stem', word))[1] FROM unnest(CAST(:words AS text[])) word"
)


def _has_stem(phrase: Phrase) -> bool:
    """Return True if *phrase* is one word, and one that may be English."""
    word = phrase.words[0]
    return len(phrase.words) == 1 and not phrase.prefix and word.isascii() and len(word) < _LONGEST


def words_query(tree: Node, stems: Mapping[str, str | None]) -> ColumnElement[Any]:
    """Return the ``tsquery`` of a tree of words, as one bound text of any length."""
    return cast(_written(tree, stems.get), TSQUERY)


def _written(tree: Node, stem: Callable[[str], str | None]) -> str:
    if isinstance(tree, Phrase):
        return _phrase(tree, stem)
    if isinstance(tree, Not):
        return f"({_written(tree.kept, stem)} & !({_written(tree.dropped, _no_stem)}))"
    joint = " & " if isinstance(tree, And) else " | "
    return _balanced([_written(part, stem) for part in tree.parts], joint)


def _no_stem(_word: str) -> None:
    return None


def _balanced(parts: list[str], joint: str) -> str:
    """Return *parts* joined in pairs, so that the server's recursion stays shallow."""
    while len(parts) > 1:
        parts = [f"({joint.join(parts[place : place + 2])})" for place in range(0, len(parts), 2)]
    return parts[0]


def _phrase(phrase: Phrase, stem: Callable[[str], str | None]) -> str:
    words = [f"'{word[:_LONGEST]}':A" for word in phrase.words]
    if phrase.prefix:
        words[-1] = words[-1].removesuffix("A") + "*A"
    elif _has_stem(phrase) and (found := stem(phrase.words[0])):
        return f"({words[0]} | '{found}':D)"
    return f"({' <-> '.join(words)})"


def words_match(query: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return a condition: the words of a message match *query*, a ``tsquery``."""
    return _words.op("@@", is_comparison=True)(query)


def words_rank(query: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the rank of a message for *query*; higher is better."""
    # 1: divided by the logarithm of the length, the nearest there is to bm25.
    return func.ts_rank(_words, query, 1)


def part_match(part: str) -> ColumnElement[bool]:
    """Return a condition: messages that hold the text *part*, in any searched column."""
    return _parts.ilike(f"%{like_literal(part)}%", escape="\\")


_OPTIONS = "StartSel=>>>, StopSel=<<<, MaxWords=40, MinWords=20, FragmentDelimiter=..."


def headlines(conn: ServerConnection, tree: Node, ids: list[int]) -> dict[int, str]:
    """Return snippets, by id, of hits that only share a stem with the query."""
    whole: ColumnElement[Any] = literal_column(_TEXT, Text)
    wanted = " | ".join(f"'{phrase.words[0]}'" for phrase in looked_for(tree) if _has_stem(phrase))
    query = func.to_tsquery(_ENGLISH, wanted, type_=TSQUERY)
    shown = func.ts_headline(_ENGLISH, whole, query, _OPTIONS, type_=StoredText())
    rows = conn.tuples(select(messages.c.id, shown).where(messages.c.id.in_(ids)))
    return {message_id: str(snippet) for message_id, snippet in rows}


def similar(wanted: str) -> tuple[ColumnElement[bool], ColumnElement[Any]]:
    """Return a condition and a distance: messages that hold something like *wanted*."""
    nearness = func.word_similarity(encode_text(wanted), _parts)
    return nearness >= 0.3, nearness
