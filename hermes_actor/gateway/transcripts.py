"""JSONL transcripts: files that follow the rows of a session, and files that others wrote.

Not a second write path. The store keeps how far each file has come. To follow, the file is cut to
that length, so that a torn line of a crash goes, the new messages are appended and synced, and only
then is the new length kept. So a file is a prefix of the rows at every moment, and never doubled.
"""

from __future__ import annotations

import json
import logging
import math
import os
import stat
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hermes_protocol.operations as ops
from hermes_actor.errors import HermesActorError
from hermes_actor.gateway.entries import is_safe_id
from hermes_actor.gateway.folder_lock import folder_lock
from hermes_actor.store import message_codec as codec
from hermes_actor.store import queries
from hermes_actor.system.descriptors import read_regular
from hermes_protocol.values import to_value

if TYPE_CHECKING:
    from hermes_actor.session_db import SessionDB

__all__ = ["Transcripts", "message_row", "read_lines"]

_log = logging.getLogger("hermes_actor.gateway")

_KEYS = (
    "role", "content", "tool_calls", "tool_call_id", "tool_name", "finish_reason", "reasoning",
    "reasoning_content", "reasoning_details", "codex_reasoning_items", "codex_message_items",
)  # fmt: skip


class Transcripts:
    """The transcript files of one folder."""

    def __init__(self, db: SessionDB, folder: Path, scope: str) -> None:
        self._db = db
        self._folder = folder
        self._scope = scope

    def path(self, session_id: str) -> Path:
        """Return the file of a session. Raises ``ValueError`` for an id that could be a path."""
        if not is_safe_id(session_id):
            raise ValueError(f"{session_id!r} cannot be the name of a file")
        return self._folder / f"{session_id}.jsonl"

    def behind(self) -> list[str]:
        """Return the sessions of this gateway whose files lack messages."""
        return self._db._query(queries.transcripts_behind, self._scope, self._scope)

    def catch_up(self) -> int:
        """Bring every file up to date; return how many had to be written.

        A file that cannot be written is named in the log, and keeps no other one behind.
        """
        return sum(self.try_follow(session_id) for session_id in self.behind())

    def try_follow(self, session_id: str) -> bool:
        """Do :meth:`follow`; a failure is logged, because the messages themselves are stored."""
        try:
            return self.follow(session_id)
        except (HermesActorError, OSError) as error:
            _log.warning("the transcript of %s is behind: %s", session_id, error)
        except Exception:
            # Rows may hold anything: other programs write them, too.
            _log.exception("the transcript of %s is behind", session_id)
        return False

    def follow(self, session_id: str) -> bool:
        """Write what the file of a session lacks; return False if nothing, or not ours to write."""
        if not is_safe_id(session_id):
            return False
        with folder_lock(self._folder / ".transcripts.lock"):
            return self._follow(session_id, self.path(session_id))

    def _follow(self, session_id: str, path: Path) -> bool:
        mark = self._db._query(queries.transcript_state, self._scope, session_id)
        if mark is None:
            if path.exists():
                return False  # of another program: its lines are not ours to cut or to double
            # Before the file: after a crash it would look like that of another program.
            self._mark(session_id, [], 0, 0)
        last_id, lines, size = mark or (0, 0, 0)
        known, rows = self._db._query(queries.messages_after, session_id, last_id)
        if known != lines or (rows and not _reaches(path, size)):
            # Replaced or taken back, or the file was cut or removed: all of it is written again.
            last_id, lines, size = 0, 0, 0
            _known, rows = self._db._query(queries.messages_after, session_id, 0)
        elif not rows:
            return False
        head = self._head(session_id) if not lines else b""
        data = head + b"".join(_line(row) for row in rows)
        if size:
            _append(path, size, data)
        else:
            _replace(path, data)
        self._mark(session_id, rows, lines, size + len(data))
        return True

    def _mark(self, session_id: str, rows: list[dict[str, Any]], lines: int, size: int) -> None:
        self._db._submit(
            ops.TranscriptMark(
                folder=self._scope,
                session_id=session_id,
                last_id=rows[-1]["id"] if rows else 0,
                lines=lines + len(rows),
                bytes=size,
            )
        )

    def _head(self, session_id: str) -> bytes:
        """Return the first line of a file: facts about the session."""
        row = self._db.get_session(session_id) or {}
        meta: dict[str, Any] = {"role": "session_meta", "tools": [], "model": row.get("model")}
        meta |= {"platform": row.get("source"), "timestamp": _iso(row.get("started_at") or 0.0)}
        return _encoded(meta)

    def append_line(self, session_id: str, message: dict[str, Any]) -> None:
        """Add a line to a file that a host keeps by itself; a failure is logged."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self.path(session_id), "ab") as file:
                file.write(_encoded(message))
        except OSError as error:
            _log.warning("%s: %s", self.path(session_id), error)

    def load(self, session_id: str) -> list[dict[str, Any]]:
        """Return the messages of a session: the longer of store and file, and of equals the store.

        With a mark of ours the store is never shorter.
        """
        rows = [_message(row) for row in self._db.get_messages(session_id)]
        rows = [row for row in rows if row["role"] != "session_meta"]
        if not is_safe_id(session_id):
            return rows
        if self._db._query(queries.transcript_state, self._scope, session_id) is not None:
            return rows
        lines = [one for one in read_lines(self.path(session_id)) if not _is_meta(one)]
        return lines if len(lines) > len(rows) else rows


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the messages of a file; broken lines are named in the log and left out."""
    try:
        data = read_regular(path)
    except OSError:
        return []
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and "role" in value:
            found.append(value)
        elif line.strip():
            shown = line[:120].decode("utf-8", "replace")
            _log.warning("line %d of %s is left out: %r", number, path, shown)
    return found


