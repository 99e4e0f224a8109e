"""Import of transcript files that another program wrote, for sessions that lack their messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hermes_protocol.operations as ops
from hermes_actor.api.base import fenced
from hermes_actor.errors import RequestError, TurnBusy
from hermes_actor.gateway.entries import is_safe_id
from hermes_actor.gateway.transcripts import message_row, read_lines
from hermes_actor.store import queries

if TYPE_CHECKING:
    from hermes_actor.api.provider import StoreMethods

__all__ = ["Migrated", "migrate_transcripts"]

_log = logging.getLogger("hermes_actor.gateway")

Row = dict[str, Any]


class Migrated(NamedTuple):
    """Counts of sessions and messages taken over, and of files left as they are."""

    sessions: int
    messages: int
    skipped: int


def migrate_transcripts(
    db: StoreMethods,
    folder: Path,
    scope: str,
    *,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _name: None,
) -> Migrated:
    """Store the messages of every ``*.jsonl`` that has more of them than its session.

    A session that is missing is created. What is stored stays as it is: the file must begin or end
    with it, or it is left alone. Each file is one change, and is renamed to ``*.jsonl.migrated``
    after it; files of our own are left alone. Repeating it is harmless.
    """
    sessions = added = skipped = 0
    for file in sorted(folder.glob("*.jsonl")):
        progress(file.name)
        session_id = file.name.removesuffix(".jsonl")
        ours = db._query(queries.transcript_state, scope, session_id) is not None
        count = 0
        if not ours and is_safe_id(session_id):
            try:
                count = _take_over(db, file, dry_run)
            except (RequestError, OverflowError, TypeError, ValueError) as error:
                # What no store takes; it must not keep out the files behind it.
                _log.warning("%s is left alone: %s", file, error)
        if count:
            sessions, added = sessions + 1, added + count
        else:
            skipped += 1
    return Migrated(sessions, added, skipped)


def _take_over(db: StoreMethods, file: Path, dry_run: bool) -> int:
    """Store the messages of one file; return how many the session did not have."""
    session_id = file.name.removesuffix(".jsonl")
    lines = read_lines(file)
    if dry_run or not _missing(db, session_id, lines):
        return _missing(db, session_id, lines)
    try:
        with db.turn(session_id, holder="migrate-transcripts") as turn:
            missing = _missing(db, session_id, lines)  # once more: a turn has ended meanwhile
            if missing:
                _store(db, session_id, lines, file.stat().st_mtime, int(turn))
    except TurnBusy as busy:
        _log.warning("%s is left for later: %s", file, busy)
        return 0
    if missing:
        file.rename(file.with_suffix(".jsonl.migrated"))
    return missing


def _missing(db: StoreMethods, session_id: str, lines: list[Row]) -> int:
    """Return how many messages of a file are not stored; 0 if it differs from them."""
    stored = _messages(db.get_messages(session_id))
    missing = len(_messages(lines)) - len(stored)
    if missing <= 0:
        return 0
    if _whole(_messages(lines), stored) is None:
        _log.warning(
            "the file of session %s is left alone: it neither begins nor ends with the messages"
            " that are stored", session_id,
        )  # fmt: skip
        return 0
    return missing


def _store(
    db: StoreMethods, session_id: str, lines: list[Row], written_at: float, turn: int
) -> None:
    whole = _whole(_messages(lines), _messages(db.get_messages(session_id))) or []
    written = datetime.fromtimestamp(written_at)
    rows = [message_row(message, written) for message in whole]
    if db.get_session(session_id) is None:
        meta = next((line for line in lines if line["role"] == "session_meta"), {})
        db._submit(_import(session_id, meta, rows))
    else:
        db._submit(ops.MessagesReplace(session_id=session_id, messages=rows, **fenced(turn)))


def _messages(lines: list[Row]) -> list[Row]:
    return [line for line in lines if line["role"] != "session_meta"]


def _whole(messages: list[Row], stored: list[Row]) -> list[Row] | None:
    """Return the messages of a file with the stored ones in their place, which have more to them.

    ``None`` if the file neither begins nor ends with what is stored.
    """
    count = len(stored)
    if _texts(messages[:count]) == _texts(stored):
        return [*stored, *messages[count:]]
    if _texts(messages[len(messages) - count :]) == _texts(stored):
        return [*messages[: len(messages) - count], *stored]
    return None


def _texts(messages: list[Row]) -> list[tuple[Any, Any]]:
    return [(one["role"], one.get("content")) for one in messages]


def _import(session_id: str, meta: dict[str, Any], rows: list[ops.MessageRow]) -> ops.SessionImport:
    start = rows[0].timestamp
    source = str(meta.get("platform") or "unknown")
    session = ops.SessionRow(
        id=session_id, source=source, started_at=start, model=meta.get("model")
    )
    return ops.SessionImport(session=session, messages=rows, now=start)
