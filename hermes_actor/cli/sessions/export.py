"""``sessions export``: sessions as JSON lines or Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from hermes_actor.cli.command_store import CommandStore, open_store
from hermes_actor.cli.options import (
    db_option,
    dry_run_option,
    force_option,
    json_option,
    yes_option,
)
from hermes_actor.cli.output.console import print_result
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.files import checked_output
from hermes_actor.cli.output.formatting import plain
from hermes_actor.cli.session_completion import complete_session
from hermes_actor.cli.sessions import _export_documents as documents
from hermes_actor.cli.sessions._filters import filter_options, filters_of, find, headline
from hermes_actor.store import queries

__all__ = ["export"]

_LISTED = 100
_FORMATS = ("jsonl", "md", "qmd")
_UNSUPPORTED = ("html", "trace")
"""Formats of the peer, which are refused by name."""


class _Format(click.Choice[str]):
    """Takes the unsupported formats too, and offers the others."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        found = super().shell_complete(ctx, param, incomplete)
        return [item for item in found if item.value not in _UNSUPPORTED]


@click.command()
@click.argument("output", required=False)
@click.option(
    "--session-id", metavar="ID", shell_complete=complete_session, help="Export only this session."
)
@click.option(
    "--format", "kind", type=_Format([*_FORMATS, *_UNSUPPORTED]), default="jsonl",
    metavar=f"[{'|'.join(_FORMATS)}]", show_default=True, help="File format.",
)  # fmt: skip
@click.option(
    "--only", type=click.Choice(["user-prompts"]), help="Write one record per user message."
)
@click.option("--redact", is_flag=True, help="Mask values that look like secrets.")
@click.option(
    "--lineage", "parts", type=click.Choice(["single", "logical"]), default="single",
    show_default=True, help="logical joins all parts of a compressed conversation.",
)  # fmt: skip
@filter_options
@force_option
@click.option(
    "--delete-after-verified",
    is_flag=True,
    help="Read the Markdown file back and, if it is complete, delete the session.",
)
@dry_run_option
@yes_option
@json_option
@db_option
def export(
    output: str | None,
    session_id: str | None,
    kind: str,
    only: str | None,
    redact: bool,
    parts: str,
    force: bool,
    delete_after_verified: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    db: Path | None,
    **given: Any,
) -> None:
    """Write sessions to a file.

    OUTPUT is a file for jsonl, `-` for standard output, and a folder for md and qmd (default
    HERMES_HOME/session-exports). An existing file is overwritten only with --force. Without a
    filter, every session is exported, most recently active first; --source alone takes all sessions
    of a source, other filters only ended ones. Each session is read in one snapshot, and only one
    is in memory at a time.

    Exit codes: 0 written, 1 not found or not writable.

    \b
    Examples:
      hermes-actor sessions export backup.jsonl
      hermes-actor sessions export - --session-id 20260301_1010 | jq .messages
      hermes-actor sessions export --format md --session-id 20260301_1010 notes/
      hermes-actor sessions export prompts.jsonl --only user-prompts --redact
    """
    if kind in _UNSUPPORTED:
        fail(f"--format {kind} is not supported; use jsonl, md or qmd")
    if kind == "jsonl" and output is None and not dry_run:
        raise click.UsageError("OUTPUT is required for jsonl (- for standard output)")
    if delete_after_verified:
        if session_id is None or kind == "jsonl" or only is not None or output == "-":
            raise click.UsageError("--delete-after-verified needs --session-id and a Markdown file")
        if redact or parts != "single":
            raise click.UsageError(
                "--delete-after-verified needs the whole session, without --redact and --lineage"
            )
    asked = filters_of(given)
    with open_store(db) as store:
        if dry_run:
            _dry_run(store, asked)
            return
        ids = _selected(store, session_id, asked)
        target: str | Path = output or "-"
        files: list[documents.Document] = []
        if only is not None:
            to = checked_output(target, *store.protected, force=force)
            done = documents.write_prompts(store, ids, to, kind, redact)
        elif kind == "jsonl":
            to = checked_output(target, *store.protected, force=force)
            one = session_id is not None
            with to.writing() as stream:
                number, _ = documents.write_records(
                    store, ids, stream, redact=redact, one=one, parts=parts
                )
            done = documents.Written(number, _sessions(number))
        else:
            if session_id is None and not asked:
                fail(f"--format {kind} needs --session-id or a filter")
            target = output or store.home / "session-exports"
            folder = None if output == "-" else Path(target)
            files = documents.write_documents(
                store, ids, folder, kind, parts, redact=redact, force=force
            )
            done = documents.Written(len(files), _sessions(len(files)))
        if target != "-":
            paths = [str(file.path) for file in files]
            report = {"exported": done.number, "output": str(target), "files": paths}
            print_result(report, f"Exported {done.what} to {target}", as_json)
        if delete_after_verified:
            for file in files:
                documents.delete_verified(store, file, yes=yes)


def _selected(store: CommandStore, session_id: str | None, asked: dict[str, Any]) -> list[str]:
    if session_id is not None:
        return [store.find_session(session_id)]
    if set(asked) <= {"source"}:
        return store.query(queries.ids_by_activity, asked.get("source"), -1)
    return [row["id"] for row in find(store, asked, archived=None)]


def _dry_run(store: CommandStore, asked: dict[str, Any]) -> None:
    if not asked:
        fail("--dry-run needs a filter")
    rows = find(store, asked, archived=None)
    print(headline(rows, asked))
    for row in rows[:_LISTED]:
        print(f"  {plain(row['id'])}  {plain(row['source'])}")
    if len(rows) > _LISTED:
        print(f"  … and {len(rows) - _LISTED} more")


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"
