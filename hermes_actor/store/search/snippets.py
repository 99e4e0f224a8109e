"""Snippets of hits, cut by FTS5; from a part of the text where it holds very many hits.

The time that ``snippet()`` takes grows with the square of the hits in a text, and nothing can
interrupt it: of a text that repeats one word 300,000 times it takes hours. So long texts are looked
at first, and of a crowded one only the part around the first hit is given to it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from hermes_actor.sqlite import Connection, connect_alone
from hermes_actor.store.rows import Row, chunks, placeholders

__all__ = ["CUT", "add_snippets", "cut_safely", "snippet_if_short"]

CUT = "snippet({table}, 0, '>>>', '<<<', '...', 40)"

_SHORT = 4_096
"""Characters of texts that are cut at once: they can hold half as many hits, which takes 0.1 s."""

_CROWDED = 1_000
"""Hits from which on a text is cut from a part of it."""

_BEFORE, _PART = 200, 2_000
"""Characters of such a part before the first hit, and in all."""

_CHUNK = 100

_WORD = re.compile(r"\w+")
_MARKS = re.compile("[\u0300-\u036f]+")
_OPERATORS = {"and", "or", "not", "near"}


def snippet_if_short(table: str) -> str:
    """Return SQL for the snippet of a short text, and NULL for others: see :func:`add_snippets`."""
    return f"CASE WHEN length({table}.content) <= {_SHORT} THEN {CUT.format(table=table)} END"


def add_snippets(conn: Connection, table: str, match: str, rows: Sequence[Row]) -> None:
    """Cut the snippets of those *rows* of a full-text table that have none yet."""
    missing = {row["id"]: row for row in rows if row["snippet"] is None}
    for part in chunks([*missing], _CHUNK):
        held = placeholders(len(part))
        sql = f"SELECT rowid, content FROM {table} WHERE rowid IN {held} AND length(content) > ?"
        crowded = _crowded(match, conn.execute(sql, (*part, _SHORT)).fetchall())
        rest = [one for one in part if one not in crowded]
        sql = (
            f"SELECT rowid, {CUT.format(table=table)} FROM {table}"
            f" WHERE {table} MATCH ? AND rowid IN {placeholders(len(rest))}"
        )
        found = dict(conn.execute(sql, (match, *rest)).fetchall()) if rest else {}
        if crowded:
            trigrams = table.endswith("trigram")
            found |= _cut_parts(match, crowded, trigrams=trigrams)
        for number in part:
            missing[number]["snippet"] = found[number]


def cut_safely(match: str, texts: Iterable[tuple[int, str]], *, trigrams: bool) -> dict[int, str]:
    """Return the snippet of each text, by its number; a text that FTS5 would not find has none."""
    known = dict(texts)
    crowded = _crowded(match, known.items())
    whole = {number: text for number, text in known.items() if number not in crowded}
    return _cut(match, whole, trigrams=trigrams) | _cut_parts(match, crowded, trigrams=trigrams)


def _crowded(match: str, texts: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Return the part to be cut of each text that may hold too many hits."""
    words = {_folded(word) for word in _WORD.findall(match)} - _OPERATORS
    parts = {}
    for number, text in texts:
        if len(text) > _SHORT and _count(words, _folded(text)) > _CROWDED:
            parts[number] = _part(words, text)
    return parts


def _count(words: Iterable[str], text: str) -> int:
    # At least as many as there are hits: each hit of a phrase holds its words.
    return sum(text.count(word) for word in words)


def _folded(text: str) -> str:
    """Return *text* as the tokenizer compares it, or nearly: small letters without accents."""
    if not text.isascii():
        text = _MARKS.sub("", unicodedata.normalize("NFD", text))
    return text.lower()


def _part(words: Iterable[str], text: str) -> str:
    low = text.lower()
    start = min((place for word in words if (place := low.find(word)) >= 0), default=0)
    # A small letter may be two: the place is near enough, and never behind the end.
    start = max(0, min(start, len(text)) - _BEFORE)
    return text[start : start + _PART]


def _cut_parts(match: str, parts: Mapping[int, str], *, trigrams: bool) -> dict[int, str]:
    # A part need not hold all that the whole text was found for: then it is shown as it is.
    plain = {number: f"...{part[_BEFORE : _BEFORE * 2]}..." for number, part in parts.items()}
    return plain | _cut(match, parts, trigrams=trigrams)


def _cut(match: str, texts: Mapping[int, str], *, trigrams: bool) -> dict[int, str]:
    """Return the snippets of *texts* from an index in memory."""
    if not texts:
        return {}
    with closing(connect_alone()) as conn:
        tokenizer = ", tokenize='trigram'" if trigrams else ""
        conn.execute(f"CREATE VIRTUAL TABLE hits USING fts5(content{tokenizer})")
        conn.executemany("INSERT INTO hits(rowid, content) VALUES (?, ?)", texts.items())
        sql = f"SELECT rowid, {CUT.format(table='hits')} FROM hits WHERE hits MATCH ?"
        return dict(conn.execute(sql, (match,)).fetchall())
