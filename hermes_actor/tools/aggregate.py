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
_COUNTERS = (*_TOKENS, "message_count", "tool_call_count")
_MESSAGES, _TOOL_CALLS = 6, 7
"""Their places in a group of sessions, behind the number of these and of all tokens."""
_BY_DAY = ("sessions", "tokens", "cost")


class Tally:
    """Totals of one pass over the sessions."""

    def __init__(self, price_fn: PriceFunction | None, top: int) -> None:
        self._price = price_fn
        self._top = top
        self.sessions = 0
        self._groups: dict[tuple[Any, Any], list[int]] = {}
        """Sessions, all tokens, and the counters; by the model as it is written and the source."""
        self._costs = {"estimated": 0.0, "actual": 0.0}
        self._statuses: Counter[str] = Counter()
        self._seconds, self._timed = 0.0, 0
        self._first: float | None = None
        self._last: float | None = None
        self._prices: dict[Any, Row] = {}
        """Costs by model as it is written."""
        self._weekdays, self._hours = [0] * 7, [0] * 24
        self._days: dict[tuple[int, int, int], Row] = {}
        self._records = [0.0] * len(_RECORDS)
        self._best: dict[str, tuple[float, Row]] = {}
        self._heap: list[tuple[int, str, Row]] = []

    def add(self, session: Row) -> None:
        """Count one session, in order of start. Sets its missing counters to 0, in place."""
        # Tens of thousands of sessions pass here while a page waits: one row of totals for each.
        self.sessions += 1
        counters = [session[key] or 0 for key in _COUNTERS]
        for key, value in zip(_COUNTERS, counters, strict=True):
            session[key] = value
        total = sum(counters[:4])
        if self._first is None:
            self._first = session["started_at"]
        self._last = session["started_at"]
        group = self._groups.get((session["model"], session["source"]))
        if group is None:
            group = self._groups[session["model"], session["source"]] = [0] * (2 + len(counters))
        group[0] += 1
        group[1] += total
        for place, value in enumerate(counters, 2):
            if value:
                group[place] += value
        self._add_cost(session)
        self._add_time(session, total)
        self._add_notable(session)
        if self._top:
            entry = (total, session["id"], session)
            if len(self._heap) < self._top:
                heapq.heappush(self._heap, entry)
            elif total >= self._heap[0][0]:
                heapq.heappushpop(self._heap, entry)

    def _add_cost(self, session: Row) -> None:
        row = self._prices.get(session["model"])
        if row is None:
            row = self._prices[session["model"]] = {
                "cost": 0.0, "actual_cost": 0.0, "has_pricing": False, "cost_status": "unknown",
                "priced_as": 0,
            }  # fmt: skip
        estimated, actual = session["estimated_cost_usd"], session["actual_cost_usd"]
        if estimated is None and actual is None and self._price is not None:
            estimated = self._price(session)
        status = session["cost_status"] or ("unknown" if estimated is None else "estimated")
        if actual is not None:
            status = "actual"
        self._statuses[status] += 1
        if estimated is not None or actual is not None:
            row["has_pricing"], row["cost_status"] = True, status
            row["priced_as"] = self.sessions
        row["cost"] += actual if actual is not None else estimated or 0.0
        row["actual_cost"] += actual or 0.0
        self._costs["estimated"] += estimated or 0.0
        self._costs["actual"] += actual or 0.0

    def _add_time(self, session: Row, total: int) -> None:
        local = time.localtime(session["started_at"])
        self._weekdays[local.tm_wday] += 1
        self._hours[local.tm_hour] += 1
        day = self._days.get(local[:3])
        if day is None:
            day = self._days[local[:3]] = dict.fromkeys(_BY_DAY, 0)
        day["sessions"] += 1
        day["tokens"] += total
        actual = session["actual_cost_usd"]
        day["cost"] += (session["estimated_cost_usd"] if actual is None else actual) or 0
        if session["ended_at"] and session["ended_at"] > session["started_at"]:
            self._seconds += session["ended_at"] - session["started_at"]
            self._timed += 1

    @property
    def _dates(self) -> dict[date, Row]:
        return {date(*day): row for day, row in self._days.items()}

    def _add_notable(self, session: Row) -> None:
        lasted = (session["ended_at"] or 0) - session["started_at"]
        tokens = session["input_tokens"] + session["output_tokens"]
        values = (lasted, session["message_count"], tokens, session["tool_call_count"])
        for place, value in enumerate(values):
            if value > self._records[place]:
                self._records[place] = value
                self._best[_RECORDS[place]] = (value, session)

    def overview(self, roles: Counter[str]) -> Row:
        """Return the totals and averages; *roles* are the message counts by role.

        At least one session must have been added.
        """
        sums = [sum(column) for column in zip(*self._groups.values(), strict=True)]
        tokens, counters = sums[1], dict(zip(_COUNTERS, sums[2:], strict=True))
        models = self._models()
        return {
            "total_sessions": self.sessions,
            "total_messages": counters["message_count"],
            "total_tool_calls": counters["tool_call_count"],
            **{f"total_{key}": counters[key] for key in _TOKENS},
            "total_tokens": tokens,
            "estimated_cost": self._costs["estimated"],
            "actual_cost": self._costs["actual"],
            "total_hours": self._seconds / 3600,
            "avg_session_duration": self._seconds / self._timed if self._timed else 0.0,
            "avg_messages_per_session": counters["message_count"] / self.sessions,
            "avg_tokens_per_session": tokens / self.sessions,
            "user_messages": roles["user"],
            "assistant_messages": roles["assistant"],
            "tool_messages": roles["tool"],
            "date_range_start": self._first,
            "date_range_end": self._last,
            "models_with_pricing": _priced(models, has=True),
            "models_without_pricing": _priced(models, has=False),
            "unknown_cost_sessions": self._statuses["unknown"],
            "included_cost_sessions": self._statuses["included"],
        }

    def _models(self) -> dict[str, Row]:
        """Return totals by model; models are named without their vendor."""
        rows: dict[str, Row] = {}
        for (model, _), group in self._groups.items():
            row = rows.setdefault(name := _model_name(model), {
                "model": name, "sessions": 0, **dict.fromkeys(_TOKENS, 0), "total_tokens": 0,
                "tool_calls": 0, "cost": 0.0, "actual_cost": 0.0, "has_pricing": False,
                "cost_status": "unknown",
            })  # fmt: skip
            _add_totals(row, group)
        # The status of a model is that of its last session with a price.
        for model, price in sorted(self._prices.items(), key=lambda item: item[1]["priced_as"]):
            row = rows[_model_name(model)]
            row["cost"] += price["cost"]
            row["actual_cost"] += price["actual_cost"]
            if price["has_pricing"]:
                row["has_pricing"], row["cost_status"] = True, price["cost_status"]
        return rows

    def model_rows(self) -> list[Row]:
        """Return totals by model, most tokens first; models are named without their vendor."""
        rows = self._models().values()
        return sorted(rows, key=lambda r: (-r["total_tokens"], -r["sessions"], r["model"]))

    def platform_rows(self) -> list[Row]:
        """Return totals by source, most sessions first."""
        rows: dict[Any, Row] = {}
        for (_, source), group in self._groups.items():
            row = rows.setdefault(source, {
                "platform": source, "sessions": 0, "messages": 0, **dict.fromkeys(_TOKENS, 0),
                "total_tokens": 0, "tool_calls": 0,
            })  # fmt: skip
            _add_totals(row, group)
            row["messages"] += group[_MESSAGES]
        return sorted(rows.values(), key=lambda row: (-row["sessions"], row["platform"]))

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
        today, dates = date.fromtimestamp(now), self._dates
        # No date is before the year 1, however many days are asked for.
        oldest = today - timedelta(days=min(days, today.toordinal() - 1))
        first = max(min(dates, default=today), oldest)
        rows = []
        for number in range((today - first).days + 1):
            day = first + timedelta(days=number)
            counted = dates.get(day, dict.fromkeys(_BY_DAY, 0))
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


def _model_name(model: Any) -> str:
    return str(model or "").rpartition("/")[2] or "unknown"


def _priced(models: dict[str, Row], *, has: bool) -> list[str]:
    return sorted(name for name, row in models.items() if row["has_pricing"] is has)


def _add_totals(row: Row, group: list[int]) -> None:
    row["sessions"] += group[0]
    row["total_tokens"] += group[1]
    row["tool_calls"] += group[_TOOL_CALLS]
    for place, key in enumerate(_TOKENS, 2):
        row[key] += group[place]


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
