"""Texts that users and models see, in one place and without the markup of any platform."""

from __future__ import annotations

from hermes_actor.gateway.entries import SessionEntry
from hermes_actor.gateway.policies import SessionResetPolicy

__all__ = ["context_note", "duration", "reset_notice"]

_ALWAYS_NOTIFIED = ("suspended", "resume_pending_expired")

NO_SUCH_SESSION = "No session of this chat matches {given!r}. /sessions lists them."
NO_SESSIONS = "This chat has no other sessions yet."
NEW_SESSION = "Started a new session."
TITLE_SET = "Title of session {id}: {title}"
TITLE_REFUSED = "Started a new session without a title: {reason}"
TITLE_MISSING = "Session {id} has no title. /title WORDS gives it one."
TITLE_TAKEN = "The title was not set: {reason}"
RESUMED = "Resumed session {id} ({title}), {count} messages."
SAME_SESSION = "This chat is in session {id} already."
BUSY = "Another process is answering this chat. Try again when it is done."


def duration(minutes: int) -> str:
    """Return a time such as ``24h``, ``1h 30m`` or ``45m``."""
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{rest}m"
    return f"{hours}h {rest}m" if rest else f"{hours}h"


def _cause(reason: str | None, policy: SessionResetPolicy) -> str:
    if reason == "daily":
        return f"daily schedule at {policy.at_hour}:00"
    if reason == "idle":
        return f"inactive for {duration(policy.idle_minutes)}"
    if reason == "suspended":
        return "the earlier session was stopped"
    return "the earlier session was interrupted"


def reset_notice(entry: SessionEntry, policy: SessionResetPolicy) -> str | None:
    """Return the sentence for a user with the first message after a reset, if there is one."""
    if not entry.was_auto_reset:
        return None
    reason = entry.auto_reset_reason
    wanted = policy.notify and entry.reset_had_activity
    if reason not in _ALWAYS_NOTIFIED and not wanted:
        return None
    if reason not in _ALWAYS_NOTIFIED and entry.platform in policy.notify_exclude_platforms:
        return None
    return (
        f"A new session has begun ({_cause(reason, policy)}). /resume goes back to the earlier one;"
        " the setting session_reset changes when this happens."
    )


def context_note(entry: SessionEntry) -> str | None:
    """Return the sentence for a model with the first message after a reset, if there is one."""
    if not entry.was_auto_reset:
        return None
    how = {
        "daily": "was reset by schedule",
        "suspended": "was stopped",
        "resume_pending_expired": "was interrupted",
    }.get(entry.auto_reset_reason or "", "has expired")
    return f"[The earlier session of this chat {how}. There is no prior context.]"
