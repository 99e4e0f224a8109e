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
_BEST = 50
"""Hits in the order of their rank. There are no more pages of these: ranks depend on all messages
that there are, so each one that arrives would shift what a page holds."""


def _search(shown: ShownStore, asked: Row) -> Row:
    query = asked["q"]
    if not query or not query.strip():
        return {"hits": [], "before": None, "more": False}
    source, role, by_id = asked["source"], asked["role"], asked["sort"] == "newest"
    most = _HITS if by_id else _BEST
    filters = Filters(
        [source] if source else None, None if source else _HIDDEN, [role] if role else None,
        newest_first=True, by_id=by_id, before=asked["before"],
    )  # fmt: skip
    store = shown.sessions
    # One more than shown tells whether there are more.
    hits = store.query(queries.search_messages, query, filters, most + 1, 0)
    more, hits = len(hits) > most, hits[:most]
    titles = {one: store.get_session_title(one) for one in {hit["session_id"] for hit in hits}}
    return {
        "hits": [
            {**hit, "title": titles[hit["session_id"]], "pieces": _pieces(hit, query)}
            for hit in hits
        ],
        "more": more,
        "before": hits[-1]["id"] if more and by_id else None,
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
        "Messages that match words, \"phrases\", begin*, AND, OR, NOT: best or newest first.",
        _search,
        (
            Parameter("q", "What to search for."),
            Parameter("source", "Only this source, even a hidden one."),
            Parameter("role", "Only messages of this role.",
                      choices=("user", "assistant", "tool", "system")),
            Parameter("sort", "The best hits, or all hits page by page, the newest first.",
                      default="best", choices=("best", "newest")),
            Parameter("before", "Messages before this id: with sort=newest the next page.", int,
                      least=0),
        ),
    ),
)  # fmt: skip
