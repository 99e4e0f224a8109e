"""Filters of ``prune``, ``archive`` and ``export``: options, times, and what was asked in words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.formatting import clock_time, count, plain, wrapped
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.sessions.filters import FILTERS, MissingColumn

if TYPE_CHECKING:
    from hermes_actor.cli.command_store import CommandStore

__all__ = ["TIME_FLAGS", "filter_options", "filters_of", "find", "headline", "summary"]

_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), 604_800),
}
_AGO = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)", re.IGNORECASE)

TIME_FLAGS = ("older_than", "before", "newer_than", "after")

_OPTIONS = (
    click.option(
        "--older-than",
        metavar="T",
        help="Started before T: days (90), a span (36h, 2w), or a date.",
    ),
    click.option(
        "--before",
        metavar="T",
        help="Like --older-than. If both are given, the earlier one applies.",
    ),
    click.option("--newer-than", metavar="T", help="Started at or after T."),
    click.option(
        "--after", metavar="T", help="Like --newer-than. If both are given, the later one applies."
    ),
    click.option("--source", help="Source is exactly this."),
    click.option("--title", metavar="TEXT", help="Title contains this."),
    click.option("--end-reason", metavar="TEXT", help="End reason is exactly this."),
    click.option("--cwd", metavar="PATH", help="Working directory is this one or below it."),
    click.option("--min-messages", type=int, help="At least this many messages."),
    click.option("--max-messages", type=int, help="At most this many messages."),
    click.option("--model", metavar="TEXT", help="Model contains this."),
    click.option("--provider", metavar="TEXT", help="Billing provider is exactly this."),
    click.option("--user", metavar="ID", help="User is exactly this."),
    click.option("--chat-id", metavar="ID", help="Chat is exactly this."),
    click.option("--chat-type", metavar="TEXT", help="Kind of chat is exactly this."),
    click.option("--branch", metavar="TEXT", help="Git branch contains this."),
    click.option("--min-tokens", type=int, help="At least this many tokens, input plus output."),
    click.option("--max-tokens", type=int, help="At most this many tokens."),
    click.option("--min-cost", type=float, help="At least this many dollars."),
    click.option("--max-cost", type=float, help="At most this many dollars."),
    click.option("--min-tool-calls", type=int, help="At least this many tool calls."),
    click.option("--max-tool-calls", type=int, help="At most this many tool calls."),
)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """All filters as options of *command*."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def filters_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The filters that options ask for, by their names in the store."""
    now = time.time()
    times = {
        flag: _moment(flag, given[flag], now) for flag in TIME_FLAGS if given[flag] is not None
    }
    before = [times[flag] for flag in ("older_than", "before") if flag in times]
    after = [times[flag] for flag in ("newer_than", "after") if flag in times]
    asked: dict[str, Any] = {}
    if before:
        asked["started_before"] = min(before)
    if after:
        asked["started_after"] = max(after)
    if before and after and max(after) >= min(before):
        fail(
            f"empty window: started at or after {clock_time(max(after))} and before"
            f" {clock_time(min(before))}"
        )
    for name in FILTERS:
        if given.get(name) is not None:
            value = given[name]
            asked[name] = value.rstrip("/") or "/" if name == "cwd" else value
    return asked


def _moment(flag: str, text: str, now: float) -> float:
    """A point in time: so long ago, or a date."""
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            return now - float(ago.group(1)) * _UNITS[ago.group(2).lower() or "d"]
        return datetime.fromisoformat(text.strip()).timestamp()
    except (KeyError, ValueError, OverflowError):
        fail(
            f"--{flag.replace('_', '-')}: {text!r} is no time; give days (90), a span (36h, 2w)"
            " or a date (2026-03-01, 2026-03-01T10:00)"
        )


def summary(asked: Mapping[str, Any]) -> str:
    """The filters in words."""
    words = (
        FILTERS[name].words.format(clock_time(value) if name.startswith("started_") else value)
        for name, value in asked.items()
    )
    return ", ".join(words)


def headline(rows: list[Row], asked: Mapping[str, Any], more: str = "") -> str:
    """Return how many sessions match, and what was asked for."""
    verb = "matches" if len(rows) == 1 else "match"
    return wrapped(f"{count(len(rows), 'session')} {verb} ({plain(summary(asked))}{more}):")


def find(store: CommandStore, asked: Mapping[str, Any], *, archived: bool | None) -> list[Row]:
    """The sessions that the filters select, oldest first; refuses what the file cannot tell."""
    try:
        return store.query(queries.matching_sessions, asked, archived)
    except MissingColumn as error:
        flag = "--" + error.name.replace("_", "-")
        fail(f"{flag} cannot be used on {store.address}: it has no column {error.column}")
