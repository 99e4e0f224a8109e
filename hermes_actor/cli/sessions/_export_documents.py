"""Output of an export: sessions read in one snapshot each, as records or as Markdown files."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from hermes_actor.cli.command_store import CommandStore
from hermes_actor.cli.output.console import confirm, progress
from hermes_actor.cli.output.errors import fail
from hermes_actor.cli.output.files import Output, checked_folder, checked_output
from hermes_actor.cli.output.formatting import plain
from hermes_actor.cli.sessions import _markdown as markdown
from hermes_actor.store import queries
from hermes_actor.store.rows import Row
from hermes_actor.store.surrogates import json_bytes
from hermes_actor.tools.redaction import redact_all

__all__ = [
    "Document", "Written", "delete_verified", "parts_of", "read_session", "with_activity",
    "write_documents", "write_prompts", "write_records",
]  # fmt: skip

_MANIFEST = "manifest.jsonl"


class Written(NamedTuple):
    """Amount that an export has written, as a number and as text."""

    number: int
    what: str


def read_session(store: CommandStore, session_id: str) -> Row | None:
    """A session with its messages in one state; ``None`` if it was removed meanwhile."""
    row = with_activity(store, session_id)
    if row is not None:
        del row["last_active"]
    return row


def with_activity(store: CommandStore, session_id: str) -> Row | None:
    """A session with its messages and the time of the latest."""
    return store.query(queries.session_record, session_id)


def write_records(
    store: CommandStore,
    ids: list[str],
    file: IO[bytes],
    *,
    redact: bool = False,
    one: bool = False,
    parts: str = "single",
) -> tuple[int, int]:
    """Write each session as a line of JSON; return the sessions and messages that were written.

    *one*: without the time of the latest message, as a single session is exported.
    """
    read, sessions, messages = read_session if one else with_activity, 0, 0
    with progress("exporting") as tell:
        for number, session_id in enumerate(ids, 1):
            for part in parts_of(store, session_id, parts):
                record = read(store, part)
                if record is None:
                    continue
                if redact:
                    record["messages"] = redact_all(record["messages"])
                file.write(json_bytes(record) + b"\n")
                sessions += 1
                messages += len(record["messages"])
            tell(number, len(ids))
    return sessions, messages


def parts_of(store: CommandStore, session_id: str, parts: str) -> list[str]:
    if parts == "single":
        return [session_id]
    return store.query(queries.compression_lineage, session_id)


class Document(NamedTuple):
    """A file that holds a session, and the ids of the messages that were written to it."""

    session_id: str
    path: Path
    messages: list[int]


def write_prompts(
    store: CommandStore, ids: list[str], output: Output, kind: str, redact: bool
) -> Written:
    """One record or heading per question."""
    count = 0
    with output.writing() as file:
        for session_id in ids:
            record = read_session(store, session_id)
            prompts = _prompts_of(record) if record is not None else []
            prompts = redact_all(prompts) if redact else prompts
            count += len(prompts)
            if kind == "jsonl":
                file.writelines(json_bytes(prompt) + b"\n" for prompt in prompts)
            elif prompts:
                file.write(markdown.prompts_document(prompts).encode())
    return Written(count, f"{count} user prompts")


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


def write_documents(
    store: CommandStore,
    ids: list[str],
    folder: Path | None,
    kind: str,
    parts: str,
    *,
    redact: bool,
    force: bool,
) -> list[Document]:
    """Write one file per session, and a line of the manifest for each."""
    written: list[Document] = []
    if folder is not None:
        folder = checked_folder(folder, *store.protected)
        # Before the first file: it is added to, not replaced.
        manifest = checked_output(folder / _MANIFEST, *store.protected, force=True).path
    for session_id in ids:
        segments = [
            markdown.Segment(record, record.pop("messages"))
            for part in parts_of(store, session_id, parts)
            if (record := read_session(store, part)) is not None
        ]
        if not segments:
            continue
        if redact:
            segments = [s._replace(messages=redact_all(s.messages)) for s in segments]
        text = markdown.document(segments, kind, time.time())
        if folder is None:
            sys.stdout.write(text)
            continue
        path = folder / markdown.file_name(segments[-1].row, kind)
        with checked_output(path, *store.protected, force=force).writing() as file:
            file.write(text.encode("utf-8", "replace"))
        _note(manifest, path, segments, kind, text)
        ids_written = [message["id"] for segment in segments for message in segment.messages]
        written.append(Document(session_id, path, ids_written))
    return written


def _note(
    manifest: Path, path: Path, segments: list[markdown.Segment], kind: str, text: str
) -> None:
    line = {
        "exported_at": markdown.iso(time.time()),
        "format": kind,
        "lineage_session_ids": [segment.row["id"] for segment in segments],
        "message_count": sum(len(segment.messages) for segment in segments),
        "path": str(path),
        "session_id": segments[-1].row["id"],
        "sha256": markdown.digest_of(text),
    }
    try:
        with manifest.open("ab") as file:
            file.write(msgspec.json.encode(line, order="sorted") + b"\n")
    except OSError as error:
        fail(f"cannot write {manifest}: {error.strerror}")


def delete_verified(store: CommandStore, written: Document, *, yes: bool) -> None:
    """Read a document back; if it is whole, remove the session, as far as it is in it."""
    session_id, path, ids = written
    shown = plain(session_id)
    try:
        text = path.read_bytes().decode()  # as it is: line ends are part of messages
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read back: {error}; nothing was deleted")
    if not markdown.verified(text, session_id, len(ids)):
        fail(f"{path} does not hold all {len(ids)} messages of {shown}; nothing was deleted")
    confirm(f"Delete session '{shown}' and all its messages?", yes)
    newest = max(ids, default=0)
    if not store.delete_session_if(session_id, len(ids), newest, store.transcripts):
        fail(
            f"session '{shown}' has messages or delegates that are not in {path}; nothing was"
            " deleted; export it again"
        )
    print(f"Deleted session '{shown}'.")
