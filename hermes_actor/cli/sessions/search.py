"""``hermes-actor search``: messages that match, by session, with the words found marked."""

from __future__ import annotations

import re
from pathlib import Path

import click

from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.cli.output.formatting import (
    clip,
    clock_time,
    coloured,
    count,
    page,
    plain,
    print_json,
    styled,
    terminal_width,
    width,
)
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.search.query import Filters
from hermes_actor.tools.highlights import marked_spans

__all__ = ["search"]

_HIDDEN = ["tool"]
_BOTH_SIDES = 3
_LEAST_TEXT = 20


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="QUERY...")
@click.option("--source", "sources", multiple=True, help="Search only these sources.")
@click.option(
    "--exclude-source", "excluded", multiple=True, help="Skip these sources. Default: tool."
)
@click.option("--role", "roles", multiple=True, help="Search only messages of these roles.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True,
    help="Show at most this many hits.",
)  # fmt: skip
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Skip this many hits.")
@click.option("--context", is_flag=True, help="Show the messages before and after each hit.")
@click.option("--all", "everything", is_flag=True, help="Search hidden sources too.")
@json_option
@db_option
def search(
    words: tuple[str, ...],
    sources: tuple[str, ...],
    excluded: tuple[str, ...],
    roles: tuple[str, ...],
    limit: int,
    offset: int,
    context: bool,
    everything: bool,
    as_json: bool,
    db: Path | None,
) -> None:
    """Search the text of all messages.

    Words are joined by AND. OR, NOT, "exact phrases" and begin* work as in SQLite's full-text
    search; Chinese, Japanese and Korean need no blanks between words. Every message that was
    stored before is looked at: an index that is behind is brought up to date first. Hits are
    grouped by session, the best session first; of equal hits, the newest comes first.

    Exit codes: 0, also if nothing was found; 1 the store or its index cannot be read.

    \b
    Examples:
      hermes-actor search flaky parser
      hermes-actor search 'docker OR podman' --role user --context
      hermes-actor search 大别野 --json | jq -r '.[].session_id'
    """
    query = " ".join(words)
    hidden = list(excluded) or (None if everything or sources else _HIDDEN)
    filters = Filters(list(sources) or None, hidden, list(roles) or None, newest_first=True)
    with open_store(db) as store:
        hits = store.query(queries.search_messages, query, filters, limit, offset)
        if as_json:
            print_json(hits)
            return
        if not hits:
            print(f"Nothing found for: {plain(query)}")
            return
        titles = {hit["session_id"]: store.get_session_title(hit["session_id"]) for hit in hits}
        total = offset + len(hits)
        if len(hits) == limit:
            total = store.query(queries.count_matches, query, filters)
    lines: list[str] = []
    for session_id, title in titles.items():
        found = [hit for hit in hits if hit["session_id"] == session_id]
        lines += [*_session(found, title, query, context), ""]
    shown = f"{len(hits)} of {count(total, 'hit')}"
    if offset + len(hits) < total:
        shown += f"; more: --offset {offset + len(hits)}"
    page("\n".join([*lines, styled(shown, dim=True)]))


def _session(hits: list[Row], title: str | None, query: str, context: bool) -> list[str]:
    """Return a heading, and the hits of one session, newest first."""
    identity, source = plain(hits[0]["session_id"]), plain(hits[0]["source"])
    rest = clip(f"  {source}" + (f"  {plain(title)}" if title else ""),
                max(0, terminal_width() - width(identity)))  # fmt: skip
    identity = clip(identity, terminal_width())
    lines = [styled(identity, fg="cyan", bold=True) + rest]
    for hit in sorted(hits, key=lambda hit: -hit["timestamp"]):
        place = _place_of(hit)
        for number, neighbour in enumerate(hit["context"] if context else ()):
            if number == place:
                lines.append(_hit_line(hit, query))
            else:
                text = plain(" ".join(neighbour["content"].split()))
                line = clip(f"    {plain(neighbour['role'])}: {text}", terminal_width())
                lines.append(styled(line, dim=True))
        if not context or not hit["context"]:
            lines.append(_hit_line(hit, query))
    return lines


def _place_of(hit: Row) -> int:
    """Return the place of the hit among its neighbours: before it, itself, after it."""
    near, found = hit["context"], re.findall(r">>>(.*?)<<<", hit["snippet"] or "")
    if len(near) == _BOTH_SIDES:
        return 1
    places = [n for n, one in enumerate(near) if found and found[0] in one["content"]]
    return places[0] if places else 0


def _hit_line(hit: Row, query: str) -> str:
    """Return time, role and text of a hit on one line, cut on both sides of the words found."""
    head = f"  {clock_time(hit['timestamp'])}  {plain(hit['role'])}: "
    text, spans = marked_spans(plain(" ".join((hit["snippet"] or "").split())), query)
    first = spans[0][0] if spans else 0
    signs = 0 if coloured() else len(">>><<<") * len(spans)
    room = max(_LEAST_TEXT, terminal_width() - width(head) - signs)
    begin = 0 if width(text) <= room else _begin(text, first, room // 3)
    shown, end = [], begin
    dots = "…" if begin else ""
    cells = room - len(dots)
    for start, stop in spans:
        if start < end or width(text[begin:stop]) > cells - 1:
            continue
        shown += [text[end:start], _found(text[start:stop])]
        end = stop
    rest = clip(text[end:], max(0, cells - width(text[begin:end])))
    return styled(head, dim=True) + dots + "".join(shown) + rest


def _begin(text: str, first: int, before: int) -> int:
    """Return where to begin so that at most *before* cells stand before the first word found."""
    begin = first
    while begin > 0 and width(text[begin - 1 : first]) <= before:
        begin -= 1
    return begin


def _found(text: str) -> str:
    return click.style(text, fg="yellow", bold=True) if coloured() else f">>>{text}<<<"
