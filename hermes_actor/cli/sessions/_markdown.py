"""A session as a Markdown file that can prove that it is complete."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from hermes_actor._version import __version__

if TYPE_CHECKING:
    from hermes_actor.store.rows import Row

__all__ = ["Segment", "document", "file_name", "iso", "prompts_document", "verified"]

_PENDING = "pending"
_PLAIN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_DIGEST = re.compile(r"^- SHA-256: `(\w+)`$", re.MULTILINE)
_EXPORTED = re.compile(r"^- Exported messages: (\d+)$", re.MULTILINE)
_SESSION = re.compile(r"^- Session: `(.*)`$", re.MULTILINE)


class Segment(NamedTuple):
    """One session of a lineage with its messages."""

    row: Row
    messages: list[Row]


def iso(moment: float | None) -> str | None:
    """ISO-8601 in UTC, whole seconds; ``None`` for what is no moment of a calendar."""
    if moment is None:
        return None
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def file_name(row: Row, extension: str) -> str:
    """``<id>-<slug>.<ext>``, in letters that every file system has.

    An id that is not a plain name is cleaned, and a digest of it keeps it apart from others.
    """
    session_id = str(row["id"])
    if not _PLAIN_ID.fullmatch(session_id):
        digest = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
        session_id = f"{_slug(session_id) or 'id'}-{digest[:12]}"
    slug = _slug(str(row["title"] or "")).lower()
    return f"{session_id}-{slug or 'session'}.{extension}"


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-_")[:60]


def document(segments: list[Segment], kind: str, now: float) -> str:
    """The file of one session, or of all *segments* of its lineage, the last one in front."""
    row = segments[-1].row
    exported = sum(len(segment.messages) for segment in segments)
    stored = sum(segment.row["message_count"] or 0 for segment in segments)
    lines = ["---", *_front(segments, kind, now, exported), "---", ""]
    lines += [f"# {row['title'] or row['id']}", ""]
    lines += [f"- Session: `{row['id']}`", f"- Source: {row['source']}"]
    lines += [f"- Working directory: `{row.get('cwd') or '—'}`", "", "## Messages", ""]
    for number, segment in enumerate(segments, 1):
        if len(segments) > 1:
            lines += [f"## Segment {number}: {segment.row['id']}", ""]
        for message in segment.messages:
            lines += _message(message)
    lines += ["## Verification", "", f"- Session id: `{row['id']}`"]
    lines += [f"- Exported messages: {exported}", f"- Stored messages: {stored}"]
    lines += [f"- Exported at: {iso(now)}", f"- SHA-256: `{_PENDING}`", ""]
    text = "\n".join(lines)
    digest = _digest(text)
    # The last one: a message may quote such a line.
    before, _, after = text.rpartition(f"- SHA-256: `{_PENDING}`")
    return f"{before}- SHA-256: `{digest}`{after}"


def verified(text: str, session_id: str, messages: int) -> bool:
    """Return True if a file that was read back is complete and holds that session."""
    digests, counts = _DIGEST.findall(text), _EXPORTED.findall(text)
    if not digests or not counts or session_id not in _SESSION.findall(text):
        return False
    before, _, after = text.rpartition(digests[-1])
    same = _digest(f"{before}{_PENDING}{after}") == digests[-1]
    return same and int(counts[-1]) == messages


def digest_of(text: str) -> str:
    """The digest that a document names."""
    return str(_DIGEST.findall(text)[-1])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _front(segments: list[Segment], kind: str, now: float, exported: int) -> list[str]:
    first, row = segments[0].row, segments[-1].row
    times = [m["timestamp"] for segment in segments for m in segment.messages]
    values: dict[str, Any] = {
        "session_id": row["id"],
        "title": row["title"],
        "source": row["source"],
        "created_at": iso(first["started_at"]),
        "updated_at": iso(max(times, default=row["started_at"])),
        "ended_at": iso(row["ended_at"]),
        "model": row["model"],
        "provider": row["billing_provider"],
        "cwd": row.get("cwd"),
        "archived": bool(row.get("archived")),
        "message_count": exported,
        "tool_call_count": sum(segment.row["tool_call_count"] or 0 for segment in segments),
    }
    if len(segments) > 1:
        values["lineage_session_ids"] = [segment.row["id"] for segment in segments]
    values |= {
        "format": kind,
        "exported_at": iso(now),
        "exporter": f"hermes-actor {__version__}",
    }
    return [
        f"{key}: {json.dumps(value, ensure_ascii=False, default=repr)}"
        for key, value in values.items()
    ]


def _message(row: Row) -> list[str]:
    if row["role"] == "tool":
        head = f"### Tool — {row['tool_name'] or 'unknown'}"
    else:
        moment = iso(row["timestamp"])
        head = f"### {str(row['role']).capitalize()}" + (f" — {moment}" if moment else "")
    lines = [head, ""]
    content = row["content"]
    if isinstance(content, str):
        lines += [content, ""]
    elif content is not None:
        lines += _json_block(content)
    if row["tool_calls"]:
        lines += _json_block(row["tool_calls"])
    return lines


def _json_block(value: Any) -> list[str]:
    text = json.dumps(value, ensure_ascii=False, indent=2, default=repr)
    return ["```json", text, "```", ""]


def prompts_document(prompts: list[dict[str, Any]]) -> str:
    """User prompts as Markdown, one heading each."""
    lines = ["# User prompts", ""]
    for prompt in prompts:
        where = f"{prompt['session_id']} · {prompt['index']} · {prompt['created_at']}"
        lines += [f"## {where}", "", str(prompt["text"]), ""]
    return "\n".join(lines)
