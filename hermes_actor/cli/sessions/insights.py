"""``hermes-actor insights``: figures and charts of the last days."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.formatting import (
    clip,
    clock_time,
    fit,
    page,
    plain,
    print_json,
    short_duration,
    sparkline,
    styled,
    terminal_width,
    width,
)
from hermes_actor.cli.store import open_read_only
from hermes_actor.store import queries
from hermes_actor.store.sessions.insights import Window
from hermes_actor.tools.insights import insights as report_of

__all__ = ["bars", "insights"]

_BOX = 54
_RULE = 56
_INDENT = 2
_BAR = 15
_TOOLS = 15
_SKILLS = 10
_PEAKS = 5
_TREND_DAYS = 30

Row = dict[str, Any]


@click.command()
@click.option(
    "--days", type=click.IntRange(min=1), default=30, show_default=True,
    help="Include sessions started in the last N days.",
)  # fmt: skip
@click.option("--source", help="Include only sessions of this source.")
@click.option(
    "--top", type=click.IntRange(min=0), default=0,
    help="List the N sessions with the most tokens.", metavar="N",
)  # fmt: skip
@json_option
@db_option
def insights(days: int, source: str | None, top: int, as_json: bool, db: Path | None) -> None:
    """Show usage figures and charts of the last days.

    Covers sessions, tokens, cost, models, tools and habits. Sessions of hidden sources are counted
    too. Costs are those stored with the sessions.

    Exit codes: 0 done, 1 the store cannot be read.

    \b
    Examples:
      hermes-actor insights
      hermes-actor insights --days 7 --source telegram
      hermes-actor insights --days 365 --top 10 --json | jq .models
    """

    now = time.time()
    window = Window(now - days * 86_400, source)
    with open_read_only(db) as store:
        report = store.query(
            queries.usage,
            window,
            lambda usage: report_of(usage, now=now, days=days, source=source, top=top),
        )
    if as_json:
        print_json(report)
    else:
        page("\n".join(_lines(report)))


def _lines(report: Row) -> list[str]:
    days, source = report["days"], report["source_filter"]
    if report["empty"]:
        only = f" (source: {source})" if source else ""
        return [f"  No sessions found in the last {days} days{only}."]
    overview = report["overview"]
    first, last = (
        clock_time(overview[f"date_range_{end}"], "%b %d, %Y") for end in ("start", "end")
    )
    label = f"Last {days} days" + (f" ({source})" if source else "")
    lines = ["", *_box("📊 Hermes Insights", label), "", f"Period: {first} — {last}", ""]
    for section in (
        _overview(overview),
        _models(report["models"]),
        _costs(report["models"]),
        _platforms(report["platforms"]),
        _tools(report["tools"]),
        _skills(report["skills"]),
        _trend(report["trend"]),
        _activity(report["activity"]),
        _notable(report["top_sessions"]),
        _largest(report.get("sessions_by_tokens", [])),
    ):
        lines += [*section, ""] if section else []
    return [f"{' ' * _INDENT}{line}".rstrip() for line in lines]


def _box(title: str, label: str) -> list[str]:
    def centred(text: str) -> str:
        left = (_BOX - width(text)) // 2
        return "║" + " " * left + text + " " * (_BOX - left - width(text)) + "║"

    return [f"╔{'═' * _BOX}╗", centred(title), centred(label), f"╚{'═' * _BOX}╝"]


def _head(title: str) -> list[str]:
    return [styled(title, bold=True), styled("─" * _RULE, dim=True)]


def _pair(left: str, value: str, right: str = "", other: str = "") -> str:
    return f"{left:<19}{value:<12}  {right:<17}{other}".rstrip()


def _overview(o: Row) -> list[str]:
    lines = [
        *_head("📋 Overview"),
        _pair("Sessions:", f"{o['total_sessions']:,}", "Messages:", f"{o['total_messages']:,}"),
        _pair("Tool calls:", f"{o['total_tool_calls']:,}", "User messages:",
              f"{o['user_messages']:,}"),
        _pair("Input tokens:", f"{o['total_input_tokens']:,}", "Output tokens:",
              f"{o['total_output_tokens']:,}"),
        _pair("Total tokens:", f"{o['total_tokens']:,}"),
    ]  # fmt: skip
    if o["total_hours"] > 0:
        active = "~" + short_duration(o["total_hours"] * 3600)
        average = "~" + short_duration(o["avg_session_duration"])
        lines.append(_pair("Active time:", active, "Avg session:", average))
    return [*lines, _pair("Avg msgs/session:", f"{o['avg_messages_per_session']:.1f}")]


def _models(models: list[Row]) -> list[str]:
    lines = [*_head("🤖 Models Used"), f"{'Model':<30} {'Sessions':>8} {'Tokens':>12}"]
    for row in models:
        name = fit(row["model"], 30, 28)
        lines.append(f"{name} {row['sessions']:>8,} {row['total_tokens']:>12,}")
    return lines


def _costs(models: list[Row]) -> list[str]:
    priced = [row for row in models if row["has_pricing"]]
    if not any(row["cost"] for row in priced):
        return []
    lines = [*_head("💰 Cost"), f"{'Model':<30} {'Cost':>12}  Status"]
    lines += [
        f"{fit(row['model'], 30, 28)} {'$' + format(row['cost'], ',.4f'):>12}  {row['cost_status']}"
        for row in sorted(priced, key=lambda row: -row["cost"])
    ]
    total = sum(row["cost"] for row in priced)
    return [*lines, f"{'Total':<30} {'$' + format(total, ',.4f'):>12}"]


def _platforms(platforms: list[Row]) -> list[str]:
    if len(platforms) == 1 and platforms[0]["platform"] == "cli":
        return []
    lines = [*_head("📱 Platforms")]
    lines.append(f"{'Platform':<14} {'Sessions':>8} {'Messages':>10} {'Tokens':>14}")
    for row in platforms:
        counts = f"{row['sessions']:>8,} {row['messages']:>10,} {row['total_tokens']:>14,}"
        lines.append(f"{fit(row['platform'], 14)} {counts}")
    return lines


def _tools(tools: list[Row]) -> list[str]:
    if not tools:
        return []
    lines = [*_head("🔧 Top Tools"), f"{'Tool':<28} {'Calls':>8} {'%':>8}"]
    lines += [
        f"{fit(row['tool'], 28, 28)} {row['count']:>8,} {row['percentage']:>7.1f}%"
        for row in tools[:_TOOLS]
    ]
    if len(tools) > _TOOLS:
        lines.append(f"... and {len(tools) - _TOOLS} more tools")
    return lines


def _skills(skills: Row) -> list[str]:
    if not skills["top_skills"]:
        return []
    lines = [*_head("🧠 Skills"), f"{'Skill':<28} {'Loads':>7} {'Edits':>7} {'Last used':>11}"]
    for row in skills["top_skills"][:_SKILLS]:
        used = clock_time(row["last_used_at"], "%b %d") if row["last_used_at"] else "—"
        lines.append(f"{fit(row['skill'], 28, 28)} {row['view_count']:>7,}"
                     f" {row['manage_count']:>7,} {used:>11}")  # fmt: skip
    total = skills["summary"]
    return [*lines, f"{total['distinct_skills_used']} skills, {total['total_skill_loads']} loads,"
                    f" {total['total_skill_edits']} edits"]  # fmt: skip


def bars(counts: list[int]) -> list[str]:
    """A bar of blocks for each number; the largest fills the room."""
    peak = max(counts, default=0)
    return ["█" * max(1, count * _BAR // peak) if count else "" for count in counts]


def _trend(days: list[Row]) -> list[str]:
    """Return a bar for each day that is shown, of sessions, tokens and cost."""
    shown = days[-_TREND_DAYS:]
    if len(shown) < 2:
        return []
    lines = [*_head("📈 Trend by Day")]
    for name, key, form in (
        ("Sessions", "sessions", "{:,}"), ("Tokens", "tokens", "{:,}"), ("Cost", "cost", "${:,.2f}")
    ):  # fmt: skip
        values = [day[key] for day in shown]
        if any(values):
            most = form.format(max(values))
            lines.append(f"{name:<9} {sparkline(values)}  at most {most} a day")
    return [*lines, f"{shown[0]['date']} to {shown[-1]['date']}"]


def _activity(activity: Row) -> list[str]:
    days = activity["by_day"]
    lines = _head("📅 Activity Patterns")
    for row, bar in zip(days, bars([row["count"] for row in days]), strict=True):
        lines.append(f"{row['day']}  {bar:<{_BAR}} {row['count']}")
    hours = sorted(activity["by_hour"], key=lambda row: -row["count"])[:_PEAKS]
    peaks = ", ".join(f"{_hour(row['hour'])} ({row['count']})" for row in hours if row["count"])
    lines += ["", f"Peak hours: {peaks}", f"Active days: {activity['active_days']}"]
    if activity["max_streak"] > 1:
        lines.append(f"Best streak: {activity['max_streak']} consecutive days")
    return lines


def _hour(hour: int) -> str:
    return f"{hour % 12 or 12}{'AM' if hour < 12 else 'PM'}"


def _notable(top: list[Row]) -> list[str]:
    if not top:
        return []
    units = {"Most messages": "msgs", "Most tokens": "tokens", "Most tool calls": "calls"}
    lines = _head("🏆 Notable Sessions")
    for row in top:
        unit = units.get(row["label"])
        value = f"{row['value']:,} {unit}" if unit else short_duration(row["value"])
        line = f"{row['label']:<16} {value:<16} {row['date']}  {plain(row['session_id'])}"
        lines.append(clip(line, terminal_width() - _INDENT))
    return lines


def _largest(sessions: list[Row]) -> list[str]:
    if not sessions:
        return []
    lines = [*_head("📈 Sessions by Tokens"), f"{'Tokens':>14} {'Cost':>10}  Session"]
    for row in sessions:
        cost = "—" if row["cost"] is None else f"${row['cost']:,.4f}"
        title = f"  {fit(row['title'], 0, 40)}" if row["title"] else ""
        line = f"{row['total_tokens']:>14,} {cost:>10}  {plain(row['session_id'])}{title}"
        lines.append(clip(line, terminal_width() - _INDENT))
    return lines
