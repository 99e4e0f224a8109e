"""Insights: tokens, cost and habits from the rows of sessions; tools from those of messages."""

from __future__ import annotations

import time
from collections.abc import Generator

from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.insights import Usage, Window
from hermes_actor.tools.insights import insights
from hermes_actor.web.parameters import Parameter
from hermes_actor.web.stores import ShownStore
from hermes_actor.web.views.view import View

__all__ = ["VIEWS"]

_TOP = 10

MOST_MESSAGES = 50_000
"""Messages whose tools are counted without being asked: reading more takes longer than a page."""


def _insights(shown: ShownStore, asked: Row) -> Row:
    now, days, source = time.time(), asked["days"], asked["source"]

    def report_of(usage: Usage) -> Row:
        by_messages = asked["tools"]
        if not by_messages:
            by_messages = not _has_many(usage)
        if not by_messages:
            usage = usage._replace(message_counts=list, tool_calls=list, skill_calls=list)
        report = insights(usage, now=now, days=days, source=source, top=_TOP)
        return {**report, "tools_counted": by_messages}

    return shown.sessions.query(queries.usage, Window(now - days * 86_400, source), report_of)


def _has_many(usage: Usage) -> bool:
    """Return True if the window has more than :data:`MOST_MESSAGES`; reads no further than that."""
    messages, sessions = 0, usage.sessions()
    try:
        for session in sessions:
            messages += session["message_count"]
            if messages > MOST_MESSAGES:
                return True
    finally:
        if isinstance(sessions, Generator):
            sessions.close()  # its cursor would hold the snapshot
    return False


VIEWS = (
    View(
        "insights", "Insights", "Figures of the last days: sessions, tokens, cost, models, tools.",
        _insights,
        (
            Parameter("days", "Sessions started in the last N days.", int, default=30, least=1,
                      most=3650),
            Parameter("source", "Only sessions of this source."),
            Parameter("tools", "Count tools even if many messages must be read.", bool,
                      default=False),
        ),
    ),
)  # fmt: skip
