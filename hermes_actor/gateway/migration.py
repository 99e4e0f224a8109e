"""Import of transcript files that another program wrote, for sessions that lack their messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hermes_protocol.operations as ops
from hermes_actor.gateway.entries import is_safe_id
from hermes_actor.gateway.transcripts import message_row, read_lines
from hermes_actor.store import queries

if TYPE_CHECKING:
    from hermes_actor.session_db import SessionDB

__all__ = ["Migrated", "migrate_transcripts"]


class Migrated(NamedTuple):
    """Counts of sessions and messages taken over, and of files left as they are."""

    sessions: int
    messages: int
    skipped: int


def migrate_transcripts(
    db: SessionDB,
    folder: Path,
    scope: str,
    *,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _name: None,
) -> Migrated:
    """Store the messages of every ``*.jsonl`` that has more of them than its session.

    A session that is missing is created. Each file is one change, and is renamed to
    ``*.jsonl.migrated`` after it; files of our own are left alone. Repeating it is harmless.
    """
    sessions = added = skipped = 0
    for file in sorted(folder.glob("*.jsonl")):
        progress(file.name)
        session_id = file.name.removesuffix(".jsonl")
        ours = db._query(queries.transcript_state, scope, session_id) is not None
        count = 0 if ours or not is_safe_id(session_id) else _take_over(db, file, dry_run)
        if count:
            sessions, added = sessions + 1, added + count
        else:
            skipped += 1
    return Migrated(sessions, added, skipped)


def _take_over(db: SessionDB, file: Path, dry_run: bool) -> int:
    """Store the messages of one file; return how many the session did not have."""
    session_id = file.name.removesuffix(".jsonl")
    lines = read_lines(file)
    messages = [line for line in lines if line["role"] != "session_meta"]
    stored = [row for row in db.get_messages(session_id) if row["role"] != "session_meta"]
    missing = len(messages) - len(stored)
    if missing <= 0 or dry_run:
        return max(0, missing)
    written = datetime.fromtimestamp(file.stat().st_mtime)
    rows = [message_row(message, written) for message in messages]
    if db.get_session(session_id) is None:
        meta = next((line for line in lines if line["role"] == "session_meta"), {})
        db._submit(_import(session_id, meta, rows))
    else:
        # The stored messages are the tail of the file, or fewer of the same: the file has them all.
        db._submit(ops.MessagesReplace(session_id=session_id, messages=rows))
    file.rename(file.with_suffix(".jsonl.migrated"))
    return missing


def _import(session_id: str, meta: dict[str, Any], rows: list[ops.MessageRow]) -> ops.SessionImport:
    start = rows[0].timestamp
    source = str(meta.get("platform") or "unknown")
    session = ops.SessionRow(
        id=session_id, source=source, started_at=start, model=meta.get("model")
    )
    return ops.SessionImport(session=session, messages=rows, now=start)
