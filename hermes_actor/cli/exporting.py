"""``sessions export``: sessions as JSON lines or Markdown."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from hermes_actor.cli import markdown
from hermes_actor.cli.changing import resolved
from hermes_actor.cli.filters import filter_options, filters_of, find, summary
from hermes_actor.cli.manners import confirmed, db_option, progress
from hermes_actor.cli.opening import Store, opened
from hermes_actor.cli.refusing import refuse
from hermes_actor.cli.words import json_bytes
from hermes_actor.store import activity, lineage
from hermes_actor.store import messages as stored
from hermes_actor.store.archive import is_archived
from hermes_actor.store.rows import scalar
from hermes_actor.store.sessions import get_session
from hermes_actor.tools.redaction import redact_all

if TYPE_CHECKING:
    from hermes_actor.sqlite import Connection
    from hermes_actor.store.rows import Row

__all__ = ["export"]

_LISTED = 100
_UNSUPPORTED = ("html", "trace")


@click.command()
@click.argument("output", required=False)
@click.option("--session-id", metavar="ID", help="Only this session.")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["jsonl", "md", "qmd", *_UNSUPPORTED]),
    default="jsonl",
    show_default=True,
    help="html and trace are not supported.",
)
@click.option("--only", type=click.Choice(["user-prompts"]), help="One record per user message.")
@click.option("--redact", is_flag=True, help="Mask what looks like a secret.")
@click.option(
    "--lineage",
    "parts",
    type=click.Choice(["single", "logical"]),
    default="single",
    show_default=True,
    help="logical joins all parts of a compressed conversation.",
)
@filter_options
@click.option("--force", is_flag=True, help="Overwrite Markdown files that exist.")
@click.option(
    "--delete-after-verified",
    is_flag=True,
    help="Read the Markdown file back, then delete the session.",
)
@click.option("--dry-run", is_flag=True, help="Only name the sessions that a filter selects.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before deleting.")
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
    db: Path | None,
    **given: Any,
) -> None:
    """Write sessions to a file.

    OUTPUT is a file for jsonl, `-` for standard output, and a folder for md and qmd (default
    HERMES_HOME/session-exports). Without a filter every session is exported, most recently active
    first; --source alone takes all sessions of a source, other filters only those that have ended.
    Each session is read in one consistent state, and only one is in memory at a time.

    \b
    Examples:
      hermes-actor sessions export backup.jsonl
      hermes-actor sessions export - --session-id 20260301_1010 | jq .messages
      hermes-actor sessions export --format md --session-id 20260301_1010 notes/
      hermes-actor sessions export prompts.jsonl --only user-prompts --redact
    """
    if kind in _UNSUPPORTED:
        refuse(f"--format {kind} is not supported; use jsonl, md or qmd")
    if kind == "jsonl" and output is None and not dry_run:
        raise click.UsageError("OUTPUT is required for jsonl (- for standard output)")
    asked = filters_of(given)
    with opened(db) as store:
        if dry_run:
            _dry_run(store, asked)
            return
        ids = _selected(store, session_id, asked)
        if only is not None:
            _prompts(store, ids, output, kind, redact)
        elif kind == "jsonl":
            _json_lines(store, ids, output or "-", redact, one=session_id is not None, parts=parts)
        else:
            if session_id is None and not asked:
                refuse(f"--format {kind} needs --session-id or a filter")
            folder = (
                None if output == "-" else Path(output or store.path.parent / "session-exports")
            )
            files = _documents(store, ids, folder, kind, parts, redact=redact, force=force)
            if delete_after_verified:
                _delete_verified(store, session_id, files, yes=yes)


def _selected(store: Store, session_id: str | None, asked: dict[str, Any]) -> list[str]:
    if session_id is not None:
        return [resolved(store, session_id)]
    if set(asked) <= {"source"}:
        where, parameters = ("s.source = ?", (asked["source"],)) if asked else ("1", ())
        listed = activity.Listed(where, parameters, asked.get("source"))
        return store.read(
            lambda conn: activity.by_activity(
                conn, listed, limit=-1, offset=0, through_lineage=False
            )
        )
    return [row["id"] for row in find(store, asked, archived=None)]


def _dry_run(store: Store, asked: dict[str, Any]) -> None:
    if not asked:
        refuse("--dry-run needs a filter")
    rows = find(store, asked, archived=None)
    print(f"{len(rows)} session(s) match ({summary(asked)}):")
    for row in rows[:_LISTED]:
        print(f"  {row['id']}  {row['source']}")
    if len(rows) > _LISTED:
        print(f"  … and {len(rows) - _LISTED} more")


# --- JSON lines ------------------------------------------------------------------------------


def _record(conn: Connection, session_id: str) -> Row | None:
    """A session with its messages in one state; ``None`` if it was removed meanwhile."""
    row = get_session(conn, session_id)
    if row is None:
        return None
    if "archived" not in row and is_archived(conn, session_id):
        # The mark is in a table of ours where the file has no column for it.
        row["archived"] = 1
    return {**row, "messages": stored.get_messages(conn, session_id)}


def _with_activity(conn: Connection, session_id: str) -> Row | None:
    row = _record(conn, session_id)
    if row is None:
        return None
    texts = row.pop("messages")
    latest = scalar(conn, "SELECT MAX(timestamp) FROM messages WHERE session_id = ?", (session_id,))
    row["last_active"] = row["started_at"] if latest is None else latest
    row["messages"] = texts
    return row


def _json_lines(
    store: Store, ids: list[str], output: str, redact: bool, *, one: bool, parts: str
) -> None:
    read, written = _record if one else _with_activity, 0
    with _writing(output) as file, progress("exporting") as tell:
        for session_id in ids:
            for part in _parts(store, session_id, parts):
                record = store.read(read, part)
                if record is None:
                    continue
                if redact:
                    record["messages"] = redact_all(record["messages"])
                file.write(json_bytes(record) + b"\n")
                written += 1
            tell(written, len(ids))
    if output != "-":
        what = "1 session" if one and written == 1 else f"{written} sessions"
        print(f"Exported {what} to {output}")


def _parts(store: Store, session_id: str, parts: str) -> list[str]:
    if parts == "single":
        return [session_id]
    return store.read(lineage.compression_lineage, session_id)


@contextlib.contextmanager
def _writing(output: str) -> Iterator[IO[bytes]]:
    """Standard output, or a private file that appears when it is complete."""
    if output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(output)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            yield file
        unfinished.replace(path)
    except OSError as error:
        refuse(f"cannot write {output}: {error.strerror}")
    finally:
        unfinished.unlink(missing_ok=True)


# --- user prompts ----------------------------------------------------------------------------


def _prompts(store: Store, ids: list[str], output: str | None, kind: str, redact: bool) -> None:
    count = 0
    with _writing(output or "-") as file:
        for session_id in ids:
            record = store.read(_record, session_id)
            prompts = _prompts_of(record) if record is not None else []
            prompts = redact_all(prompts) if redact else prompts
            count += len(prompts)
            if kind == "jsonl":
                file.writelines(json_bytes(prompt) + b"\n" for prompt in prompts)
            elif prompts:
                file.write(markdown.prompts_document(prompts).encode())
    if output not in (None, "-"):
        print(f"Exported {count} user prompts to {output}")


def _prompts_of(record: Row) -> list[dict[str, Any]]:
    prompts = []
    users = (m for m in record["messages"] if m["role"] == "user")
    for index, message in enumerate(users, 1):
        prompt = {
            "session_id": record["id"],
            "index": index,
            "created_at": markdown.iso(message["timestamp"]),
            "role": "user",
            "text": message["content"],
            "message_id": message["id"],
        }
        if message.get("platform_message_id"):
            prompt["event_id"] = message["platform_message_id"]
        prompts.append(prompt)
    return prompts


# --- Markdown --------------------------------------------------------------------------------


def _documents(
    store: Store,
    ids: list[str],
    folder: Path | None,
    kind: str,
    parts: str,
    *,
    redact: bool,
    force: bool,
) -> dict[str, Path]:
    """Write one file per session, and a line of the manifest for each. The files, by session."""
    files: dict[str, Path] = {}
    for session_id in ids:
        segments = [
            markdown.Segment(record, record.pop("messages"))
            for part in _parts(store, session_id, parts)
            if (record := store.read(_record, part)) is not None
        ]
        if not segments:
            continue
        if redact:
            segments = [s._replace(messages=redact_all(s.messages)) for s in segments]
        text = markdown.document(segments, kind, time.time())
        if folder is None:
            sys.stdout.write(text)
            continue
        files[session_id] = path = folder / markdown.file_name(segments[-1].row, kind)
        if path.exists() and not force:
            refuse(f"{path} exists; --force overwrites it")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            refuse(f"cannot write {folder}: {error.strerror}")
        with _writing(str(path)) as file:
            file.write(text.encode("utf-8", "replace"))
        _note(folder, path, segments, kind, text)
    if folder is not None:
        what = "1 session" if len(files) == 1 else f"{len(files)} sessions"
        print(f"Exported {what} to {folder}")
    return files


def _note(folder: Path, path: Path, segments: list[markdown.Segment], kind: str, text: str) -> None:
    line = {
        "exported_at": markdown.iso(time.time()),
        "format": kind,
        "lineage_session_ids": [segment.row["id"] for segment in segments],
        "message_count": sum(len(segment.messages) for segment in segments),
        "path": str(path),
        "session_id": segments[-1].row["id"],
        "sha256": markdown.digest_of(text),
    }
    with (folder / "manifest.jsonl").open("ab") as manifest:
        manifest.write(msgspec.json.encode(line, order="sorted") + b"\n")


def _delete_verified(
    store: Store, session_id: str | None, files: dict[str, Path], *, yes: bool
) -> None:
    if session_id is None or not files:
        refuse("--delete-after-verified needs --session-id and a file")
    ((found, path),) = files.items()
    count = store.message_count(found)
    if not markdown.verified(path.read_text("utf-8"), found, count):
        refuse(f"{path} does not hold all {count} messages of {found}; nothing was deleted")
    if not confirmed(f"Delete session '{found}' and all its messages?", yes):
        return
    store.delete_session(found, store.transcripts)
    print(f"Deleted session '{found}'.")
