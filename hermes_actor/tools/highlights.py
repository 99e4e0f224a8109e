"""Words found in the snippet of a hit: where they stand in its text."""

from __future__ import annotations

import re

from hermes_actor.tools.summaries import query_terms

__all__ = ["marked_spans"]


def marked_spans(snippet: str, query: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the text without marks, and where the words found stand in it.

    The index marks them with ``>>>`` and ``<<<``; of short CJK terms it does not.
    """
    pieces, spans, place = re.split(r">>>(.*?)<<<", snippet), [], 0
    for number, piece in enumerate(pieces):
        if number % 2:
            spans.append((place, place + len(piece)))
        place += len(piece)
    text = "".join(pieces)
    terms = [re.escape(term.rstrip("*")) for term in query_terms(query) if term.rstrip("*")]
    if not spans and terms:
        spans = [found.span() for found in re.finditer("|".join(terms), text, re.IGNORECASE)]
    return text, spans
