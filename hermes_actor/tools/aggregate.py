"""Totals over sessions, added one by one: memory does not grow with their number."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from hermes_actor.tools.timestamps import in_words

__all__ = ["PriceFunction", "Row", "Tally"]

Row = dict[str, Any]
PriceFunction = Callable[[Row], "float | None"]

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_RECORDS = ("Longest session", "Most messages", "Most tokens", "Most tool calls")
_BY_DAY = ("sessions", "tokens", "cost")


class Tally:
    """Totals of one pass over the sessions."""

    def __init__(self, price_fn: PriceFunction | None, top: int) -> None:
        self._price = price_fn
        self._top = top
        self.sessions = 0
        self._sums: Counter[str] = Counter()
        self._costs = {"estimated": 0.0, "actual": 0.0}
        self._statuses: Counter[str] = Counter()
        self._seconds, self._timed = 0.0, 0
        self._first: float | None = None
        self._last: float | None = None
        self._models: dict[str, Row] = {}
        self._platforms: dict[str, Row] = {}
        self._weekdays, self._hours = [0] * 7, [0] * 24
        self._dates: dict[date, Row] = {}
        self._best: dict[str, tuple[float, Row]] = {}
        self._heap: list[tuple[int, str, Row]] = []

    def add(self, session: Row) -> None:
        """Count one session, in order of start. Sets its missing counters to 0, in place."""
        self.sessions += 1
        for key in (*_TOKENS, "message_count", "tool_call_count"):
            session[key] = session[key] or 0
            self._sums[key] += session[key]
        total = sum(session[key] for key in _TOKENS)
        if self._first is None:
            self._first = session["started_at"]
        self._last = session["started_at"]
        self._add_cost(session, total)
        self._add_platform(session, total)
        self._add_time(session, total)
        self._add_notable(session)
        if self._top:
            heapq.heappush(self._heap, (total, session["id"], session))
            if len(self._heap) > self._top:
                heapq.heappop(self._heap)

    def _add_cost(self, session: Row, total: int) -> None:
        name = str(session["model"] or "").rpartition("/")[2] or "unknown"
        row = self._models.setdefault(name, {
            "model": name, "sessions": 0, **dict.fromkeys(_TOKENS, 0), "total_tokens": 0,
            "tool_calls": 0, "cost": 0.0, "actual_cost": 0.0, "has_pricing": False,
            "cost_status": "unknown",
        })  # fmt: skip
        _add_totals(row, session, total)
        estimated, actual = session["estimated_cost_usd"], session["actual_cost_usd"]
        if estimated is None and actual is None and self._price is not None:
            estimated = self._price(session)
        status = session["cost_status"] or ("unknown" if estimated is None else "estimated")
        if actual is not None:
            status = "actual"
        self._statuses[status] += 1
        if estimated is not None or actual is not None:
            row["has_pricing"], row["cost_status"] = True, status
        row["cost"] += actual if actual is not None else estimated or 0.0
        row["actual_cost"] += actual or 0.0
        self._costs["estimated"] += estimated or 0.0
        self._costs["actual"] += actual or 0.0

    def _add_platform(self, session: Row, total: int) -> None:
        row = self._platforms.setdefault(session["source"], {
            "platform": session["source"], "sessions": 0, "messages": 0,
            **dict.fromkeys(_TOKENS, 0), "total_tokens": 0, "tool_calls": 0,
        })  # fmt: skip
        row["messages"] += session["message_count"]
        _add_totals(row, session, total)

    def _add_time(self, session: Row, total: int) -> None:
        local = time.localtime(session["started_at"])
        self._weekdays[local.tm_wday] += 1
        self._hours[local.tm_hour] += 1
        day = self._dates.setdefault(
            date(local.tm_year, local.tm_mon, local.tm_mday), dict.fromkeys(_BY_DAY, 0)
        )
        day["sessions"] += 1
        day["tokens"] += total
        actual = session["actual_cost_usd"]
        day["cost"] += (session["estimated_cost_usd"] if actual is None else actual) or 0
        if session["ended_at"] and session["ended_at"] > session["started_at"]:
            self._seconds += session["ended_at"] - session["started_at"]
            self._timed += 1

    def _add_notable(self, session: Row) -> None:
        lasted = (session["ended_at"] or 0) - session["started_at"]
        tokens = session["input_tokens"] + session["output_tokens"]
        values = (lasted, session["message_count"], tokens, session["tool_call_count"])
        for label, value in zip(_RECORDS, values, strict=True):
            if value > 0 and value > self._best.get(label, (0, {}))[0]:
                self._best[label] = (value, session)

    def overview(self, roles: Counter[str]) -> Row:
        """Return the totals and averages; *roles* are the message counts by role.

        At least one session must have been added.
        """
        tokens = sum(self._sums[key] for key in _TOKENS)
        return {
            "total_sessions": self.sessions,
            "total_messages": self._sums["message_count"],
            "total_tool_calls": self._sums["tool_call_count"],
            **{f"total_{key}": self._sums[key] for key in _TOKENS},
            "total_tokens": tokens,
            "estimated_cost": self._costs["estimated"],
            "actual_cost": self._costs["actual"],
            "total_hours": self._seconds / 3600,
            "avg_session_duration": self._seconds / self._timed if self._timed else 0.0,
            "avg_messages_per_session": self._sums["message_count"] / self.sessions,
            "avg_tokens_per_session": tokens / self.sessions,
            "user_messages": roles["user"],
            "assistant_messages": roles["assistant"],
            "tool_messages": roles["tool"],
            "date_range_start": self._first,
            "date_range_end": self._last,
            "models_with_pricing": self._priced(True),
            "models_without_pricing": self._priced(False),
            "unknown_cost_sessions": self._statuses["unknown"],
            "included_cost_sessions": self._statuses["included"],
        }

    def _priced(self, has: bool) -> list[str]:
        return sorted(name for name, row in self._models.items() if row["has_pricing"] is has)

    def model_rows(self) -> list[Row]:
        """Return totals by model, most tokens first; models are named without their vendor."""
        rows = self._models.values()
        return sorted(rows, key=lambda r: (-r["total_tokens"], -r["sessions"], r["model"]))

    def platform_rows(self) -> list[Row]:
        """Return totals by source, most sessions first."""
        rows = self._platforms.values()
        return sorted(rows, key=lambda row: (-row["sessions"], row["platform"]))

    def activity(self) -> Row:
        """Return sessions by weekday and hour of local time, the peaks, and the longest streak."""
        busiest_day, busiest_hour = _peak(self._weekdays), _peak(self._hours)
        return {
            "by_day": [{"day": _DAYS[n], "count": c} for n, c in enumerate(self._weekdays)],
            "by_hour": [{"hour": n, "count": c} for n, c in enumerate(self._hours)],
            "busiest_day": {"day": _DAYS[busiest_day], "count": self._weekdays[busiest_day]},
            "busiest_hour": {"hour": busiest_hour, "count": self._hours[busiest_hour]},
            "active_days": len(self._dates),
            "max_streak": _streak({*self._dates}),
        }

    def trend(self, now: float, days: int) -> list[Row]:
        """Return sessions, tokens and cost of each day since the first with a session."""
        today = date.fromtimestamp(now)
        first = max(min(self._dates, default=today), today - timedelta(days=days))
        rows = []
        for number in range((today - first).days + 1):
            day = first + timedelta(days=number)
            counted = self._dates.get(day, dict.fromkeys(_BY_DAY, 0))
            rows.append({"date": day.isoformat(), **counted})
        return rows

    def notable(self) -> list[Row]:
        """Return the record session of each kind, kinds without one left out."""
        return [
            {"label": label, "session_id": session["id"], "value": value,
             "date": in_words(session["started_at"], "%b %d")}
            for label in _RECORDS
            if label in self._best
            for value, session in (self._best[label],)
        ]  # fmt: skip

    def largest(self) -> list[Row]:
        """Return the *top* sessions by tokens, largest first."""
        ranked = sorted(self._heap, key=lambda entry: (-entry[0], entry[1]))
        return [
            {"session_id": session["id"], "title": session["title"], "source": session["source"],
             "model": session["model"], "total_tokens": total,
             "cost": session["actual_cost_usd"] if session["actual_cost_usd"] is not None
             else session["estimated_cost_usd"], "started_at": session["started_at"]}
            for total, _, session in ranked
        ]  # fmt: skip


def _add_totals(row: Row, session: Row, total: int) -> None:
    row["sessions"] += 1
    row["total_tokens"] += total
    row["tool_calls"] += session["tool_call_count"]
    for key in _TOKENS:
        row[key] += session[key]


def _peak(counts: list[int]) -> int:
    return max(range(len(counts)), key=lambda n: counts[n])


def _streak(dates: set[date]) -> int:
    """Return the length of the longest run of consecutive days."""
    best = 0
    for day in dates:
        if day - timedelta(days=1) in dates:
            continue
        length = 1
        while day + timedelta(days=length) in dates:
            length += 1
        best = max(best, length)
    return best
