"""Summaries of found conversations: summarisers, and one that needs no model."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hermes_actor.tools.transcript import call_names, text_of

__all__ = [
    "SummaryRequest", "TooSlow", "extract", "query_terms", "register_summarizer", "summarize_all",
]  # fmt: skip

_PICKED = 6
_EXCERPT = 240
_BEFORE = 60
_TOOLS = 8
_MAX_LENGTH = 2000
_WAITS_SECONDS = (1.0, 2.0)
"""Between the three tries of a summariser; a model that is busy is often free soon."""
EACH_SECONDS = 30.0
_ALL_SECONDS = 60.0
_RAW_PREVIEW = 500


class SummaryRequest(NamedTuple):
    """Input of a summariser."""

    query: str
    terms: tuple[str, ...]
    session: dict[str, Any]  # id, title, source, model, started_at
    messages: list[dict[str, Any]]
    text: str


Summarizer = Callable[[SummaryRequest], "str | None"]

_registered: Summarizer | None = None


def register_summarizer(summarizer: Summarizer | None) -> None:
    """Use *summarizer* in this process from now on; ``None`` restores the default."""
    global _registered
    _registered = summarizer


class TooSlow(TimeoutError):
    """All summaries together took too long."""


def summarize_all(
    requests: Sequence[SummaryRequest],
    max_concurrency: int = 3,
    each_seconds: float = EACH_SECONDS,
) -> list[str]:
    """Return one summary per request, in order; a raw preview where the summariser fails.

    It fails, too, if it takes longer than *each_seconds* for one request, all tries together; it is
    then left alone and the next request gets its place. Raises :class:`TooSlow` after a minute.
    """
    chosen = _registered
    if chosen is None:
        return [extract(request) or _raw(request) for request in requests]
    give_up = time.monotonic() + _ALL_SECONDS
    summaries: list[str | None] = [None] * len(requests)
    places = iter(range(len(requests)))  # shared: the interpreter takes from it one by one

    def work() -> None:
        for place in places:
            summaries[place] = _in_time(chosen, requests[place], each_seconds)

    workers = min(len(requests), max(1, min(5, max_concurrency)))
    threads = [_started(work) for _ in range(workers)]
    for thread in threads:
        thread.join(max(0.0, give_up - time.monotonic()))
        if thread.is_alive():
            raise TooSlow("the summaries took too long; ask a narrower question")
    return [found or _raw(asked) for found, asked in zip(summaries, requests, strict=True)]


def _started(work: Callable[[], None]) -> threading.Thread:
    # A daemon: one that hangs must not keep the process from ending.
    thread = threading.Thread(target=work, name="summary", daemon=True)
    thread.start()
    return thread


def _in_time(summarizer: Summarizer, request: SummaryRequest, seconds: float) -> str | None:
    made: list[str | None] = []
    over = threading.Event()
    _started(lambda: made.append(_tried(summarizer, request, over))).join(seconds)
    over.set()
    return made[0] if made else None


def _tried(summarizer: Summarizer, request: SummaryRequest, over: threading.Event) -> str | None:
    for wait in (*_WAITS_SECONDS, None):
        try:
            return summarizer(request)
        except Exception:
            if wait is None or over.wait(wait):
                return None
    return None


def _raw(request: SummaryRequest) -> str:
    return (
        "[Raw preview: no summary could be made]\n" + request.text[:_RAW_PREVIEW] + "\n…[truncated]"
    )


# --- the default: extracts, no model ---------------------------------------------------------

_TOKEN = re.compile(r'"([^"]*)"|(\()|(\))|(\S+?)(?=[()"\s]|$)')


def query_terms(query: str) -> tuple[str, ...]:
    """Return the terms of a query, lower-case: words, quoted phrases, ``word*`` for prefixes."""
    terms: list[str] = []
    negated = False
    for phrase, opening, closing, word in _TOKEN.findall(query):
        if opening or closing:
            continue
        if word in ("AND", "OR", "NEAR"):
            continue
        if word == "NOT":
            negated = True
            continue
        term = (phrase or word).lower().strip()
        if term and not negated:
            terms.append(term)
        negated = False
    return tuple(dict.fromkeys(terms))


def _pattern(term: str) -> re.Pattern[str]:
    if term.endswith("*") and len(term) > 1:
        return re.compile(rf"\b{re.escape(term.rstrip('*'))}")
    return re.compile(re.escape(term))


def extract(request: SummaryRequest) -> str:
    """Return goal, matches, tools and outcome, quoted verbatim. Equal input gives equal output."""
    patterns = [_pattern(term) for term in request.terms]
    said = [
        (message["role"], text_of(message.get("content")))
        for message in request.messages
        if message.get("role") in ("user", "assistant")
    ]
    said = [(role, text) for role, text in said if text.strip()]
    lines: list[str] = []
    goal = next((text for role, text in said if role == "user"), None)
    if goal is not None:
        lines.append(f"Goal: {_excerpt(goal, patterns)}")
    matches = _matches(said, patterns)
    if matches:
        lines.append("Matches:")
        lines += [f"- {role}: {_excerpt(text, patterns)}" for role, text in matches]
    tools = _tools(request.messages)
    if tools:
        lines.append(f"Tools: {tools}")
    outcome = next((text for role, text in reversed(said) if role == "assistant"), None)
    if outcome is not None:
        lines.append(f"Outcome: {_excerpt(outcome, patterns)}")
    return "\n".join(lines)[:_MAX_LENGTH]


def _matches(said: list[tuple[str, str]], patterns: list[re.Pattern[str]]) -> list[tuple[str, str]]:
    scored = []
    for place, (_, text) in enumerate(said):
        counts = [len(pattern.findall(text.lower())) for pattern in patterns]
        score = 10 * sum(count > 0 for count in counts) + min(5, sum(counts))
        if score:
            scored.append((-score, place))
    return [said[place] for place in sorted(place for _, place in sorted(scored)[:_PICKED])]


def _excerpt(text: str, patterns: list[re.Pattern[str]]) -> str:
    text = " ".join(text.split())
    if len(text) <= _EXCERPT:
        return text
    found = [m.start() for pattern in patterns if (m := pattern.search(text.lower()))]
    start = max(0, min(found) - _BEFORE) if found else 0
    end = min(len(text), start + _EXCERPT)
    if start:  # to the beginning of the next word
        start = text.find(" ", start, end) + 1 or start
    if end < len(text):  # to the end of the last whole word
        space = text.rfind(" ", start, end)
        end = space if space > start else end
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _tools(messages: list[dict[str, Any]]) -> str:
    counts = Counter(name for message in messages for name in call_names(message.get("tool_calls")))
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_TOOLS]
    return ", ".join(f"{name}×{count}" for name, count in ranked)
