"""The words of a text: tokens, stems and positions, and the rank of a text for a query.

All providers store the words that this module makes, so a search gives the same list everywhere.
Tokens, stop words, stems and ranks are those of PostgreSQL's English search.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from hermes_actor.errors import MissingDriver

__all__ = ["columns", "folded", "packed", "pieces", "positions", "rank", "unpacked"]

_STOP_WORDS = """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself
    she her hers herself it its itself they them their theirs themselves what which who whom
    this that these those am is are was were be been being have has had having do does did doing
    a an the and but if or because as until while of at by for with about against between into
    through during before after above below to from up down in out on off over under again
    further then once here there when where why how all any both each few more most other some
    such no nor not only own same so than too very s t can will just don should now
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())

_MOST_POSITIONS, _LAST_POSITION = 256, 16_383
_LONGEST = 500
_TOKEN = re.compile(
    r"(?P<mail>[\w.+-]+@[^\W_][\w-]*(?:\.[\w-]+)+)"
    r"|(?:[a-z][a-z0-9+.-]*://)(?P<url>[^\W_][\w.-]*(?::\d+)?(?:/[^\s\"'<>]*)?)"
    r"|(?P<path>/?[^\W_][\w.-]*(?:/[\w.-]+)+/?)"
    r"|(?P<number>(?<![^\W_])-?\d+\.\d+(?![\w.]))"
    r"|(?P<host>[^\W_][^\W_-]*(?:-[^\W_]+)*(?:\.[^\W_]+)+)"
    r"|(?P<hyphen>[^\W\d_][^\W_]*(?:-[^\W\d_][^\W_]*)+)"
    r"|(?P<integer>-?\d+(?![^\W\d_]))"
    r"|(?P<word>[^\W_]+)",
    re.IGNORECASE,
)
_SPLIT = re.compile(r"[\s/,;:]+")


def _tokens(text: str) -> Iterator[tuple[str, bool]]:
    """Give every token, lower-case, and whether it is a word to be stemmed."""
    for found in _TOKEN.finditer(text):
        kind, token = found.lastgroup, found[found.lastgroup or 0].lower()
        if kind == "url":
            host, slash, path = token.partition("/")
            if slash:
                yield token, False
            yield host, False
            if path:
                yield f"/{path}", False
        elif kind == "path":
            yield token.rstrip("./"), False  # without the end of a sentence
        elif kind == "hyphen":
            yield token, True
            for part in token.split("-"):
                yield part, part.isalpha()
        else:
            yield token, kind == "word" and token.isalpha()


def positions(text: str) -> dict[str, list[int]]:
    """Return the words of *text* with their positions; stop words use up one and are left out."""
    found: dict[str, list[int]] = {}
    for place, (token, is_word) in enumerate(_tokens(text), 1):
        if (is_word and token in STOP_WORDS) or len(token) > _LONGEST:
            continue
        places = found.setdefault(_stem(token) if is_word else token, [])
        if len(places) < _MOST_POSITIONS and (not places or places[-1] < _LAST_POSITION):
            places.append(min(place, _LAST_POSITION))
    return found


def packed(text: str) -> str:
    """Return the words of *text* with positions, as one column holds them.

    A word stands between a blank and a tab, so a plain search for both finds it and nothing else.
    """
    words = positions(text).items()
    return "".join(f" {word}\t{','.join(map(str, places))}" for word, places in words) + " "


def unpacked(column: str, words: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of *words*, which are in *column*."""
    found = {}
    for word in words:
        start = column.index(f" {word}\t") + len(word) + 2
        found[word] = [int(n) for n in column[start : column.index(" ", start)].split(",")]
    return found


def rank(found: Mapping[str, Sequence[int]]) -> float:
    """Return the rank of a text that has all words of a query at these positions."""
    lists = list(found.values())
    if len(lists) == 1:
        value = 0.1 * sum(1 / place**2 for place in range(1, len(lists[0]) + 1)) / 1.64493406685
        return _rounded(value)
    kept, any_pair = 1.0, False
    for number, ours in enumerate(lists):
        for theirs in lists[number + 1 :]:
            for distance in (abs(p - q) for p in ours for q in theirs):
                if distance:
                    kept *= 1 - _weight(distance)
                    any_pair = True
    return _rounded(1 - kept) if any_pair else 0.0


@cache
def _weight(distance: int) -> float:
    near = 1 / (1.005 + 0.05 * math.exp(distance / 1.5 - 2)) if distance <= 100 else 1e-30
    return math.sqrt(0.01 * near)


def _rounded(value: float) -> float:
    """Return *value* with seven digits: PostgreSQL computes in single precision."""
    return float(f"{value:.7g}")


def pieces(query: str) -> list[str]:
    """Return the parts of *query* that are looked for as they are, in lower case."""
    return [folded(piece) for piece in _SPLIT.split(query.strip()) if piece]


def folded(text: str) -> str:
    """Return *text* in lower case, character by character: its length never changes."""
    if text.isascii():
        return text.lower()
    return "".join(low if len(low := char.lower()) == 1 else char for char in text)


def columns(key: str, content: str) -> dict[str, str]:
    """Return the columns of a memory that are made from its key and text."""
    return {
        "content_lex": packed(content),
        "key_fold": folded(key),
        "content_fold": folded(content),
    }


@lru_cache(maxsize=50_000)
def _stem(word: str) -> str:
    return str(_stemmer().stemWord(word))


@cache
def _stemmer() -> Any:
    try:
        import snowballstemmer  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise MissingDriver(
            "the search of memories needs the Python package snowballstemmer; install it with:"
            " pip install 'hermes-actor[agents]'"
        ) from error
    return snowballstemmer.stemmer("english")
