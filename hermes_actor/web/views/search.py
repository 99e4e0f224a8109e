"""Search: hits by session, with the words found."""

from __future__ import annotations

from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.search.query import Filters
from hermes_actor.tools.highlights import marked_spans
from hermes_actor.web.parameters import Parameter
from hermes_actor.web.stores import ShownStore
from hermes_actor.web.views.view import View

__all__ = ["VIEWS"]

_HIDDEN = ["tool"]
_HITS = 20
_FURTHEST = 10_000
"""Hits that can be paged through: further ones are found by better words."""


def _search(shown: ShownStore, asked: Row) -> Row:
    query = asked["q"]
    if not query or not query.strip():
        return {"hits": [], "more": False}
    source, role = asked["source"], asked["role"]
    filters = Filters(
        [source] if source else None, None if source else _HIDDEN, [role] if role else None,
        newest_first=True,
    )  # fmt: skip
    store = shown.sessions
    # One more than shown tells whether there are more.
    hits = store.query(queries.search_messages, query, filters, _HITS + 1, asked["offset"])
    more = len(hits) > _HITS
    hits = hits[:_HITS]
    titles = {hit["session_id"]: store.get_session_title(hit["session_id"]) for hit in hits}
    return {
        "hits": [
            {**hit, "title": titles[hit["session_id"]], "pieces": _pieces(hit, query)}
            for hit in hits
        ],
        "more": more,
    }


def _pieces(hit: Row, query: str) -> list[tuple[str, bool]]:
    """Return the text of a hit in pieces, each with whether it was searched for."""
    text, spans = marked_spans(str(hit["snippet"] or ""), query)
    pieces, place = list[tuple[str, bool]](), 0
    for start, end in spans:
        pieces += [(text[place:start], False), (text[start:end], True)]
        place = end
    return [piece for piece in (*pieces, (text[place:], False)) if piece[0]]


VIEWS = (
    View(
        "search", "Search",
        "Messages that match words, \"phrases\", begin*, AND, OR, NOT; the best session first.",
        _search,
        (
            Parameter("q", "What to search for."),
            Parameter("source", "Only this source, even a hidden one."),
            Parameter("role", "Only messages of this role.",
                      choices=("user", "assistant", "tool", "system")),
            Parameter("offset", "Skip this many hits.", int, default=0, least=0, most=_FURTHEST),
        ),
    ),
)  # fmt: skip
