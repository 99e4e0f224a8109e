"""Session keys: which messages belong to one conversation. Deterministic, for every chat type."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hermes_actor.gateway.sources import SessionSource
from hermes_actor.paths import default_home

__all__ = ["build_session_key", "canonical_whatsapp_id", "is_shared_multi_user_session"]

_WHATSAPP_ID = re.compile(r"[A-Za-z0-9@.+-]+")


def build_session_key(
    source: SessionSource,
    group_sessions_per_user: bool = True,
    thread_sessions_per_user: bool = False,
    profile: str | None = None,
    home: Path | None = None,
) -> str:
    """Return the key of the conversation that a message from *source* belongs to.

    Args:
        group_sessions_per_user: Each user of a room has a conversation of his own.
        thread_sessions_per_user: Likewise in each thread; otherwise a thread is shared.
        profile: Takes the place of ``main`` in the key, unless it is ``default``.
        home: Where WhatsApp keeps its tables of ids; default: the home of this process.
    """
    agent = profile if profile and profile != "default" else "main"
    whatsapp = source.platform == "whatsapp"
    person = source.participant
    if whatsapp and person:
        person = canonical_whatsapp_id(person, home)
    if source.chat_type == "dm":
        chat = source.chat_id
        if whatsapp and chat:
            chat = canonical_whatsapp_id(chat, home)
        parts = [chat or person, source.thread_id]
    else:
        apart = group_sessions_per_user and (not source.thread_id or thread_sessions_per_user)
        parts = [source.chat_id, source.thread_id, person if apart else None]
    fixed = ["agent", agent, source.platform, source.chat_type]
    return ":".join([*fixed, *(str(part) for part in parts if part)])


def is_shared_multi_user_session(
    source: SessionSource,
    group_sessions_per_user: bool = True,
    thread_sessions_per_user: bool = False,
) -> bool:
    """Return True if several people talk in one conversation there."""
    if source.chat_type == "dm":
        return False
    return not (thread_sessions_per_user if source.thread_id else group_sessions_per_user)


def canonical_whatsapp_id(given: str, home: Path | None = None) -> str:
    """Return one id for all the ids that WhatsApp has for a person: the shortest alias.

    The aliases are in files of the home; one that cannot be read is as good as none.
    """
    folder = (home or default_home()) / "whatsapp" / "session"
    first = _normalized(given)
    known, waiting = {first}, [first]
    while waiting:
        for alias in _aliases(folder, waiting.pop()):
            if alias not in known:
                known.add(alias)
                waiting.append(alias)
    return min(known, key=lambda one: (len(one), one))


def _normalized(given: str) -> str:
    return given.strip().replace("+", "", 1).split(":", 1)[0].split("@", 1)[0]


def _aliases(folder: Path, one: str) -> list[str]:
    # An id becomes part of a file name: only harmless characters do.
    if not _WHATSAPP_ID.fullmatch(one):
        return []
    found = []
    for ending in ("", "_reverse"):
        try:
            text = json.loads((folder / f"lid-mapping-{one}{ending}.json").read_text("utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(text, str) and (alias := _normalized(text)):
            found.append(alias)
    return found
