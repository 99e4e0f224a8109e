"""The entry of a chat in the form in which it is stored, shared with other programs: one dict."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["DEFAULTS", "dumps", "fresh_entry", "loads"]

DEFAULTS: dict[str, Any] = {
    "session_key": "", "session_id": "", "created_at": "", "updated_at": "", "display_name": None,
    "platform": None, "chat_type": "dm", "input_tokens": 0, "output_tokens": 0,
    "cache_read_tokens": 0, "cache_write_tokens": 0, "total_tokens": 0, "last_prompt_tokens": 0,
    "estimated_cost_usd": 0.0, "cost_status": "unknown", "expiry_finalized": False,
    "suspended": False, "resume_pending": False, "resume_reason": None,
    "last_resume_marked_at": None, "is_fresh_reset": False, "was_auto_reset": False,
    "auto_reset_reason": None, "reset_had_activity": False,
}  # fmt: skip
"""Every key of an entry but ``origin``, in the order of the file, with its default."""

_SAME_PEER = ("session_key", "display_name", "platform", "chat_type", "origin")


def fresh_entry(old: dict[str, Any], session_id: str, now_text: str) -> dict[str, Any]:
    """Return the entry of a new session of the chat that *old* is about."""
    same = {name: old[name] for name in _SAME_PEER if name in old}
    times = {"session_id": session_id, "created_at": now_text, "updated_at": now_text}
    return DEFAULTS | same | times


def dumps(entry: dict[str, Any]) -> str:
    """Return the stored form of an entry."""
    return json.dumps(entry, ensure_ascii=False)


def loads(text: str) -> dict[str, Any] | None:
    """Return the entry of a stored text; ``None`` if it is not one."""
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("session_id"), str) else None
