"""Search on PostgreSQL: words by a ``tsvector``, parts of texts by trigrams.

Both look at content, tool name and tool calls, in this order. Words are cut as FTS5 cuts them, at
everything that is neither letter nor digit; so punctuation becomes blanks before PostgreSQL's own
parser, which knows hosts, files and numbers, sees it. A ``tsvector`` holds a megabyte, so the
words of the first 200,000 characters count.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, func, literal_column, not_, or_, select
from sqlalchemy.dialects.postgresql import REGCONFIG, TSQUERY

from hermes_actor.providers.server.connection import ServerConnection
from hermes_actor.providers.server.tables import messages
from hermes_actor.providers.server.text_search import And, Node, Not, Or, Phrase
from hermes_actor.providers.server.values import KEPT_NUL, StoredText, encode_text
from hermes_actor.store.titles import escape_like

__all__ = [
    "PARTS",
    "WORDS",
    "headlines",
    "mark",
    "parts_match",
    "plain",
    "similar",
    "words_match",
    "words_query",
    "words_rank",
]

_WORDS_READ = 200_000


def mark(kept: str) -> ColumnElement[str]:
    """A mark of kept text, written so that an index on an expression can be recognised."""
    return literal_column(_quoted(kept), Text)


def _quoted(characters: str) -> str:
    return "E'" + "".join(f"\\x{ord(c):02x}" for c in characters) + "'"


# Punctuation, and what marks are made of. By a regular expression, because translate() looks for
# every character of a text among all of these, and is slower than the parser that follows.
_BLANKED = r"E'[!-/:-@[-`{-~\\x1a-\\x1c]+'"
_TEXT = (
    "coalesce(messages.content, '') || ' ' || coalesce(messages.tool_name, '') || ' ' ||"
    " coalesce(messages.tool_calls, '')"
)
_SPACED = f"regexp_replace(left({_TEXT}, {_WORDS_READ}), {_BLANKED}, ' ', 'g')"
_DDL_TEXT = _TEXT.replace("messages.", "")
WORDS = f"to_tsvector('english'::regconfig, {_SPACED.replace(_TEXT, _DDL_TEXT)})"
PARTS = f"split_part({_DDL_TEXT}, {_quoted(KEPT_NUL)}, 1)"

_ENGLISH = cast("english", REGCONFIG)
_words: ColumnElement[Any] = literal_column("messages.words")
_parts: ColumnElement[Any] = literal_column(f"split_part({_TEXT}, {_quoted(KEPT_NUL)}, 1)", Text)


def plain(column: ColumnElement[Any]) -> ColumnElement[str]:
    """*column* as it is kept, compared with patterns that are in that form already."""
    return cast(column, Text(collation="C"))


def words_query(tree: Node) -> ColumnElement[Any]:
    """The ``tsquery`` of a tree of words."""
    if isinstance(tree, Phrase):
        return _phrase(tree)
    if isinstance(tree, Not):
        dropped = func.tsquery_not(words_query(tree.dropped), type_=TSQUERY)
        return func.tsquery_and(words_query(tree.kept), dropped, type_=TSQUERY)
    join = func.tsquery_and if isinstance(tree, And) else func.tsquery_or
    first, *others = map(words_query, tree.parts)
    for other in others:
        first = join(first, other, type_=TSQUERY)
    return first


def _phrase(phrase: Phrase) -> ColumnElement[Any]:
    words = phrase.words
    if not phrase.prefix:
        make = func.plainto_tsquery if len(words) == 1 else func.phraseto_tsquery
        return make(_ENGLISH, " ".join(words), type_=TSQUERY)
    last = func.to_tsquery(_ENGLISH, f"'{words[-1]}':*", type_=TSQUERY)
    if len(words) == 1:
        return last
    before = func.phraseto_tsquery(_ENGLISH, " ".join(words[:-1]), type_=TSQUERY)
    return func.tsquery_phrase(before, last, type_=TSQUERY)


def words_match(query: ColumnElement[Any]) -> ColumnElement[bool]:
    return _words.op("@@", is_comparison=True)(query)


def words_rank(query: ColumnElement[Any]) -> ColumnElement[Any]:
    # 1: divided by the logarithm of the length, the nearest there is to bm25.
    return func.ts_rank(_words, query, 1)


def parts_match(tree: Node) -> ColumnElement[bool]:
    """Which messages hold the texts of a tree."""
    if isinstance(tree, Phrase):
        return _parts.ilike(f"%{escape_like(encode_text(tree.text) or '')}%", escape="\\")
    if isinstance(tree, Not):
        return and_(parts_match(tree.kept), not_(parts_match(tree.dropped)))
    join = or_ if isinstance(tree, Or) else and_
    return join(*map(parts_match, tree.parts))


_OPTIONS = "StartSel=>>>, StopSel=<<<, MaxWords=40, MinWords=20, FragmentDelimiter=..."


def headlines(conn: ServerConnection, tree: Node, ids: list[int]) -> dict[int, str]:
    """Snippets of hits whose words only have a stem in common with the query."""
    whole: ColumnElement[Any] = literal_column(_TEXT, Text)
    shown = func.ts_headline(_ENGLISH, whole, words_query(tree), _OPTIONS, type_=StoredText())
    rows = conn.tuples(select(messages.c.id, shown).where(messages.c.id.in_(ids)))
    return {message_id: str(snippet) for message_id, snippet in rows}


def similar(wanted: str) -> tuple[ColumnElement[bool], ColumnElement[Any]]:
    """Which messages hold something like *wanted*, and how near it comes."""
    nearness = func.word_similarity(wanted, _parts)
    return nearness >= 0.3, nearness
