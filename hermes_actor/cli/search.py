"""``hermes-actor search``: messages that match, highlighted."""

from __future__ import annotations

import re
from pathlib import Path

import click

from hermes_actor.cli.command_store import open_store
from hermes_actor.cli.formatting import (
    clock_time,
    coloured,
    cut,
    page,
    plain,
    print_json,
    relative_time,
    styled,
)
from hermes_actor.cli.options import db_option, json_option
from hermes_actor.store.rows import Row
from hermes_actor.tools.summaries import query_terms

__all__ = ["search"]

_HIDDEN = ["tool"]
_LINE = 200


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
    stored before is looked at: an index that is behind is brought up to date first.

    Exit codes: 0, also if nothing was found; 1 the store or its index cannot be read.

    \b
    Examples:
      hermes-actor search flaky parser
      hermes-actor search 'docker OR podman' --role user --context
      hermes-actor search 大别野 --json | jq -r '.[].session_id'
    """
    query = " ".join(words)
    hidden = list(excluded) or (None if everything or sources else _HIDDEN)
    with open_store(db) as store:
        hits = store.search_messages(
            query, list(sources) or None, hidden, list(roles) or None, limit=limit, offset=offset
        )
        if as_json:
            print_json(hits)
            return
        if not hits:
            print(f"Nothing found for: {plain(query)}")
            return
        titles = {hit["session_id"]: store.get_session_title(hit["session_id"]) for hit in hits}
    lines: list[str] = []
    for hit in hits:
        lines += [*_shown(hit, titles[hit["session_id"]], query, context), ""]
    page("\n".join(lines[:-1]))


def _shown(hit: Row, title: str | None, query: str, context: bool) -> list[str]:
    head = styled(plain(hit["session_id"]), fg="cyan", bold=True)
    named = f"  {plain(title)}" if title else ""
    moment = f"{clock_time(hit['timestamp'])}, {relative_time(hit['timestamp'])}"
    where = styled(plain(f"({hit['source']}, {hit['role']}, {moment})"), dim=True)
    lines = [f"{head}{named}  {where}"]
    if not context:
        return [*lines, f"  {_marked(hit['snippet'] or '')}"]
    for neighbour in hit["context"]:
        text = cut(plain(" ".join(neighbour["content"].split())), _LINE)
        lines.append(f"  {plain(neighbour['role'])}: {_highlighted(text, query)}")
    return lines


def _marked(snippet: str) -> str:
    """A snippet as the index makes it: hits stand between ``>>>`` and ``<<<``."""
    text = plain(" ".join(snippet.split()))
    if not coloured():
        return text
    return re.sub(
        r">>>(.*?)<<<", lambda found: click.style(found.group(1), fg="yellow", bold=True), text
    )


def _highlighted(text: str, query: str) -> str:
    if not coloured():
        return text
    terms = [re.escape(term.rstrip("*")) for term in query_terms(query) if term.rstrip("*")]
    if not terms:
        return text
    return re.sub(
        "|".join(terms),
        lambda found: click.style(found.group(0), fg="yellow", bold=True),
        text,
        flags=re.IGNORECASE,
    )
