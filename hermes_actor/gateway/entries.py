"""SessionEntry: what is known of one chat, with the exact keys of ``sessions.json``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Self

from hermes_actor.gateway.sources import SessionSource
from hermes_actor.store.gateway.entries import DEFAULTS

__all__ = [
    "NOT_PENDING", "NOT_RESET", "SessionEntry", "is_safe_id", "is_safe_key", "pending_marks",
]  # fmt: skip

NOT_PENDING: dict[str, Any] = {
    "resume_pending": False, "resume_reason": None, "last_resume_marked_at": None,
}  # fmt: skip
"""Fields of a chat that waits for nothing."""
NOT_RESET: dict[str, Any] = {
    "was_auto_reset": False, "auto_reset_reason": None, "reset_had_activity": False,
    "is_fresh_reset": False,
}  # fmt: skip
"""Fields of a chat whose reset was heard of."""

_DRIVE = re.compile(r"[A-Za-z]:[\\/]|[A-Za-z]:$")
_TIMES = ("created_at", "updated_at", "last_resume_marked_at")


def pending_marks(reason: str, now: datetime) -> dict[str, Any]:
    """Return the fields of a chat that was interrupted now, and is to go on."""
    marks = {"resume_pending": True, "resume_reason": reason}
    return marks | {"last_resume_marked_at": now.isoformat()}


def is_safe_id(session_id: str) -> bool:
    """Return True if an id of another program may become the name of a file."""
    bad = any(part in session_id for part in ("..", "/", "\\"))
    return bool(session_id) and not bad and not _DRIVE.match(session_id)


def is_safe_key(key: str) -> bool:
    """Return True if a session key of another program looks like one, and not like a path."""
    return bool(key) and ".." not in key and key[0] not in "/\\" and not _DRIVE.match(key)


@dataclass
class SessionEntry:
    """The session of a chat, and the marks that decide about its next message."""

    session_key: str
    session_id: str
    created_at: datetime
    updated_at: datetime
    origin: SessionSource | None = None
    display_name: str | None = None
    platform: str | None = None
    chat_type: str = "dm"
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int = 0
    last_prompt_tokens: int = 0
    estimated_cost_usd: float = 0.0
    cost_status: str = "unknown"
    expiry_finalized: bool = False
    suspended: bool = False
    resume_pending: bool = False
    resume_reason: str | None = None
    last_resume_marked_at: datetime | None = None
    is_fresh_reset: bool = False
    was_auto_reset: bool = False
    auto_reset_reason: str | None = None
    reset_had_activity: bool = False
    model_override: dict[str, Any] | None = None
    outcome: str = field(default="kept", compare=False)
    """The outcome of the call that returned the entry; not stored."""

    @property
    def is_new(self) -> bool:
        """True for the first message of a session."""
        return self.created_at == self.updated_at or self.was_auto_reset or self.is_fresh_reset

    def to_dict(self) -> dict[str, Any]:
        """Return the stored form: exactly the keys of ``sessions.json``, in their order."""
        values = {name: getattr(self, name) for name in DEFAULTS}
        for name in _TIMES:
            values[name] = None if values[name] is None else values[name].isoformat()
        if self.origin is not None:
            values["origin"] = self.origin.to_dict()
        if self.model_override:
            values["model_override"] = dict(self.model_override)
        return values

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the stored form.

        Raises ``KeyError``, ``ValueError`` or ``TypeError`` for an entry without a key, an id or
        times, or with an id that could be a path.
        """
        key, session_id = data["session_key"], data["session_id"]
        if not key or not is_safe_id(str(session_id)):
            raise ValueError(f"{session_id!r} of {key!r} is not an id of a session")
        known = {one.name for one in fields(cls)} - {"outcome", "origin"}
        values = {name: data[name] for name in known if data.get(name) is not None}
        # The name that older files have for it.
        values.setdefault("expiry_finalized", bool(data.get("memory_flushed", False)))
        for name in _TIMES:
            if name in values or name != "last_resume_marked_at":
                values[name] = datetime.fromisoformat(data[name])
        origin = data.get("origin")
        return cls(**values, origin=SessionSource.from_dict(origin) if origin else None)