def message_row(message: dict[str, Any], now: datetime) -> ops.MessageRow:
    """Return a message of a host in its stored form, with its own time if it has one."""
    calls = message.get("tool_calls")
    return ops.MessageRow(
        role=message.get("role"),
        timestamp=_seconds(message.get("timestamp"), now),
        content=to_value(codec.encode_content(message.get("content"))),
        tool_calls=codec.encode_json(calls),
        tool_call_id=message.get("tool_call_id"),
        tool_name=message.get("tool_name"),
        token_count=message.get("token_count"),
        finish_reason=message.get("finish_reason"),
        reasoning=message.get("reasoning"),
        reasoning_content=message.get("reasoning_content"),
        reasoning_details=codec.encode_json(message.get("reasoning_details")),
        codex_reasoning_items=codec.encode_json(message.get("codex_reasoning_items")),
        codex_message_items=codec.encode_json(message.get("codex_message_items")),
        calls=codec.count_calls(calls),
    )


def _seconds(value: Any, now: datetime) -> float:
    try:
        if isinstance(value, int | float):
            return float(value) if math.isfinite(value) else now.timestamp()
        return datetime.fromisoformat(value).timestamp()
    except (OverflowError, TypeError, ValueError):
        return now.timestamp()


def _message(row: dict[str, Any]) -> dict[str, Any]:
    kept = {name: row[name] for name in _KEYS if row.get(name) is not None}
    return {"role": row["role"], "content": row.get("content"), **kept} | {
        "timestamp": _iso(row["timestamp"])
    }


def _line(row: dict[str, Any]) -> bytes:
    return _encoded(_message(row))


def _encoded(message: dict[str, Any]) -> bytes:
    text = json.dumps(message, ensure_ascii=False, default=_as_text) + "\n"
    return text.encode("utf-8", "surrogatepass")


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _iso(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).isoformat()
    except (OSError, OverflowError, TypeError, ValueError):
        return str(seconds)  # no time of a clock: milliseconds of another program, for example


def _is_meta(message: dict[str, Any]) -> bool:
    return message.get("role") == "session_meta"


def _reaches(path: Path, size: int) -> bool:
    """Return True if a file has the bytes that were written, or none were."""
    try:
        found = path.stat()
    except OSError:
        return not size
    return stat.S_ISREG(found.st_mode) and found.st_size >= size


def _append(path: Path, size: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.truncate(size)  # a torn line of a follower that died goes
        file.seek(size)
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_suffix(".jsonl.tmp")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
