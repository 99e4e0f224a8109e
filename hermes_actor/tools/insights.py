"""Insights: how much was talked, with which models and tools, and when. In constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hermes_actor.store.sessions.insights import Usage
from hermes_actor.tools.aggregate import PriceFunction, Row, Tally

__all__ = ["insights"]


def insights(
    usage: Usage,
    *,
    now: float,
    days: int = 30,
    source: str | None = None,
    top: int = 0,
    price_fn: PriceFunction | None = None,
) -> Row:
    """Return the report on *usage*, the sessions that started in the last *days* days.

    Costs are those that the sessions carry; *price_fn* may estimate a session that has none.
    """
    report: Row = {"days": days, "source_filter": source, "empty": False, "generated_at": now}
    tally = Tally(price_fn, top)
    for session in usage.sessions():
        tally.add(session)
    if not tally.sessions:
        return _empty(days, source)
    counts = usage.message_counts()
    roles: Counter[str] = Counter()
    for role, _, number in counts:
        roles[role] += number
    by_rows = {tool: n for role, tool, n in counts if role == "tool" and tool}
    report["overview"] = tally.overview(roles)
    report["models"] = tally.model_rows()
    report["platforms"] = tally.platform_rows()
    by_calls = dict(usage.tool_calls())
    report["tools"] = _tools(by_rows, by_calls)
    has_skills = any(tool.startswith("skill_") for tool in by_calls)
    report["skills"] = _skills(usage.skill_calls() if has_skills else [])
    report["trend"] = tally.trend(now, days)
    report["activity"] = tally.activity()
    report["top_sessions"] = tally.notable()
    if top:
        report["sessions_by_tokens"] = tally.largest()
    return report


def _empty(days: int, source: str | None) -> Row:
    return {
        "days": days, "source_filter": source, "empty": True, "overview": {}, "models": [],
        "platforms": [], "tools": [], "skills": _skills([]), "trend": [], "activity": {},
        "top_sessions": [],
    }  # fmt: skip


def _tools(by_rows: dict[str, int], by_calls: dict[str, int]) -> list[Row]:
    """Return per tool the larger count of calls and results: either can be missing."""
    names = {*by_rows, *by_calls} if by_rows else set(by_calls)
    counts = {name: max(by_rows.get(name, 0), by_calls.get(name, 0)) for name in names}
    total = sum(counts.values())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"tool": tool, "count": count, "percentage": 100.0 * count / total}
        for tool, count in ranked
    ]


def _skills(calls: Iterable[tuple[str, str, int, float]]) -> Row:
    skills: dict[str, Row] = {}
    for tool, skill, number, latest in calls:
        row = skills.setdefault(
            str(skill), {"skill": str(skill), "view_count": 0, "manage_count": 0, "last_used_at": 0}
        )
        row["view_count" if tool == "skill_view" else "manage_count"] += number
        row["last_used_at"] = max(row["last_used_at"], latest)
    loads = sum(row["view_count"] for row in skills.values())
    edits = sum(row["manage_count"] for row in skills.values())
    for row in skills.values():
        row["total_count"] = row["view_count"] + row["manage_count"]
        row["percentage"] = 100.0 * row["total_count"] / (loads + edits)
        row["last_used_at"] = row["last_used_at"] or None
    top = sorted(skills.values(), key=lambda row: (-row["total_count"], row["skill"]))
    return {
        "summary": {
            "total_skill_loads": loads,
            "total_skill_edits": edits,
            "total_skill_actions": loads + edits,
            "distinct_skills_used": len(skills),
        },
        "top_skills": top,
    }
