"""Excerpt of a long text: the part that a search is about."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["LEADER", "TRAILER", "cut_around"]

LEADER = "...[earlier conversation truncated]...\n\n"
TRAILER = "\n\n...[later conversation truncated]..."

_NEAR = 200


def cut_around(text: str, query: str, max_chars: int = 100_000) -> str:
    """Return *text*, or a window of *max_chars* with as many hits of *query* as possible.

    The marks of what was cut come on top of *max_chars*.
    """
    if len(text) <= max_chars:
        return text
    hits = _hits(text.lower(), query.lower().strip())
    start = _best_start(hits, len(text), max_chars) if hits else 0
    window = text[start : start + max_chars]
    leader = LEADER if start > 0 else ""
    trailer = TRAILER if start + max_chars < len(text) else ""
    return f"{leader}{window}{trailer}"


def _hits(text: str, query: str) -> list[int]:
    """Return positions of the phrase, else of its words together, else of any word."""
    words = query.split()
    if not words:
        return []
    hits = _positions(text, query)
    if not hits and len(words) > 1:
        hits = _together(text, words)
    return hits or sorted({p for word in words for p in _positions(text, word)})


def _together(text: str, words: list[str]) -> list[int]:
    """Return the positions of the rarest word that have every other word nearby."""
    places = {word: _positions(text, word) for word in words}
    rarest = min(words, key=lambda word: len(places[word]))
    others = [places[word] for word in words if word != rarest]
    return [p for p in places[rarest] if all(_is_near(p, other) for other in others)]


def _is_near(place: int, others: list[int]) -> bool:
    at = bisect_left(others, place - _NEAR + 1)
    return at < len(others) and others[at] < place + _NEAR


def _positions(text: str, word: str) -> list[int]:
    found, at = [], text.find(word)
    while at >= 0:
        found.append(at)
        at = text.find(word, at + 1)
    return found


def _best_start(hits: list[int], length: int, max_chars: int) -> int:
    """Return the start of the earliest window with the most hits.

    Each hit offers one that begins shortly before it.
    """
    best, most = 0, -1
    for hit in hits:
        start = min(max(0, hit - max_chars // 4), length - max_chars)
        inside = bisect_left(hits, start + max_chars) - bisect_left(hits, start)
        if inside > most:
            best, most = start, inside
    return best
