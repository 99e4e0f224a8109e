"""Analysis of a search query: sanitising, CJK detection, the index that answers it, and filters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import NamedTuple

__all__ = [
    "CJK_RANGES", "TRIGRAM", "Filters", "Plan", "Route", "contains_cjk", "count_cjk", "is_cjk",
    "plan_query", "sanitize",
]  # fmt: skip

CJK_RANGES = (
    (0x3000, 0x303F),  # CJK symbols and punctuation
    (0x3040, 0x309F),  # Hiragana
    (0x30A0, 0x30FF),  # Katakana
    (0x3400, 0x4DBF),  # CJK extension A
    (0x4E00, 0x9FFF),  # CJK unified ideographs
    (0xAC00, 0xD7AF),  # Hangul syllables
    (0x20000, 0x2A6DF),  # CJK extension B
)

_OPERATORS = frozenset({"AND", "OR", "NOT"})
TRIGRAM = 3


def is_cjk(code_point: int) -> bool:
    """Return True for a code point of CJK punctuation, kana, ideographs or Hangul syllables."""
    return any(low <= code_point <= high for low, high in CJK_RANGES)


def contains_cjk(text: str) -> bool:
    """Return True if any character of *text* is CJK, as :func:`is_cjk` has it."""
    return not text.isascii() and any(is_cjk(ord(character)) for character in text)


def count_cjk(text: str) -> int:
    """Count the CJK characters of *text*."""
    return sum(is_cjk(ord(character)) for character in text)


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(
        re.compile(pattern)
        for pattern in (
            r'"[^"]*"',
            r'[+{}()"^]',
            r"\*+",
            r"(^|\s)\*",
            r"(?i)^(?:AND|OR|NOT)\b\s*",
            r"(?i)\s(?:AND|OR|NOT)$",  # one blank: a run of them would be looked at quadratically
            r"\b\w+(?:[._-]\w+)+\b",
            r"\x00(\d+)\x00",
        )
    )


def sanitize(query: str) -> str:
    """Return a query that FTS5 takes for what its author meant, as far as possible.

    Quoted phrases stay; other special characters go; operators without an operand go; terms
    joined by dots, dashes and underscores become phrases.
    """
    phrase, special, stars, loose_star, leading, trailing, joined, mark = _patterns()
    kept: list[str] = []

    def set_aside(match: re.Match[str]) -> str:
        kept.append(match.group(0))
        return f"\x00{len(kept) - 1}\x00"

    text = special.sub(" ", phrase.sub(set_aside, query))
    text = loose_star.sub(r"\1", stars.sub("*", text)).strip()
    text = leading.sub("", text).strip()
    if dangling := trailing.search(text):
        text = text[: dangling.start()].rstrip()
    text = joined.sub(lambda match: f'"{match.group(0)}"', text)
    return mark.sub(lambda match: kept[int(match.group(1))], text).strip()


class Route(Enum):
    """Index that answers a query."""

    WORDS = "words"
    TRIGRAMS = "trigrams"
    LIKE = "like"


class Plan(NamedTuple):
    """A route and what to look for on it: a MATCH expression, or the terms of which any counts."""

    route: Route
    match: str
    terms: tuple[str, ...] = ()


def plan_query(query: str | None) -> Plan | None:
    """Return the plan for *query*; ``None`` if nothing is left to look for."""
    if not query or not query.strip():
        return None
    text = sanitize(query)
    if not text:
        return None
    return _plan_cjk(text) if contains_cjk(text) else Plan(Route.WORDS, text)


def _plan_cjk(sanitized: str) -> Plan:
    text = sanitized.strip('"').strip()
    tokens = text.split()
    checked = [t for t in tokens if t.upper() not in _OPERATORS and contains_cjk(t)]
    if count_cjk(text) >= TRIGRAM and all(count_cjk(token) >= TRIGRAM for token in checked):
        quoted = (
            t if t.upper() in _OPERATORS else '"' + t.replace('"', '""') + '"' for t in tokens
        )
        return Plan(Route.TRIGRAMS, " ".join(quoted))
    terms = tuple(t for t in tokens if t.upper() not in _OPERATORS)
    return Plan(Route.LIKE, "", terms or (text,))


class Filters(NamedTuple):
    """Filters of hits. ``None`` is no filter; an empty list of sources lets nothing through."""

    sources: Sequence[str] | None = None
    excluded: Sequence[str] | None = None
    roles: Sequence[str] | None = None
    newest_first: bool = False
    """Hits of equal rank come newest first, and not oldest first."""
    by_id: bool = False
    """Hits come by id, the highest first, and not by rank: an order that later messages leave
    as it is, because ranks depend on all messages that there are."""
    before: int | None = None
    """Only hits with a smaller id: with *by_id*, the page after the hit with this one."""
